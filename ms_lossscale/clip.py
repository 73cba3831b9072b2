"""Gradients limited by their global norm or by value; the norm also tells whether they are finite."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_lossscale._errors import FLOAT32_MAX, check_number
from ms_lossscale.compiled import operator
from ms_lossscale.gradients import unscaled_on_host
from ms_lossscale.host_pass import clip_factor, host_view
from ms_lossscale.host_state import on_host, write
from ms_lossscale.numpy_operator import numpy_operator, numpy_values

POSITIVE = "a finite number > 0"
SMALLEST = 2.0**-126


def check_limit_of(owner, name, value):
    """Return `value` as a float, or None as it is; raise unless it is a number above 0."""
    return None if value is None else float(check_number(owner, name, value, SMALLEST, POSITIVE))


class ClipByNorm(nn.Cell):
    """
    Gradients scaled down so that the norm of all together is at most `limit`.

    The sum of squares is float32. If it overflows, one more pass over gradients divided by the largest decides.
    """

    def __init__(self, limit):
        super().__init__(auto_prefix=False)
        self.limit = limit
        self.hyper_map = ops.HyperMap()
        self.global_norm = Parameter(Tensor(0, ms.float32), name="global_norm", requires_grad=False)

    def construct(self, grads):
        """Return (grads, whether one was NaN or infinite)."""
        total = _total(self.hyper_map(ops.partial(_squares, Tensor(1, ms.float32)), grads))
        # A device that saturates makes the largest float32 of a sum that overflows.
        norm, unit, finite = ops.sqrt(total), Tensor(1, ms.float32), total < FLOAT32_MAX
        if not finite:
            finite = _total(self.hyper_map(_not_finite, grads)) == 0
            if finite:
                # At most 2**126: a graph divides by multiplying, and may take a subnormal reciprocal for 0.
                unit = ops.minimum(_largest(self.hyper_map(_magnitude, grads)), Tensor(2.0**126, ms.float32))
                norm = ops.sqrt(_total(self.hyper_map(ops.partial(_squares, unit), grads)))
        limit = self.limit / unit
        factor = limit / ops.maximum(norm, limit)
        grads = self.hyper_map(ops.partial(_shrink, factor), grads)
        return ops.depend(grads, ops.assign(self.global_norm, norm * unit)), ops.logical_not(finite)


class ClipByNormOnHost(ClipByNorm):
    """
    The same on CPU: one operator, compiled or NumPy's, gives the norm of all `weights`' gradients.

    The sum of squares is float64, in one order everywhere, so that the bits do not depend on who adds.
    """

    def __init__(self, limit, weights):
        super().__init__(limit)
        self.limit = Tensor(limit, ms.float32)
        self.one = Tensor(1, ms.float32)
        self.by_compiled = None
        if all(weight.dtype == ms.float32 for weight in weights):
            self.by_compiled = operator("clip_factor", (lambda *shapes: ([1], [1]),
                                                     lambda *dtypes: (ms.float32, ms.bool_)), writes=True)
        host_limit = np.float32(limit)
        self.by_numpy = numpy_operator(lambda *arrays: np.array(clip_factor(host_limit, *arrays), np.float32),
                                       len(weights), [3], ms.float32)

    def construct(self, grads):
        factor, overflow = self.measure(grads, self.one)
        return self.hyper_map(ops.partial(_shrink, factor), grads), overflow

    def measure(self, grads, scale):
        """Return (what the gradients, divided by `scale`, are to be multiplied by, whether one is not finite)."""
        if self.by_compiled is not None:
            factor, overflow = self.by_compiled(*grads, scale, self.limit, self.global_norm)
            return ops.reshape(factor, ()), ops.reshape(overflow, ())
        norm, factor, overflow = self.by_numpy(*self.hyper_map(numpy_values, grads))
        return ops.depend(factor, ops.assign(self.global_norm, norm)), overflow > 0

    def __call__(self, grads):
        """The same outside a graph."""
        norm, factor, overflow = clip_factor(self.limit.asnumpy(), *map(host_view, grads))
        if on_host():
            write(self.global_norm, norm)
        else:
            ops.assign(self.global_norm, Tensor(norm))
        if factor != 1:
            grads = tuple(unscaled_on_host(grad, factor)[0] for grad in grads)
        return grads, Tensor(overflow)


class ClipByValue(nn.Cell):
    """Every element of the gradients between -limit and limit."""

    def __init__(self, limit):
        super().__init__(auto_prefix=False)
        self.limit = Tensor(limit, ms.float32)
        self.hyper_map = ops.HyperMap()

    def construct(self, grads):
        return self.hyper_map(ops.partial(_bound, self.limit), grads)


def _total(numbers):
    total = numbers[0]
    for number in numbers[1:]:
        total = total + number
    return total


def _largest(numbers):
    largest = numbers[0]
    for number in numbers[1:]:
        largest = ops.maximum(largest, number)
    return largest


_squares = ops.MultitypeFuncGraph("squares")
_not_finite = ops.MultitypeFuncGraph("not_finite")
_magnitude = ops.MultitypeFuncGraph("magnitude")
_shrink = ops.MultitypeFuncGraph("shrink")
_bound = ops.MultitypeFuncGraph("bound")


@_squares.register("Tensor", "Tensor")
def _squares_of(unit, grad):
    return ops.square(ops.cast(grad, ms.float32) / unit).sum()


@_not_finite.register("Tensor")
def _not_finite_in(grad):
    finite = ops.abs(ops.cast(grad, ms.float32)) <= FLOAT32_MAX
    return ops.cast(ops.logical_not(finite), ms.float32).sum()


@_magnitude.register("Tensor")
def _magnitude_of(grad):
    return ops.abs(ops.cast(grad, ms.float32)).max()


@_shrink.register("Tensor", "Tensor")
def _shrunk(factor, grad):
    return ops.cast(ops.cast(grad, ms.float32) * factor, ops.dtype(grad))


@_bound.register("Tensor", "Tensor")
def _bounded(limit, grad):
    return ops.cast(ops.minimum(ops.maximum(ops.cast(grad, ms.float32), -limit), limit), ops.dtype(grad))
