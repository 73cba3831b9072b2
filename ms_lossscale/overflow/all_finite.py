"""Ascend 910B in Inf/NaN mode: one operator looks at all gradients."""

from mindspore import ops

from ms_lossscale._versions import AllFinite
from ms_lossscale.overflow.detector import GradientCheck


class AllFiniteCheck(GradientCheck):
    """NaN or Inf in the gradients, found by one fused operator."""

    primitives = ("AllFinite",)

    def __init__(self, distributed):
        super().__init__(distributed)
        self.all_finite = AllFinite()  # despite its name True means overflow

    def overflow_of(self, grads):
        return self.any_rank(ops.reshape(self.all_finite(grads), ()))
