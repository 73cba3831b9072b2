"""Gradients limited by their global norm or by value; the norm also tells whether they are finite."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_lossscale._errors import FLOAT32_MAX, check_number

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
        """Return (grads, whether all were finite)."""
        total = _total(self.hyper_map(ops.partial(_squares, Tensor(1, ms.float32)), grads))
        # A device that saturates makes the largest float32 of a sum that overflows.
        norm, unit, finite = ops.sqrt(total), Tensor(1, ms.float32), total < FLOAT32_MAX
        if not finite:
            finite = _total(self.hyper_map(_not_finite, grads)) == 0
            if finite:
                unit = _largest(self.hyper_map(_magnitude, grads))
                norm = ops.sqrt(_total(self.hyper_map(ops.partial(_squares, unit), grads)))
        limit = self.limit / unit
        factor = limit / ops.maximum(norm, limit)
        grads = self.hyper_map(ops.partial(_shrink, factor), grads)
        return ops.depend(grads, ops.assign(self.global_norm, norm * unit)), finite


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
