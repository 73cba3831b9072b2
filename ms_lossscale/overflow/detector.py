"""The contract of every overflow detector."""

import mindspore as ms
from mindspore import Tensor, nn, ops


class Detector(nn.Cell):
    """
    Tells whether a computation overflowed, on any rank.

    A step calls `start` before the computation and the detector itself after it. A detector that only looks at
    the gradients has nothing to start.

    Args:
        distributed (bool): Whether ranks train together; the answer is then the OR over them.
    """

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

    def any_rank(self, flag):
        """Return whether `flag`, a bool of shape (), holds on any rank."""
        if self.distributed:
            # Summed as float32: CPU reduces no bool, and an int8 sum wraps at 256 ranks.
            return self.allreduce(ops.cast(flag, ms.float32)) > 0
        return flag
