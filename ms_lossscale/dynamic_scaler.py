"""The functional loss scaler that moves: the rule, as MindSpore operators, with mindspore.amp's division."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import check_flag, check_int, message
from ms_lossscale.held_scale import HeldScale
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, check_inside, make_rule
from ms_lossscale.scaler import LossScaler


class DynamicLossScaler(HeldScale, LossScaler):
    r"""
    A loss scale that falls at every overflow and grows after a run of clean steps, for a training loop of one's own.

    Signature and results are those of :class:`mindspore.amp.DynamicLossScaler`, which divides where
    :class:`DynamicLossScaleManager` multiplies by a reciprocal: :math:`\max(s / f, min)`. For a factor that is no
    power of two the two may differ in the last place. Growth is :math:`\min(s \cdot f, max)`. Both are float32. It may
    be used in PYNATIVE mode, in a function under :func:`mindspore.jit`, and in a Cell in GRAPH mode.

    Args:
        scale_value (float): The scale to start from, inside the bounds.
        scale_factor (float): The factor of growth and shrinkage, at least 1.
        scale_window (int): The number of clean steps in a row after which the scale grows.

    Keyword Args:
        min_loss_scale (float): The scale never falls below it; above 0. Default: ``1.0`` .
        max_loss_scale (float): The scale never grows beyond it. Default: ``2**126`` .
        growth_factor (float): What growth multiplies by, at least 1. Default: ``None`` , `scale_factor`.
        backoff_factor (float): What an overflow multiplies by, above 0 and at most 1. Default: ``None`` , it divides
            by `scale_factor`.
        hysteresis (int): How many overflows leave the scale as it is before one shrinks it. Default: ``0`` .
        consecutive_hysteresis (bool): If True, every clean step restores what `hysteresis` allows; if False, only a
            full window of them does. Default: ``False`` .

    Attributes:
        scale_value (Parameter): The present scale, a float32 of shape :math:`()`.
        counter (Parameter): The clean steps since an overflow or a full window, an int32 of shape :math:`()`.
        tolerated_overflows (Parameter): With `hysteresis`, how many overflows it let pass, an int32 of shape
            :math:`()`.
        scale_factor (float): As given.
        scale_window (int): As given.

    Raises:
        TypeError: If a number has another type than stated.
        ValueError: If a number lies outside its range, is NaN or infinite.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor
        >>> from ms_lossscale import DynamicLossScaler, all_finite
        >>> scaler = DynamicLossScaler(scale_value=2**10, scale_factor=2, scale_window=1)
        >>> grads = (Tensor([512.0, float("inf")], ms.float16), Tensor([1.0], ms.float16))
        >>> scaler.adjust(all_finite(scaler.unscale(grads)))
        True
        >>> print(scaler.scale_value.asnumpy())
        512.0
    """

    tolerated_overflows = 0  # without hysteresis; MindSpore 2.0.0 looks it up all the same

    def __init__(self, scale_value, scale_factor, scale_window, *, min_loss_scale=MIN_LOSS_SCALE,
                 max_loss_scale=MAX_LOSS_SCALE, growth_factor=None, backoff_factor=None, hysteresis=0,
                 consecutive_hysteresis=False):
        rule = make_rule("DynamicLossScaler", "scale_value", scale_value, scale_factor, scale_window, min_loss_scale,
                         max_loss_scale, growth_factor, backoff_factor, hysteresis, consecutive_hysteresis)
        # Python's numbers: a graph takes no other.
        self.scale_factor = np.asarray(scale_factor).item()
        self.scale_window = int(rule.window)
        self.growth_factor = self.scale_factor if growth_factor is None else float(rule.growth)
        self.backoff_factor = None if backoff_factor is None else float(rule.backoff)
        self.min_loss_scale = float(rule.minimum)
        self.max_loss_scale = float(rule.maximum)
        self.hysteresis = int(rule.hysteresis)
        self.consecutive_hysteresis = rule.consecutive
        state = {"tolerated_overflows": 0} if self.hysteresis > 0 else {}
        super().__init__(scale_value=float(scale_value), counter=0, **state)

    def adjust(self, grads_finite):
        """
        End a step: count it, and move the loss scale by the rule.

        Args:
            grads_finite (Union[bool, Tensor]): Whether all gradients of the step were finite: what
                :func:`all_finite` returns, or a bool, or a bool Tensor of one element.

        Returns:
            bool, always True.

        Raises:
            TypeError: If `grads_finite` is not such a flag.
            ValueError: If `grads_finite` has more or fewer elements than one.
        """
        self.watch("adjusting", None)
        overflow = ops.logical_not(as_flag(grads_finite))
        clean_steps = ops.select(overflow, ops.zeros_like(self.counter), self.counter + 1)
        full = clean_steps >= self.scale_window
        shrunk = self._shrunk()
        if self.hysteresis > 0:
            shrunk = ops.select(self._tolerate(overflow, full), self.scale_value + 0.0, shrunk)
        kept_or_grown = ops.select(full, self.scale_value * self.growth_factor, self.scale_value + 0.0)
        moved = ops.select(overflow, shrunk, kept_or_grown)
        scale_value = ops.minimum(ops.maximum(moved, self.min_loss_scale), self.max_loss_scale)
        ops.assign(self.counter, ops.select(full, ops.zeros_like(clean_steps), clean_steps))
        ops.assign(self.scale_value, scale_value)
        return True

    def _shrunk(self):
        if self.backoff_factor is None:
            return self.scale_value / self.scale_factor
        return self.scale_value * self.backoff_factor

    def _tolerate(self, overflow, full):
        """Return whether this overflow leaves the scale as it is, and count it."""
        spent = self.tolerated_overflows + 0
        tolerated = ops.logical_and(overflow, spent < self.hysteresis)
        restored = ops.logical_not(overflow) if self.consecutive_hysteresis else full
        spent = ops.select(restored, ops.zeros_like(spent), spent + ops.cast(tolerated, ms.int32))
        ops.assign(self.tolerated_overflows, spent)
        return tolerated

    def _check_state(self, scale_value, counter, tolerated_overflows=0):
        check_inside("load_state_dict", "scale_value", scale_value, self.min_loss_scale, self.max_loss_scale)
        check_int("load_state_dict", "counter", counter, 0)
        check_int("load_state_dict", "tolerated_overflows", tolerated_overflows, 0)


def as_flag(value):
    """Return `value` as a bool Tensor of shape ()."""
    if isinstance(value, Tensor):
        check_flag_tensor(ops.dtype(value), ops.shape(value))
        return ops.reshape(value, ())
    return Tensor(True) if bool_of(value) else Tensor(False)


@constexpr
def bool_of(value):
    """Return a flag that is no Tensor as a bool."""
    return check_flag("adjust", "grads_finite", value)


@constexpr
def check_flag_tensor(dtype, shape):
    """Raise, while a graph is compiled or outside one, unless this is a bool Tensor of one element."""
    rule = "a bool, or a bool Tensor of one element"
    if dtype != ms.bool_:
        raise TypeError(message("adjust", "grads_finite", rule, dtype))
    if shape not in ((), (1,)):
        raise ValueError(message("adjust", "grads_finite", rule, shape))
