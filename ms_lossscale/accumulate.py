"""Gradients summed over the micro-steps of a window, and what is known of the window."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops


class Accumulate(nn.Cell):
    """
    The mean of the gradients over the micro-steps that a window keeps.

    Args:
        weights (tuple): The Parameters the gradients belong to.
        steps (int): The number of micro-steps in a window.
    """

    def __init__(self, weights, steps):
        super().__init__(auto_prefix=False)
        self.steps = steps
        self.hyper_map = ops.HyperMap()
        self.accumulated = ParameterTuple([
            Parameter(Tensor(np.zeros(weight.shape), ms.float32), name=f"accumulated.{weight.name}",
                      requires_grad=False) for weight in weights])
        self.zeros = tuple(Tensor(np.zeros(weight.shape), ms.float32) for weight in weights)
        self.micro_step = Parameter(Tensor(0, ms.int32), name="micro_step", requires_grad=False)
        self.kept_micro_steps = Parameter(Tensor(0, ms.int32), name="kept_micro_steps", requires_grad=False)

    def construct(self, grads, overflow):
        """Add the gradients of one micro-step unless they overflowed; return whether the window is complete."""
        done = self.micro_step + 1
        kept = self.kept_micro_steps + (1 - ops.cast(overflow, ms.int32))
        if not overflow:
            overflow = ops.depend(overflow, self.hyper_map(ops.partial(_add, 1.0 / self.steps), self.accumulated,
                                                           grads))
        complete = ops.depend(done >= self.steps, overflow)
        complete = ops.depend(complete, ops.assign(self.kept_micro_steps, kept))
        return ops.depend(complete, ops.assign(self.micro_step, done))

    def mean(self, grads, kept):
        """Return the mean, in the dtypes of `grads`, if the ranks kept `kept` micro-steps each, on average."""
        factor = self.steps / ops.maximum(kept, Tensor(1.0 / 1024, ms.float32))
        return self.hyper_map(ops.partial(_times_as, factor), self.accumulated, grads)

    def clear(self, after):
        """Start the next window; return `after`."""
        after = ops.depend(after, self.hyper_map(_assign, self.accumulated, self.zeros))
        after = ops.depend(after, ops.assign(self.kept_micro_steps, Tensor(0, ms.int32)))
        return ops.depend(after, ops.assign(self.micro_step, Tensor(0, ms.int32)))


_add = ops.MultitypeFuncGraph("add")
_times_as = ops.MultitypeFuncGraph("times_as")
_assign = ops.MultitypeFuncGraph("assign")


@_add.register("Number", "Tensor", "Tensor")
def _add_to(share, total, grad):
    return ops.assign_add(total, ops.cast(grad, ms.float32) * share)


@_times_as.register("Tensor", "Tensor", "Tensor")
def _times(factor, total, grad):
    return ops.cast(total * factor, ops.dtype(grad))


@_assign.register("Tensor", "Tensor")
def _assign_to(total, zeros):
    return ops.assign(total, zeros)
