"""Ascend 910A, and 910B in saturation mode: a hardware register that any overflowing operator raises."""

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops.operations.math_ops import NPUClearFloatStatusV2, NPUGetFloatStatusV2

from ms_lossscale.overflow.detector import Detector


class FloatStatusRegister(Detector):
    """Overflows since `start`, in any operator of this device, whether or not the gradients show them."""

    primitives = ("NPUClearFloatStatusV2", "NPUGetFloatStatusV2")

    def __init__(self, distributed):
        super().__init__(distributed)
        self.clear_status = NPUClearFloatStatusV2()
        self.get_status = NPUGetFloatStatusV2()
        self.reduce_any = ops.ReduceAny(keep_dims=False)

    def start(self, pre_cond, compute_input):
        status = ops.depend(Tensor([0] * 8, ms.int32), pre_cond)
        return status, ops.depend(compute_input, self.clear_status(status))

    def construct(self, status, compute_output):
        status = ops.depend(status, compute_output)
        flags = self.get_status(status)
        overflow = self.any_rank(self.reduce_any(ops.not_equal(flags, 0)))
        # Cleared once more, after the reduction: the optimizer and the next step start from a clean register.
        status = ops.depend(status, overflow)
        return ops.depend(overflow, self.clear_status(status))
