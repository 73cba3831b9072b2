"""Counts a step as applied or skipped."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_lossscale._errors import check_flag
from ms_lossscale.compiled import operator
from ms_lossscale.host_state import on_host, read, write


def counter(name, start=0):
    """Return a Parameter that holds an int32, which nobody trains."""
    return Parameter(Tensor(start, ms.int32), name=name, requires_grad=False)


def as_flag(who, overflow):
    """Return `overflow` as a bool Tensor of shape (); raise unless it is a flag."""
    if isinstance(overflow, Tensor) and overflow.dtype == ms.bool_ and overflow.shape == ():
        return overflow
    return Tensor(check_flag(who, "overflow", overflow), ms.bool_)


class Count(nn.Cell):
    """
    Adds a step to its counters, int32 Parameters.

    Args:
        on_host (bool): Whether the target is CPU: in a graph a compiled operator does it then, if there is one.
    """

    def __init__(self, on_host):
        super().__init__(auto_prefix=False)
        self.count = operator("count_step", writes=True) if on_host else None

    def construct(self, overflow, applied, skipped, in_a_row):
        if self.count is not None:
            return ops.reshape(self.count(overflow, applied, skipped, in_a_row), ())
        return self._count_by_operators(overflow, applied, skipped, in_a_row)

    def _count_by_operators(self, overflow, applied, skipped, in_a_row):
        added = ops.cast(overflow, ms.int32)
        ops.assign_add(skipped, added)
        ops.assign_add(applied, 1 - added)
        ops.assign(in_a_row, (in_a_row + added) * added)
        return overflow

    def __call__(self, overflow, applied, skipped, in_a_row):
        overflow = as_flag("process_loss_scale", overflow)
        if not on_host():
            return self._count_by_operators(overflow, applied, skipped, in_a_row)
        if overflow:
            write(skipped, read(skipped) + 1)
            write(in_a_row, read(in_a_row) + 1)
        else:
            write(applied, read(applied) + 1)
            write(in_a_row, 0)
        return overflow
