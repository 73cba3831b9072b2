"""The contract of every overflow detector."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_lossscale.overflow.values import values


class Detector(nn.Cell):
    """
    Tells whether a computation overflowed, on any rank.

    A step calls `start` before the computation and the detector itself after it. A detector that only looks at
    the gradients has nothing to start.

    Args:
        distributed (bool): Whether ranks train together; the answer is then the OR over them.

    Attributes:
        primitives (tuple of str): The operators it looks with.
        reason (str): Why the table picked it.
    """

    primitives = ()
    reason = ""

    def __init__(self, distributed):
        super().__init__(auto_prefix=False)
        self.distributed = distributed
        self.allreduce = ops.AllReduce() if distributed else None

    def start(self, pre_cond, compute_input):
        """Return (status, compute_input): what the detector is called with, and the tied input."""
        return Tensor([0] * 8, ms.int32), compute_input

    def construct(self, status, compute_output):
        """Return a bool Tensor of shape (): whether what led to `compute_output` overflowed."""
        raise NotImplementedError

    def sum_over_ranks(self, count):
        """Return the sum over the ranks of `count`, a float32 that is 0 on a rank without overflow."""
        # In float32 because CPU reduces no bool, and an int8 sum wraps at 256 ranks.
        return self.allreduce(count) if self.distributed else count

    def any_rank(self, flag):
        """Return whether `flag`, a bool of shape (), holds on any rank."""
        return self.sum_over_ranks(ops.cast(flag, ms.float32)) > 0 if self.distributed else flag


class GradientCheck(Detector):
    """
    Looks at gradients, and at nothing else. A device says how in `overflow_of`.

    Attributes:
        row_tensors (bool): Whether a gradient may be a RowTensor in a graph; to be set before the first call.
    """

    def __init__(self, distributed):
        super().__init__(distributed)
        self.hyper_map = ops.HyperMap()
        self.row_tensors = False

    def construct(self, status, compute_output):
        grads = (compute_output,) if isinstance(compute_output, Tensor) else compute_output
        if len(grads) == 0:
            return self.any_rank(Tensor(False))
        overflow = self.overflow_of(self.hyper_map(values, grads))
        if self.row_tensors:
            # What is computed from a RowTensor has no type when MindSpore 2.10 compiles an assignment of it, which
            # crashes the compiler; a constant has one.
            overflow = Tensor(True) if overflow else Tensor(False)
        return overflow

    def total(self, flags):
        """Return the sum of `flags`, one number for each gradient."""
        if not self.row_tensors:
            return ops.addn(flags)
        total = flags[0]
        for flag in flags[1:]:  # AddN, too, wants a type
            total = total + flag
        return total

    def overflow_of(self, grads):
        """Return a bool Tensor of shape (): whether any of `grads`, one Tensor or more, overflowed."""
        raise NotImplementedError
