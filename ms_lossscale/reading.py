"""What the monitor reads off a step: the device's counters, and by difference what happened since."""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
from mindspore import Tensor, nn

from ms_lossscale._errors import message
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell


@dataclass(frozen=True)
class Reading:
    """The counters of a step at one time."""

    applied: int
    skipped: int
    in_a_row: int

    @property
    def steps(self) -> int:
        """The steps since the training began, through every resume."""
        return self.applied + self.skipped


def read(step: nn.Cell) -> Reading:
    """Read the counters; this waits for the device."""
    counters = (step.applied_steps, step.skipped_steps, step.consecutive_overflows)
    return Reading(*(counter.asnumpy().item() for counter in counters))


def before_last_step(now: Reading) -> Reading:
    """Return what applied and skipped were one step before `now`."""
    skipped = int(now.in_a_row > 0)
    return Reading(now.applied + skipped - 1, now.skipped - skipped, 0)


def find_step(owner: str, name: str, cell: object) -> TrainOneStepWithLossScaleCell:
    """Return the step that `cell` is, or holds: in a data sink MindSpore wraps it."""
    cells = [inner for _, inner in cell.cells_and_names()] if isinstance(cell, nn.Cell) else []
    for inner in cells:
        if isinstance(inner, TrainOneStepWithLossScaleCell):
            return inner
    raise TypeError(message(owner, name, "a TrainOneStepWithLossScaleCell, or a Cell that holds one", cell,
                            "Use Model of ms_lossscale with a loss_scale_manager."))


def loss_of(outputs: object) -> float | None:
    """Return the mean of the loss, the first of a step's outputs; None if there is none."""
    loss = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    if not isinstance(loss, Tensor):
        return None
    return loss.astype(ms.float32).asnumpy().mean().item()


def norm_of(step: nn.Cell) -> float | None:
    """Return the norm that a step which clips its gradients keeps; None of any other."""
    norm = getattr(getattr(step, "clip_by_norm", None), "global_norm", None)
    return norm.asnumpy().item() if isinstance(norm, Tensor) else None
