"""What is said when every step overflows, and how many in a row are too many."""

from __future__ import annotations

from ms_lossscale._errors import check_int

MAX_CONSECUTIVE_OVERFLOWS = 1000


def check_limit(owner: str, limit: int | None) -> int | None:
    """Return `limit`; raise unless it is an int from 1 on, or None for never."""
    return limit if limit is None else check_int(owner, "max_consecutive_overflows", limit, 1)


def stuck_error(in_a_row: int, limit: int, path: list[float], minimum: float | None) -> RuntimeError:
    """
    Return the error for `in_a_row` overflows.

    Args:
        in_a_row: Overflows since the last clean step.
        limit: How many were allowed.
        path: The scales seen meanwhile, the present one last.
        minimum: The least scale the rule goes to; None if the scale does not move by itself.
    """
    scales = [path[0]] + [after for before, after in zip(path, path[1:]) if after != before]
    if minimum is None:
        where = "which does not change by itself; try a smaller one"
    elif scales[-1] <= minimum:
        where = f"its minimum ({minimum:g}): a smaller scale needs a smaller 'min_loss_scale'"
    else:
        where = f"above its minimum ({minimum:g})"
    return RuntimeError(
        f"{in_a_row} steps in a row overflowed, more than 'max_consecutive_overflows' ({limit}). The loss scale went "
        f"{' -> '.join(f'{scale:g}' for scale in scales)}, {where}. If the gradients overflow at scale 1, too, the "
        "cause is not the scale: look for NaN or Inf in the data, in the loss and in the parameters, and at the "
        "learning rate.")


class PathOfScale:
    """The scales seen while steps overflow, from the last clean step on; at most the first and the last few."""

    def __init__(self) -> None:
        self.scales: list[float] = []

    def see(self, scale: float, overflows_in_a_row: int) -> None:
        """Note the present scale; a clean step starts the path anew."""
        if overflows_in_a_row == 0:
            self.scales.clear()
        if scale not in self.scales[-1:]:
            self.scales.append(scale)
        if len(self.scales) > 8:
            del self.scales[1]
