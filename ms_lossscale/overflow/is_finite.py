"""Ascend 910B in Inf/NaN mode, where the fused check is not enabled."""

import mindspore as ms
from mindspore import ops

from ms_lossscale.overflow.detector import GradientCheck

_not_finite = ops.MultitypeFuncGraph("not_finite")


@_not_finite.register("Tensor")
def _tensor_not_finite(grad):
    return 1.0 - ops.cast(ops.isfinite(grad).all(), ms.float32)


class IsFiniteCheck(GradientCheck):
    """NaN or Inf in the gradients, found one gradient at a time."""

    primitives = ("IsFinite", "ReduceAll", "AddN")

    def overflow_of(self, grads):
        return self.sum_over_ranks(self.total(self.hyper_map(_not_finite, grads))) > 0
