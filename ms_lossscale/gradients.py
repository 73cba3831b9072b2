"""The seed of the backward pass and the unscaling of its gradients: the only place that multiplies by a scale."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import check_tensors
from ms_lossscale._versions import BFLOAT16, FLOAT_DTYPES, HALF_DTYPES, RowTensor

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


class Seed(nn.Cell):
    """The gradient of the scaled loss: the scale, in the loss's dtype, at every element of the loss."""

    def construct(self, loss, scale):
        if isinstance(loss, (tuple, list, dict)):
            refuse_loss("several outputs")
        if not isinstance(loss, Tensor):
            refuse_loss("no Tensor")
        if ops.dtype(loss) not in FLOAT_DTYPES:
            refuse_loss(ops.dtype(loss))
        # After the loss, so after an overflow register was cleared: the cast of a large scale may raise it.
        scale = ops.depend(ops.reshape(scale, ()), loss)
        if ops.dtype(loss) in BFLOAT16:  # PYNATIVE mode on CPU has no bfloat16 ones_like
            return ops.cast(ops.ones_like(ops.cast(loss, ms.float32)) * scale, ops.dtype(loss))
        return ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))


class Unscale(nn.Cell):
    """Gradients divided by the scale, each in its own dtype; the reciprocal and the product are float32."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.hyper_map = ops.HyperMap()
        self.reciprocal = ops.Reciprocal()

    def __call__(self, grads, scale):
        check_tensors("unscale", "grads", grads)
        return super().__call__(grads, scale)

    def construct(self, grads, scale):
        inverse = self.reciprocal(ops.reshape(scale, ()))
        return self.hyper_map(ops.partial(times, inverse), grads)
