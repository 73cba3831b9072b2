"""Where a dynamic manager's numbers live: on the host, or in the training step that it follows."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from mindspore import Parameter, Tensor, nn

from ms_lossscale.rule import ScaleRule


@dataclass
class HostState:
    """The numbers of a manager driven by hand."""

    loss_scale: float
    cur_iter: int = 1
    last_overflow_iter: int = 0
    bad_step: int = 0

    def update(self, rule: ScaleRule, overflow: bool) -> None:
        """Count one step."""
        if rule.moves(self.cur_iter - self.last_overflow_iter, overflow):
            self.loss_scale = rule.moved(self.loss_scale, overflow)
            self.last_overflow_iter = self.cur_iter
        self.bad_step = self.bad_step + 1 if overflow else 0
        self.cur_iter += 1

    def snapshot(self) -> HostState:
        """Return a copy of the numbers."""
        return HostState(**asdict(self))


class DeviceState:
    """The same numbers, read from and written to a step's Parameters."""

    def __init__(self, train_step: nn.Cell) -> None:
        self._parameters = {
            "loss_scale": train_step.scale_sense,
            "cur_iter": train_step.loss_scaling_manager.cur_iter,
            "last_overflow_iter": train_step.loss_scaling_manager.last_overflow_iter,
            "bad_step": train_step.consecutive_overflows,
        }

    def update(self, rule: ScaleRule, overflow: bool) -> None:
        """Do nothing: the step has counted already."""

    def snapshot(self) -> HostState:
        """Return a copy of the numbers as they are now."""
        return HostState(**{name: getattr(self, name) for name in self._parameters})


def _device_number(name: str) -> property:
    def read(self: DeviceState) -> float | int:
        return self._parameters[name].asnumpy().item()

    def write(self: DeviceState, value: float) -> None:
        parameter: Parameter = self._parameters[name]
        parameter.set_data(Tensor(value, parameter.dtype))

    return property(read, write)


for _name in ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step"):
    setattr(DeviceState, _name, _device_number(_name))
