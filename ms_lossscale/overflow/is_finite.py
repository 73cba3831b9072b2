"""Ascend 910B in Inf/NaN mode, where the fused check is not enabled."""

import mindspore as ms
from mindspore import ops

from ms_lossscale.overflow.detector import Detector
from ms_lossscale.overflow.values import values

_not_finite = ops.MultitypeFuncGraph("not_finite")


@_not_finite.register("Tensor")
def _tensor_not_finite(grad):
    return 1.0 - ops.cast(ops.isfinite(grad).all(), ms.float32)


class IsFiniteCheck(Detector):
    """NaN or Inf in the gradients, found one gradient at a time."""

    primitives = ("IsFinite", "ReduceAll", "AddN")

    def __init__(self, distributed):
        super().__init__(distributed)
        self.hyper_map = ops.HyperMap()

    def construct(self, status, compute_output):
        flags = self.hyper_map(_not_finite, self.hyper_map(values, compute_output))
        return self.any_rank(ops.addn(flags) > 0)
