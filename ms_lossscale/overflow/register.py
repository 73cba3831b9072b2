"""Ascend 910A, and 910B in saturation mode: a hardware register that any overflowing operator raises."""

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops.operations.math_ops import NPUClearFloatStatusV2, NPUGetFloatStatusV2

from ms_lossscale.overflow.detector import Detector


class FloatStatusRegister(Detector):
    """
    Overflows since `start`, in any operator of this device, whether or not the gradients show them.

    In a graph, operators wait for the first clearing if they depend on the tied input or on the status. One that
    depends on Parameters alone, such as the cast of a float32 weight to float16, may run before it.
    """

    primitives = ("NPUClearFloatStatusV2", "NPUGetFloatStatusV2")

    def __init__(self, distributed):
        super().__init__(distributed)
        self.clear_status = NPUClearFloatStatusV2()
        self.get_status = NPUGetFloatStatusV2()
        self.reduce_any = ops.ReduceAny(keep_dims=False)

    def start(self, pre_cond, compute_input):
        status = ops.depend(Tensor([0] * 8, ms.int32), pre_cond)
        cleared = self.clear_status(status)
        return ops.depend(status, cleared), _after(cleared, compute_input)

    def construct(self, status, compute_output):
        status = ops.depend(status, compute_output)
        flags = self.get_status(status)
        if self.distributed:
            flags = self.sum_over_ranks(ops.cast(flags, ms.float32))
        overflow = self.reduce_any(ops.not_equal(flags, 0))
        # Cleared once more, after the reduction: the optimizer and the next step start from a clean register.
        status = ops.depend(status, overflow)
        return ops.depend(overflow, self.clear_status(status))


def _after(cleared, value):
    """Return `value`, a Tensor or any nested input of a network, computed from only once `cleared` is."""
    if isinstance(value, tuple):
        tied = ()
        for item in value:
            tied += (_after(cleared, item),)
        return tied
    if value is None:  # MindSpore 2.0.0 no longer knows a None that went through depend
        return value
    return ops.depend(value, cleared)
