"""The host's side of a step: after a call it reads the step's counters, now and then, and speaks up."""

from __future__ import annotations

import warnings

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_lossscale._errors import SeedOverflowWarning, check_bool, check_positive_int
from ms_lossscale.stuck import PathOfScale, check_limit, stuck_error

# The largest power of two that a float16 loss can carry as its seed; bfloat16 carries every scale.
LARGEST_FLOAT16_SCALE = 2.0**15


class Watch:
    """
    Watches one training step from the host.

    Args:
        max_consecutive_overflows: More overflows in a row than these raise; None for never.
        check_interval: The number of calls after which the counter is read.
        fit_loss_dtype: Whether to lower a scale that the loss's dtype cannot carry, instead of warning.
    """

    def __init__(self, owner: str, max_consecutive_overflows: int | None, check_interval: int,
                 fit_loss_dtype: bool) -> None:
        self._limit = check_limit(owner, max_consecutive_overflows)
        self._interval = check_positive_int(owner, "check_interval", check_interval)
        self._fit_loss_dtype = check_bool(owner, "fit_loss_dtype", fit_loss_dtype)
        self._calls = 0
        self._path = PathOfScale()

    def after_call(self, step: nn.Cell, outputs: object) -> None:
        """Look at the first call's loss, and at the counter every `check_interval` calls."""
        if self._calls == 0:
            self._path.see(step.get_loss_scale(), 0)
            self._check_seed(step, outputs[0] if isinstance(outputs, tuple) else outputs)
        self._calls += 1
        if self._calls % self._interval == 0:
            self.check_consecutive_overflows(step)

    def check_consecutive_overflows(self, step: nn.Cell) -> None:
        """Raise RuntimeError if more steps in a row overflowed than allowed."""
        if self._limit is None:
            return
        in_a_row = step.consecutive_overflows.asnumpy().item()
        self._path.see(step.get_loss_scale(), in_a_row)
        if in_a_row > self._limit:
            minimum = getattr(step.loss_scaling_manager, "minimum_loss_scale", None)
            raise stuck_error(in_a_row, self._limit, self._path.scales,
                              None if minimum is None else minimum.asnumpy().item())

    def _check_seed(self, step: nn.Cell, loss: object) -> None:
        scale = step.get_loss_scale()
        if not isinstance(loss, Tensor) or loss.dtype != ms.float16 or scale <= np.finfo(np.float16).max:
            return
        if self._fit_loss_dtype:
            step.set_sense_scale(Tensor(LARGEST_FLOAT16_SCALE, ms.float32))
            return
        warnings.warn(
            f"The loss is float16 and the loss scale {scale:g}: as the seed of the backward pass it is Inf, so steps "
            "are skipped until the scale has shrunk. Return a float32 loss, start from 2**15 or less, or build the "
            "step with fit_loss_dtype=True.", SeedOverflowWarning, stacklevel=4)
