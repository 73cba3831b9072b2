"""The host's side of a step: around a call it reads the step's numbers, now and then, and speaks up."""

from __future__ import annotations

import warnings

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_lossscale._errors import SeedOverflowWarning, check_bool, check_positive_int
from ms_lossscale.misuse import check_unscaled_loss
from ms_lossscale.stuck import MAX_CONSECUTIVE_OVERFLOWS, StuckGuard, check_limit

# The largest power of two that a float16 loss can carry as its seed; bfloat16 carries every scale.
LARGEST_FLOAT16_SCALE = 2.0**15


def check_watch_options(owner: str, *, max_consecutive_overflows: int | None = MAX_CONSECUTIVE_OVERFLOWS,
                        check_interval: int = 100, fit_loss_dtype: bool = False) -> dict:
    """Return the options of a :class:`Watch` by name; raise TypeError or ValueError where one is wrong."""
    return {"max_consecutive_overflows": check_limit(owner, max_consecutive_overflows),
            "check_interval": check_positive_int(owner, "check_interval", check_interval),
            "fit_loss_dtype": check_bool(owner, "fit_loss_dtype", fit_loss_dtype)}


class Watch:
    """
    Watches one training step from the host.

    Args:
        max_consecutive_overflows: More overflows in a row than these raise; None for never.
        check_interval: The number of calls after which the counter is read.
        fit_loss_dtype: Whether to lower a scale that the loss's dtype cannot carry, instead of warning.
    """

    def __init__(self, max_consecutive_overflows: int | None, check_interval: int, fit_loss_dtype: bool) -> None:
        self.guard = StuckGuard(max_consecutive_overflows)
        self._interval = check_interval
        self._fit_loss_dtype = fit_loss_dtype
        self._calls = 0
        self._first_scale: float | None = None

    def before(self, step: nn.Cell) -> None:
        """Note the scale of the first call."""
        if self._first_scale is None:
            self._first_scale = step.get_loss_scale()
            self.guard.see(self._first_scale, 0, 0)

    def after(self, step: nn.Cell, outputs: object, whole_sink: bool = False) -> None:
        """Look at the loss of the first call, and at the counter every `check_interval` calls or after a sink."""
        if self._calls == 0:
            self._check_seed(step, outputs[0] if isinstance(outputs, (tuple, list)) else outputs)
        self._calls += 1
        if whole_sink or self._calls % self._interval == 0:
            self.check_consecutive_overflows(step)

    def check_consecutive_overflows(self, step: nn.Cell) -> None:
        """Raise RuntimeError if more steps in a row overflowed than allowed."""
        if self.guard.limit is not None:
            self.guard.check(step.get_loss_scale(), step.consecutive_overflows.asnumpy().item(),
                             step.applied_steps.asnumpy().item(), _minimum(step))

    def _check_seed(self, step: nn.Cell, loss: object) -> None:
        if not getattr(step, "scaling", True):
            check_unscaled_loss(type(step).__name__, step.optimizer, step.network, loss)
        if not isinstance(loss, Tensor) or loss.dtype != ms.float16 or _float16_carries(self._first_scale):
            return
        if self._fit_loss_dtype and (_minimum(step) or 0) <= LARGEST_FLOAT16_SCALE:
            if step.get_loss_scale() > LARGEST_FLOAT16_SCALE:
                step.set_sense_scale(Tensor(LARGEST_FLOAT16_SCALE, ms.float32))
            return
        warnings.warn(
            f"The loss is float16 and the loss scale {self._first_scale:g}: as the seed of the backward pass it is "
            "Inf, so every step is skipped until the scale has shrunk to 2**15. Return a float32 loss, start from "
            "2**15 or less, or pass fit_loss_dtype=True.", SeedOverflowWarning, stacklevel=4)


def _float16_carries(scale):
    with np.errstate(over="ignore"):
        return np.isfinite(np.float16(scale))


def _minimum(step):
    minimum = getattr(step.loss_scaling_manager, "minimum_loss_scale", None)
    return None if minimum is None else minimum.asnumpy().item()
