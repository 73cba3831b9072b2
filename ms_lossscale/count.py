"""Counts a step as applied or skipped."""

import mindspore as ms
from mindspore import Tensor, nn, ops


class Count(nn.Cell):
    """
    Adds a step to its counters, int32 Parameters.

    Args:
        on_host (bool): Whether the host knows the flag already: then, outside a graph, two operators do, not seven.
    """

    def __init__(self, on_host):
        super().__init__(auto_prefix=False)
        self.on_host = on_host
        self.zero = Tensor(0, ms.int32)
        self.one = Tensor(1, ms.int32)

    def construct(self, overflow, applied, skipped, in_a_row):
        added = ops.cast(overflow, ms.int32)
        ops.assign_add(skipped, added)
        ops.assign_add(applied, 1 - added)
        ops.assign(in_a_row, (in_a_row + added) * added)
        return overflow

    def __call__(self, overflow, applied, skipped, in_a_row):
        if not self.on_host:
            return self.construct(overflow, applied, skipped, in_a_row)
        if overflow:
            ops.assign_add(skipped, self.one)
            ops.assign_add(in_a_row, self.one)
        else:
            ops.assign_add(applied, self.one)
            ops.assign(in_a_row, self.zero)
        return overflow
