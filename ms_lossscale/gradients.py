"""The seed of the backward pass and the unscaling of its gradients: the only place that multiplies by a scale."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import check_tensors
from ms_lossscale._versions import FLOAT_DTYPES, HALF_DTYPES, RowTensor

_unscale = ops.MultitypeFuncGraph("unscale")


@_unscale.register("Tensor", "Tensor")
def _unscale_tensor(inverse, grad):
    dtype = ops.dtype(grad)
    if dtype in HALF_DTYPES:
        # A float16 reciprocal of 2**25 is 0: multiply in float32 and round once.
        return ops.cast(ops.cast(grad, ms.float32) * inverse, dtype)
    return grad * ops.cast(inverse, dtype)


@_unscale.register("Tensor", "RowTensor")
def _unscale_row_tensor(inverse, grad):
    return RowTensor(grad.indices, _unscale_tensor(inverse, grad.values), grad.dense_shape)


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
        return self.hyper_map(ops.partial(_unscale, inverse), grads)
