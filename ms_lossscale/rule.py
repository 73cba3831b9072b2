"""The next-scale rule, in float32 on the host: the managers use it, the update cell is its device form.

Source: MindSpore's update cell. Overflow: ``s = s * backoff``. Every `window` clean steps in a row:
``s = s * growth``. Both restart the count of clean steps. Unlike MindSpore's, every step ends inside both bounds,
also one that began with a scale outside, such as the infinity in a checkpoint of MindSpore's own rule.

Hysteresis is DeepSpeed's and Megatron's: the first `hysteresis` overflows leave the scale as it is, later ones shrink
it. What was spent comes back when a window of clean steps is full, or, if counted `consecutive`, at any clean step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ms_lossscale._errors import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    check_bool,
    check_int,
    check_number,
    check_positive_int,
    check_scale,
)

MIN_LOSS_SCALE = 1.0
MAX_LOSS_SCALE = LARGEST_SCALE


def reciprocal(factor: float) -> float:
    """Return ``1 / factor`` as the device computes it: both in float32."""
    return float(np.float32(1) / np.float32(factor))


@dataclass
class ScaleState:
    """What the rule reads and writes; the names are those of MindSpore's manager."""

    loss_scale: float
    cur_iter: int = 1
    last_overflow_iter: int = 0
    bad_step: int = 0
    tolerated_overflows: int = 0


@dataclass(frozen=True)
class ScaleRule:
    """When the loss scale moves, and by how much; every number takes part in the arithmetic as a float32."""

    growth: float
    backoff: float
    window: int
    minimum: float = MIN_LOSS_SCALE
    maximum: float = MAX_LOSS_SCALE
    hysteresis: int = 0
    consecutive: bool = False

    def moves(self, clean_steps: int, overflow: bool) -> bool:
        """Return whether a step, the `clean_steps`-th since the last move, restarts the count of clean steps."""
        return overflow or clean_steps >= self.window

    def moved(self, scale: float, overflow: bool) -> float:
        """Return the scale after it shrank at an overflow, or grew."""
        return self._bounded(scale, self.backoff if overflow else self.growth)

    def _bounded(self, scale: float, factor: float) -> float:
        with np.errstate(over="ignore"):  # past the float32 range the maximum holds
            moved = np.float32(scale) * np.float32(factor)
        return float(min(max(moved, np.float32(self.minimum)), np.float32(self.maximum)))

    def update(self, state: ScaleState, overflow: bool) -> None:
        """Count one step in `state`."""
        moves = self.moves(state.cur_iter - state.last_overflow_iter, overflow)
        tolerated = overflow and state.tolerated_overflows < self.hysteresis
        after = self._bounded(state.loss_scale, 1) if tolerated or not moves else self.moved(state.loss_scale, overflow)
        if after != np.float32(state.loss_scale):  # else it stays the number that was given
            state.loss_scale = after
        if moves:
            state.last_overflow_iter = state.cur_iter
        if tolerated:
            state.tolerated_overflows += 1
        elif not overflow and (moves or self.consecutive):
            state.tolerated_overflows = 0
        state.bad_step = state.bad_step + 1 if overflow else 0
        state.cur_iter += 1


def check_inside(who: str, name: str, scale: float, minimum: float, maximum: float, remedy: str = "") -> float:
    """Raise unless `scale` lies inside the bounds, as given or as rounded to float32."""
    return check_scale(who, name, scale, min(minimum, float(np.float32(minimum))),
                       max(maximum, float(np.float32(maximum))), remedy)


def make_rule(who: str, scale_name: str, loss_scale: float, scale_factor: float, scale_window: int,
              min_loss_scale: float, max_loss_scale: float, growth_factor: float | None,
              backoff_factor: float | None, hysteresis: int, consecutive_hysteresis: bool) -> ScaleRule:
    """Return the rule for these arguments of `who`; raise TypeError or ValueError where one is wrong."""
    check_scale(who, "min_loss_scale", min_loss_scale)
    check_scale(who, "max_loss_scale", max_loss_scale, minimum=min_loss_scale)
    check_inside(who, scale_name, loss_scale, min_loss_scale, max_loss_scale,
                 remedy="The bounds are the keywords 'min_loss_scale' and 'max_loss_scale'.")
    growth, backoff = check_number(who, "scale_factor", scale_factor, 1, "a finite number >= 1"), None
    if growth_factor is not None:
        growth = check_number(who, "growth_factor", growth_factor, 1, "a finite number >= 1 or None")
    if backoff_factor is not None:
        rule = "a number in [2**-126, 1] or None"
        backoff = check_number(who, "backoff_factor", backoff_factor, SMALLEST_SCALE, rule, maximum=1)
    return ScaleRule(
        growth=growth,
        backoff=reciprocal(scale_factor) if backoff is None else backoff,
        window=check_positive_int(who, "scale_window", scale_window),
        minimum=min_loss_scale,
        maximum=max_loss_scale,
        hysteresis=check_int(who, "hysteresis", hysteresis, 0),
        consecutive=check_bool(who, "consecutive_hysteresis", consecutive_hysteresis))
