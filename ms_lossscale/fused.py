"""Unscaling and the overflow check in one pass over the gradients: on CPU, where two passes cost double."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_lossscale.compiled import operator
from ms_lossscale.gradients import unscaled_on_host

# Gradients in one operator: MindSpore takes twice as long for one with 300 of them as for ten with 30.
CHUNK = 32


class UnscaleAndCheck(nn.Cell):
    """
    Gradients divided by the scale, and whether one is then NaN or Inf.

    In a graph it is one pass if this installation has the compiled part and every gradient is a float32 Tensor.

    Args:
        unscale (Cell): The first of the parts it stands for: called with the gradients and the scale.
        reducer (Callable): The second, which changes nothing.
        check (GradientCheck): The third: called with a status and the gradients.
        weights (ParameterTuple): What the gradients belong to.
    """

    def __init__(self, unscale, reducer, check, weights):
        super().__init__(auto_prefix=False)
        self.unscale, self.reducer, self.check = unscale, reducer, check
        self.no_status = Tensor([0] * 8, ms.int32)
        self.fused = None
        if all(weight.dtype == ms.float32 for weight in weights) and not check.row_tensors:
            self.fused = operator("unscale_and_check", lambda inputs: (*inputs[:-1], [1]),
                                  lambda inputs: (*inputs[:-1], ms.bool_))

    def stands_for(self, unscale, reducer, check):
        """Return whether a step still has the parts that this was made for."""
        return self.unscale is unscale and self.reducer is reducer and self.check is check

    def construct(self, grads, scale):
        """Return (grads, a bool of shape ())."""
        if self.fused is None:
            grads = self.unscale(grads, scale)
            return grads, self.check(self.no_status, grads)
        outputs = self.fused(*grads[:CHUNK], scale)
        unscaled, overflow = outputs[:-1], outputs[-1]
        for start in range(CHUNK, len(grads), CHUNK):
            outputs = self.fused(*grads[start:start + CHUNK], scale)
            unscaled, overflow = unscaled + outputs[:-1], ops.logical_or(overflow, outputs[-1])
        return unscaled, ops.reshape(overflow, ())

    def __call__(self, grads, scale):
        """The same outside a graph, by NumPy."""
        inverse = np.float32(1) / scale.asnumpy().reshape(())
        pairs = [unscaled_on_host(grad, inverse) for grad in grads]
        return tuple(grad for grad, _ in pairs), Tensor(any(overflow for _, overflow in pairs))
