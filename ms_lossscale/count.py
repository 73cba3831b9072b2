"""Counts a step as applied or skipped."""

import mindspore as ms
from mindspore import nn, ops

from ms_lossscale.compiled import operator
from ms_lossscale.host_state import on_host, read, write


class Count(nn.Cell):
    """Adds a step to its counters, int32 Parameters: one operator in a graph on CPU if it was compiled."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.count = operator("count_step", [[1]], [ms.bool_], writes=True)

    def construct(self, overflow, applied, skipped, in_a_row):
        if self.count is not None:
            return ops.reshape(self.count(overflow, applied, skipped, in_a_row), ())
        added = ops.cast(overflow, ms.int32)
        ops.assign_add(skipped, added)
        ops.assign_add(applied, 1 - added)
        ops.assign(in_a_row, (in_a_row + added) * added)
        return overflow

    def __call__(self, overflow, applied, skipped, in_a_row):
        if not on_host():
            return self.construct(overflow, applied, skipped, in_a_row)
        if overflow:
            write(skipped, read(skipped) + 1)
            write(in_a_row, read(in_a_row) + 1)
        else:
            write(applied, read(applied) + 1)
            write(in_a_row, 0)
        return overflow
