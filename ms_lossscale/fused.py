"""Unscaling and the overflow check in one pass over the gradients: on CPU, where two passes cost double."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_lossscale.compiled import operator
from ms_lossscale.gradients import reciprocal_on_host, unscaled_on_host
from ms_lossscale.host_pass import LARGE
from ms_lossscale.host_state import on_host

# Gradients in one operator: MindSpore takes twice as long for one with 300 of them as for ten with 30.
CHUNK = 32
METHODS = ("start_overflow_check", "unscale", "get_overflow_status")


class UnscaleAndCheck(nn.Cell):
    """
    Gradients divided by the scale, and whether one is then NaN or Inf.

    In a graph it is one pass if this installation has the compiled part and every gradient is a float32 Tensor.

    Args:
        step (Cell): The step whose parts it stands for: what unscales, reduces (here it does not), and checks.
        documented (type): The class whose methods call these parts.
    """

    def __init__(self, step, documented):
        super().__init__(auto_prefix=False)
        # Past Cell.__setattr__: MindSpore walks over all cells of a cell at every call.
        self.__dict__.update(zip(("unscale", "reducer", "check"), _parts(step)))
        self.methods = [getattr(documented, name) for name in METHODS]
        self.no_status = Tensor([0] * 8, ms.int32)
        self.fused = None
        # Of the operators after the first. MindSpore 2.0.0 has no range that is empty.
        self.starts = tuple(range(CHUNK, len(step.weights), CHUNK))
        if all(weight.dtype == ms.float32 for weight in step.weights) and not self.check.row_tensors:
            self.fused = operator("unscale_and_check", products=True)

    def stands_for(self, step):
        """Return whether the parts and methods of `step` are still the ones this was made for."""
        methods = [getattr(type(step), name) for name in METHODS]
        return methods == self.methods and all(
            part is own for part, own in zip(_parts(step), (self.unscale, self.reducer, self.check)))

    def construct(self, grads, scale):
        """Return (grads, a bool of shape ())."""
        if self.fused is None:
            grads = self.unscale(grads, scale)
            return grads, self.check(self.no_status, grads)
        outputs = self.fused(*grads[:CHUNK], scale)
        unscaled, overflow = outputs[:-1], outputs[-1]
        for start in self.starts:
            outputs = self.fused(*grads[start:start + CHUNK], scale)
            unscaled, overflow = unscaled + outputs[:-1], ops.logical_or(overflow, outputs[-1])
        return unscaled, ops.reshape(overflow, ())

    def __call__(self, grads, scale):
        """The same outside a graph; gradients are small for NumPy, or MindSpore's operators take them."""
        # 2.0.0, which has no such host, runs no compiled operator here if a network takes dynamic shapes.
        if self.fused is not None and on_host() and any(grad.size >= LARGE for grad in grads):
            return self.construct(grads, scale)
        inverse = reciprocal_on_host(scale)
        pairs = [unscaled_on_host(grad, inverse, look=True) for grad in grads]
        return tuple(grad for grad, _ in pairs), Tensor(any(overflow for _, overflow in pairs))


def _parts(step):
    return step._unscale, step.grad_reducer, step.detector
