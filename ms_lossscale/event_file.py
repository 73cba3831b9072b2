"""TensorBoard event files, written by tensorboardX."""

from __future__ import annotations

from os import PathLike, fspath

# In TensorBoard a slash makes a group of charts.
TAGS = {"scale": "loss_scale/scale", "skipped": "loss_scale/skipped_steps", "loss": "loss_scale/loss",
        "gradient_norm": "loss_scale/gradient_norm"}


class EventFile:
    """Appends a reading's numbers to a new event file; a resumed training hides what it repeats from TensorBoard."""

    def __init__(self, folder: str | PathLike, last_step: int) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("LossScaleMonitor(tensorboard=...) needs tensorboardX: pip install "
                                      "'ms_lossscale[tensorboard]'", name="tensorboardX") from error
        # TensorBoard drops what older files say of steps from purge_step on.
        purge = {"purge_step": last_step + 1} if last_step else {}
        self._writer = SummaryWriter(fspath(folder), filename_suffix=f".from{last_step}", **purge)

    def write(self, record: dict, skipped_steps: int) -> None:
        """Append one number a chart; skipped steps are counted from the start of the training."""
        for name, value in {**record, "skipped": skipped_steps}.items():
            if name in TAGS:
                self._writer.add_scalar(TAGS[name], value, record["step"])
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
