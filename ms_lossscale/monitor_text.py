"""What the monitor prints."""

from __future__ import annotations

import math

from ms_lossscale.reading import Reading


class Lines:
    """One line a record; while nothing but overflows comes, ever fewer."""

    def __init__(self) -> None:
        self._stuck = 0

    def line(self, record: dict) -> str | None:
        """Return the line of a record, or None if it says what the last ones said."""
        self._stuck = self._stuck + 1 if record["skipped"] and not record["applied"] else 0
        if self._stuck & (self._stuck - 1):  # no power of two
            return None
        loss = "" if record["loss"] is None else f"loss {record['loss']:.4g} | "
        row = record["consecutive_overflows"]
        rare = f" | no line until {self._stuck} more like it" if self._stuck > 1 else ""
        return (f"step {record['step']} | {loss}scale {show_scale(record['scale'])} | applied {record['applied']}, "
                f"skipped {record['skipped']} | {row} overflow{'' if row == 1 else 's'} in a row{rare}")


def summary(first: Reading, last: Reading, scales: tuple[float, float, float]) -> str:
    """Return one line on the whole training; `scales` are the lowest, the highest and the last."""
    applied, skipped = last.applied - first.applied, last.skipped - first.skipped
    share = 100 * skipped / max(applied + skipped, 1)
    lowest, highest = map(show_scale, scales[:2])
    return (f"loss scaling: {applied + skipped} steps, {applied} applied, {skipped} skipped ({share:.3g} %); "
            f"scale {show_scale(scales[2])}, seen from {lowest} to {highest}")


def show_scale(scale: float) -> str:
    """Return a power of two as one, any other number as it is."""
    mantissa, exponent = math.frexp(scale)
    return f"2**{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"
