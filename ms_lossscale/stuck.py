"""How many overflows in a row are too many, and what is said then."""

from __future__ import annotations

from ms_lossscale._errors import check_int

MAX_CONSECUTIVE_OVERFLOWS = 1000


def check_limit(owner: str, limit: int | None) -> int | None:
    """Return `limit`; raise unless it is an int from 1 on, or None for never."""
    return limit if limit is None else check_int(owner, "max_consecutive_overflows", limit, 1, " or None")


class StuckGuard:
    """Raises when more steps in a row overflowed than `limit`; None for never."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self._path: list[float] = []
        self._last_clean: int | None = None

    def see(self, scale: float, in_a_row: int, last_clean: int) -> None:
        """Note the scale after a step, the overflows in a row, and a number that tells the last clean step."""
        if in_a_row == 0:
            self._path.clear()
        elif last_clean != self._last_clean:
            del self._path[:-1]  # where the scale was before these overflows
        self._last_clean = last_clean
        if scale not in self._path[-1:]:
            self._path.append(scale)

    def check(self, scale: float, in_a_row: int, last_clean: int, minimum: float | None) -> None:
        """The same, then raise RuntimeError if there are too many; `minimum` is None for a scale that stays."""
        self.see(scale, in_a_row, last_clean)
        if self.limit is not None and in_a_row > self.limit:
            raise RuntimeError(
                f"{in_a_row} steps in a row overflowed, more than 'max_consecutive_overflows' ({self.limit}). "
                f"The loss scale {_way(self._path)}, {_place(scale, minimum)}. If the gradients overflow at scale 1, "
                "too, the cause is not the scale: look for NaN or Inf in the data, in the loss and in the parameters, "
                "and at the learning rate.")


def _way(path):
    scales = [f"{scale:g}" for scale in path]
    if len(scales) > 8:
        scales[1:-6] = ["..."]
    return f"went {' -> '.join(scales)}" if len(scales) > 1 else f"stayed at {scales[0]}"


def _place(scale, minimum):
    if minimum is None:
        return "which does not change by itself; try a smaller one"
    if scale <= minimum:
        return f"its minimum; to go below it, pass a smaller 'min_loss_scale' than {minimum:g}"
    return f"above its minimum ({minimum:g})"
