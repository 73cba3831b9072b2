"""The state of a manager whose scale lives in a training step: read from and written to the step's Parameters."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_lossscale._versions import assign_now
from ms_lossscale.rule import ScaleState


class DeviceState:
    """A :class:`~ms_lossscale.rule.ScaleState` whose numbers are those of `train_step`."""

    def __init__(self, train_step: nn.Cell) -> None:
        self.train_step = train_step


def snapshot(state: ScaleState | DeviceState) -> ScaleState:
    """Return the numbers as they are now, on the host."""
    return ScaleState(**{field.name: getattr(state, field.name) for field in fields(ScaleState)})


def _parameter(step: nn.Cell, name: str) -> Parameter | None:
    if name == "loss_scale":
        return step.scale_sense
    if name == "bad_step":
        return step.consecutive_overflows
    # A cell without hysteresis has nothing to count.
    return getattr(step.loss_scaling_manager, name, None)


def _device_number(name: str) -> property:
    def read(self: DeviceState) -> float | int:
        parameter = _parameter(self.train_step, name)
        return 0 if parameter is None else parameter.asnumpy().item()

    def write(self: DeviceState, value: float) -> None:
        parameter = _parameter(self.train_step, name)
        if parameter is not None:
            assign_now(parameter, Tensor(np.full(parameter.shape, value), parameter.dtype))

    return property(read, write)


for _field in fields(ScaleState):
    setattr(DeviceState, _field.name, _device_number(_field.name))
