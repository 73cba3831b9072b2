"""The seed of the backward pass and the unscaling of its gradients: all that multiplies by a scale, but fused.py."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import check_tensors
from ms_lossscale._versions import BFLOAT16, FLOAT_DTYPES, HALF_DTYPES, RowTensor
from ms_lossscale.host_pass import LARGE, multiplied
from ms_lossscale.host_state import on_cpu

NUMPY_DTYPES = tuple(dtype for dtype in FLOAT_DTYPES if dtype not in BFLOAT16)

times = ops.MultitypeFuncGraph("times")


@times.register("Tensor", "Tensor")
def times_tensor(factor, value):
    """Return `value` times the float32 `factor`, in the dtype of `value`."""
    dtype = ops.dtype(value)
    if dtype in HALF_DTYPES:
        # A float16 reciprocal of 2**25 is 0: multiply in float32 and round once.
        return ops.cast(ops.cast(value, ms.float32) * factor, dtype)
    return value * ops.cast(factor, dtype)


@times.register("Tensor", "RowTensor")
def times_row_tensor(factor, value):
    """Return `value` with its values multiplied."""
    return RowTensor(value.indices, times_tensor(factor, value.values), value.dense_shape)


@constexpr
def refuse_loss(found):
    """Raise while the graph is compiled, which a plain raise in a graph would do on the device."""
    raise TypeError("For 'TrainOneStepWithLossScaleCell', 'network' must return the loss alone, a float Tensor, but "
                    f"it returned {found}. Wrap it in a Cell that does.")


def seed_of(loss, scale):
    """Return the gradient of the scaled loss: the scale, in the loss's dtype, at every element of the loss."""
    if isinstance(loss, (tuple, list, dict)):
        refuse_loss("several outputs")
    if not isinstance(loss, Tensor):
        refuse_loss("no Tensor")
    if ops.dtype(loss) not in FLOAT_DTYPES:
        refuse_loss(ops.dtype(loss))
    # After the loss, so after an overflow register was cleared: the cast of a large scale may raise it.
    scale = ops.depend(scale if ops.shape(scale) == () else ops.reshape(scale, ()), loss)
    if ops.dtype(loss) == ms.float32 and ops.shape(loss) == ():
        return scale
    if ops.dtype(loss) in BFLOAT16:  # PYNATIVE mode on CPU has no bfloat16 ones_like
        return ops.cast(ops.ones_like(ops.cast(loss, ms.float32)) * scale, ops.dtype(loss))
    return ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))


def reciprocal_on_host(scale):
    """Return 1 / `scale` as a NumPy float32, Inf for 0; outside a graph."""
    with np.errstate(divide="ignore"):
        return np.float32(1) / scale.asnumpy().reshape(())


def unscaled_on_host(grad, inverse, look=False):
    """
    Return `grad` times `inverse`, a NumPy float32, and if asked to `look` whether it then holds NaN or Inf.

    The latter is None where MindSpore multiplies, which it does in the background: look once all are on their way.
    """
    if isinstance(grad, RowTensor):
        values, overflow = unscaled_on_host(grad.values, inverse, look)
        return RowTensor(grad.indices, values, grad.dense_shape), overflow
    if grad.dtype not in NUMPY_DTYPES or 0 in grad.shape or grad.size >= LARGE:  # from_numpy takes nothing empty
        return times_tensor(Tensor(inverse), grad), None if grad.dtype in FLOAT_DTYPES else False
    product, overflow = multiplied(grad.asnumpy(), inverse, look)
    return Tensor.from_numpy(product), overflow


class Unscale(nn.Cell):
    """Gradients divided by the scale, each in its own dtype; the reciprocal and the product are float32."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.hyper_map = ops.HyperMap()
        self.reciprocal = ops.Reciprocal()

    def __call__(self, grads, scale):
        check_tensors("unscale", "grads", grads)
        if not on_cpu():
            return self.construct(grads, scale)
        inverse = reciprocal_on_host(scale)
        return _each(lambda grad: unscaled_on_host(grad, inverse)[0], grads)

    def construct(self, grads, scale):
        inverse = self.reciprocal(ops.reshape(scale, ()))
        return self.hyper_map(ops.partial(times, inverse), grads)


def _each(function, grads):
    if isinstance(grads, (tuple, list)):
        return type(grads)(_each(function, grad) for grad in grads)
    return function(grads)
