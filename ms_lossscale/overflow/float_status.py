"""GPU: FloatStatus looks at each gradient."""

from mindspore import ops

from ms_lossscale.overflow.detector import Detector
from ms_lossscale.overflow.values import values

_float_status = ops.MultitypeFuncGraph("float_status")


@_float_status.register("Tensor")
def _tensor_float_status(grad):
    return ops.FloatStatus()(grad)


class FloatStatusCheck(Detector):
    """NaN or Inf in the gradients, found one gradient at a time by GPU's own operator."""

    primitives = ("FloatStatus", "AddN")

    def __init__(self, distributed):
        super().__init__(distributed)
        self.hyper_map = ops.HyperMap()

    def construct(self, status, compute_output):
        flags = self.hyper_map(_float_status, self.hyper_map(values, compute_output))
        return self.any_rank(ops.reshape(ops.addn(flags), ()) > 0)
