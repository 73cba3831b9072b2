"""Unscaling, the overflow check and clipping in one pass over the gradients: on CPU, where every pass costs as much."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_lossscale.compiled import operator
from ms_lossscale.gradients import reciprocal_on_host, unscaled_on_host
from ms_lossscale.host_pass import LARGE, has_overflow, host_view
from ms_lossscale.host_state import on_host
from ms_lossscale.overflow.values import flatten

# Gradients in one operator: MindSpore takes twice as long for one with 300 of them as for ten with 30.
CHUNK = 32
# Elements after which the next operator begins: what it reads is free once it is done, for the next one to write to.
# 64 MiB of float32: with less, PYNATIVE waits for operators; with more, the peak of memory grows.
CHUNK_ELEMENTS = 1 << 24
METHODS = ("start_overflow_check", "unscale", "get_overflow_status")
# What `unscale_and_check` is given behind the gradients, and what it gives.
SCALARS = 3
PRODUCTS_AND_FLAG = (lambda *shapes: (*shapes[:-SCALARS], [1]), lambda *dtypes: (*dtypes[:-SCALARS], ms.bool_))


class UnscaleAndCheck(nn.Cell):
    """
    Gradients divided by the scale and clipped, and whether one was NaN or Inf before it was clipped.

    In a graph it is one pass, and one that only reads for a norm, if this installation has the compiled part and every
    gradient is a float32 Tensor.

    Args:
        step (Cell): The step whose parts it stands for: what unscales, reduces (here it does not), and checks.
        documented (type): The class whose methods call these parts.
        clip_by_norm (ClipByNormOnHost, optional): What clips by norm.
        clip_by_value (ClipByValue, optional): What clips by value, after that.
    """

    def __init__(self, step, documented, clip_by_norm=None, clip_by_value=None):
        super().__init__(auto_prefix=False)
        # Past Cell.__setattr__: MindSpore walks over all cells of a cell at every call.
        self.__dict__.update(zip(("unscale", "reducer", "check"), _parts(step)), clip_by_norm=clip_by_norm,
                             clip_by_value=clip_by_value)
        self.methods = [getattr(documented, name) for name in METHODS]
        self.no_status = Tensor([0] * 8, ms.int32)
        self.fused = None
        self.one = Tensor(1, ms.float32)
        self.bound = Tensor(np.inf, ms.float32) if clip_by_value is None else clip_by_value.limit
        (self.first, *rest) = _chunks([weight.size for weight in step.weights])
        self.rest = tuple(rest)
        if all(weight.dtype == ms.float32 for weight in step.weights) and not self.check.row_tensors:
            self.fused = operator("unscale_and_check", PRODUCTS_AND_FLAG)

    def stands_for(self, step):
        """Return whether the parts and methods of `step` are still the ones this was made for."""
        methods = [getattr(type(step), name) for name in METHODS]
        return methods == self.methods and all(
            part is own for part, own in zip(_parts(step), (self.unscale, self.reducer, self.check)))

    def construct(self, grads, scale):
        """Return (grads, a bool of shape ())."""
        if self.fused is None:
            grads = self.unscale(grads, scale)
            return self._clipped(grads, self.check(self.no_status, grads))
        factor = self.one
        if self.clip_by_norm is not None:
            factor, _ = self.clip_by_norm.measure(grads, scale)
        outputs = self.fused(*grads[:self.first], scale, factor, self.bound)
        unscaled, overflow = outputs[:-1], outputs[-1]
        for start, stop in self.rest:
            outputs = self.fused(*grads[start:stop], scale, factor, self.bound)
            unscaled, overflow = unscaled + outputs[:-1], ops.logical_or(overflow, outputs[-1])
        return unscaled, ops.reshape(overflow, ())

    def __call__(self, grads, scale):
        """The same outside a graph; gradients are small for NumPy, or MindSpore's operators take them."""
        # 2.0.0, which has no such host, runs no compiled operator here if a network takes dynamic shapes.
        if self.fused is not None and on_host() and any(grad.size >= LARGE for grad in grads):
            return self.construct(grads, scale)
        inverse = reciprocal_on_host(scale)
        pairs = [unscaled_on_host(grad, inverse, look=True) for grad in grads]
        overflow = any(overflow for _, overflow in pairs)
        for grad in flatten([grad for grad, overflow in pairs if overflow is None]):
            overflow = overflow or has_overflow(host_view(grad))
        return self._clipped(tuple(grad for grad, _ in pairs), Tensor(overflow))

    def _clipped(self, grads, overflow):
        if self.clip_by_norm is not None:
            grads, _ = self.clip_by_norm(grads)
        if self.clip_by_value is not None:
            grads = self.clip_by_value(grads)
        return grads, overflow


def _chunks(sizes):
    """Return (where the first chunk ends, *(start, stop) of the others) for gradients of these sizes."""
    stops, start, elements = [], 0, 0
    for place, size in enumerate(sizes):
        if place - start == CHUNK or (place > start and elements + size > CHUNK_ELEMENTS):
            stops.append(place)
            start, elements = place, 0
        elements += size
    stops.append(len(sizes))
    return (stops[0], *zip(stops, stops[1:]))


def _parts(step):
    return step._unscale, step.grad_reducer, step.detector
