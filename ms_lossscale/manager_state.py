"""The state of a manager whose scale lives in a training step: read from and written to the step's Parameters."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_lossscale.rule import ScaleState


class DeviceState:
    """A :class:`~ms_lossscale.rule.ScaleState` whose numbers are a step's."""

    def __init__(self, train_step: nn.Cell) -> None:
        cell = train_step.loss_scaling_manager
        self._parameters = {
            "loss_scale": train_step.scale_sense,
            "cur_iter": cell.cur_iter,
            "last_overflow_iter": cell.last_overflow_iter,
            "bad_step": train_step.consecutive_overflows,
            # A cell without hysteresis has nothing to count.
            "tolerated_overflows": getattr(cell, "tolerated_overflows", None),
        }


def snapshot(state: ScaleState | DeviceState) -> ScaleState:
    """Return the numbers as they are now, on the host."""
    return ScaleState(**{field.name: getattr(state, field.name) for field in fields(ScaleState)})


def _device_number(name: str) -> property:
    def read(self: DeviceState) -> float | int:
        parameter = self._parameters[name]
        return 0 if parameter is None else parameter.asnumpy().item()

    def write(self: DeviceState, value: float) -> None:
        parameter: Parameter | None = self._parameters[name]
        if parameter is not None:
            # Not reshaped as a Tensor: that is a view, which PYNATIVE mode refuses to assign to later.
            parameter.set_data(Tensor(np.full(parameter.shape, value), parameter.dtype))

    return property(read, write)


for _field in fields(ScaleState):
    setattr(DeviceState, _field.name, _device_number(_field.name))
