"""Numbers held by Parameters, read and written by the host where they lie: outside a graph, on CPU."""

from __future__ import annotations

from functools import cache

from mindspore import Parameter, Tensor, context, nn

from ms_lossscale._versions import host_writes_arrive


@cache
def on_host() -> bool:
    """Return whether the host may write a Parameter where it lies; asked where a device target is in use already."""
    return on_cpu() and host_writes_arrive()


def on_cpu() -> bool:
    """Return whether the device target is CPU."""
    return context.get_context("device_target") == "CPU"


def read(parameter: Parameter) -> float | int:
    """Return the number that `parameter` holds, when everything started before is done."""
    return parameter.asnumpy().item()


def write(parameter: Parameter, number: float | int) -> None:
    """Write `number` into `parameter`, when everything started before is done."""
    parameter.asnumpy()[...] = number


class Snapshot(nn.Cell):
    """A copy of a Parameter as it is now."""

    def construct(self, parameter):
        return parameter + 0.0

    def __call__(self, parameter):
        return Tensor.from_numpy(parameter.asnumpy().copy()) if on_host() else self.construct(parameter)
