"""The next-scale rule, in float32 on the host: the managers use it, the update cell is its device form.

Source: MindSpore's update cell. Overflow: ``s = max(s * backoff, minimum)``. Every `window` clean steps in a
row: ``s = min(s * growth, maximum)``. Both restart the count of clean steps. Unlike MindSpore's, growth is capped.
"""

from dataclasses import dataclass

import numpy as np

MIN_LOSS_SCALE = 1.0
# Above it the reciprocal is subnormal, and a device that flushes subnormals would zero every gradient.
MAX_LOSS_SCALE = 2.0**126


def reciprocal(factor):
    """Return ``1 / factor`` as the device computes it: both in float32."""
    return float(np.float32(1) / np.float32(factor))


@dataclass(frozen=True)
class ScaleRule:
    """When the loss scale moves, and by how much; every number takes part in the arithmetic as a float32."""

    growth: float
    backoff: float
    window: int
    minimum: float = MIN_LOSS_SCALE
    maximum: float = MAX_LOSS_SCALE

    def moves(self, clean_steps: int, overflow: bool) -> bool:
        """Return whether a step, the `clean_steps`-th since the last move, moves the scale."""
        return overflow or clean_steps >= self.window

    def moved(self, scale: float, overflow: bool) -> float:
        """Return the scale after a move."""
        with np.errstate(over="ignore"):  # past the float32 range the maximum holds
            if overflow:
                return float(max(np.float32(scale) * np.float32(self.backoff), np.float32(self.minimum)))
            return float(min(np.float32(scale) * np.float32(self.growth), np.float32(self.maximum)))
