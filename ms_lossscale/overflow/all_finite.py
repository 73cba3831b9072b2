"""Ascend 910B in Inf/NaN mode, where MindSpore enables its fused check."""

from mindspore import ops

from ms_lossscale._versions import AllFinite
from ms_lossscale.overflow.detector import Detector
from ms_lossscale.overflow.values import values


class AllFiniteCheck(Detector):
    """NaN or Inf in the gradients, found by one operator over all of them."""

    primitives = ("AllFinite",)

    def __init__(self, distributed):
        super().__init__(distributed)
        self.hyper_map = ops.HyperMap()
        self.all_finite = AllFinite()  # despite its name True means overflow

    def construct(self, status, compute_output):
        overflow = self.all_finite(self.hyper_map(values, compute_output))
        return self.any_rank(ops.reshape(overflow, ()))
