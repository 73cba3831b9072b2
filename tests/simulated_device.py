"""
A device on the host: operators that saturate and raise a register, or make Inf, and stand-ins for what looks at them.

An operator here computes in float32 and rounds to float16, forward and backward. It runs where MindSpore runs it, in
its order, so a step that reads or clears the register at the wrong moment gets a wrong answer.
"""

from contextlib import contextmanager
from unittest import mock

import mindspore as ms
import numpy as np
from devices import on
from mindspore import nn, ops

from ms_lossscale.overflow import all_finite, register
from ms_lossscale.overflow.detector import Detector

HALF_MAX = np.float32(np.finfo(np.float16).max)


class SimulatedDevice:
    """
    The register, what raises it, and a record of what ran.

    Args:
        saturates (bool): Whether an overflow is clamped and raises the register, or is Inf and raises nothing.
    """

    def __init__(self, saturates):
        self.saturates = saturates
        self.raised = False
        self.trouble = set()
        self.events = []
        self.other_ranks = 0

    def compute(self, place, array):
        """Round to float16 as an operator does; one whose place is in `trouble` overflows in its first element."""
        self.events.append(place)
        with np.errstate(over="ignore"):
            half = np.array(array, np.float32).astype(np.float16).astype(np.float32)
        if place in self.trouble:
            half.reshape(-1)[0] = np.inf
        if not self.saturates:
            return half
        self.raised = self.raised or not np.isfinite(half).all()
        return np.clip(half, -HALF_MAX, HALF_MAX)

    def operator(self, place):
        """Return a graph operator that computes at `place`."""

        def run(array):
            return self.compute(place, array)

        return custom(run)

    def clear_status(self):
        """Return what stands in for NPUClearFloatStatusV2."""

        def run(status):
            self.events.append("clear")
            self.raised = False
            return np.zeros(8, np.int32)

        return custom(run)

    def get_status(self):
        """Return what stands in for NPUGetFloatStatusV2."""

        def run(status):
            self.events.append("get")
            return np.array([self.raised] + [0] * 7, np.int32)

        return custom(run)

    def reduce_flag(self, flags):
        """Add, in the dtype given, as an AllReduce does, the flags of as many ranks as `other_ranks` says."""
        self.events.append("reduce the flag")
        total = np.array(flags)
        total[0] += np.int64(self.other_ranks).astype(total.dtype)
        return total


def custom(function):
    """Return a host function of one array as a graph operator that keeps shape and dtype."""
    return ops.Custom(function, lambda shape: shape, lambda dtype: dtype, "pyfunc")


class SimulatedAllReduce(nn.Cell):
    """What stands in for the AllReduce of a flag. A host function gets no array of shape (), so it is reshaped."""

    def __init__(self, device):
        super().__init__()
        self.reduce_flag = custom(device.reduce_flag)

    def construct(self, flags):
        return ops.reshape(self.reduce_flag(ops.reshape(flags, (-1,))), flags.shape)


class Passing(nn.Cell):
    """An operator of the device in the forward pass, and one in the backward pass."""

    def __init__(self, device, name):
        super().__init__()
        self.forward_operator = device.operator(f"{name} forward")
        self.backward_operator = device.operator(f"{name} backward")

    def construct(self, x):
        return self.forward_operator(x)

    def bprop(self, x, out, dout):
        return (self.backward_operator(dout),)


def simulated_float_status():
    """Return what stands in for FloatStatus: 1.0 for a gradient with a NaN or Inf."""

    def run(array):
        return np.array([not np.isfinite(array).all()], np.float32)

    return ops.Custom(run, lambda shape: (1,), lambda dtype: ms.float32, "pyfunc")


class SimulatedAllFinite(nn.Cell):
    """What stands in for AllFinite: True for a NaN or Inf in any gradient."""

    def __init__(self):
        super().__init__()
        self.float_status = simulated_float_status()

    def construct(self, grads):
        total = self.float_status(grads[0])
        for grad in grads[1:]:
            total = total + self.float_status(grad)
        return total > 0


@contextmanager
def simulated(name, device):
    """Let steps be built for a device of devices.DEVICES (or "CPU") with stand-ins that run here."""
    if name == "CPU":
        yield
        return
    with on(name), mock.patch.object(register, "NPUClearFloatStatusV2", device.clear_status), \
            mock.patch.object(register, "NPUGetFloatStatusV2", device.get_status), \
            mock.patch.object(all_finite, "AllFinite", SimulatedAllFinite), \
            mock.patch.object(ops, "FloatStatus", simulated_float_status):
        yield


def join_ranks(step, device):
    """Make the detector of a step one of several ranks, whose overflows are `device.other_ranks`."""
    assert isinstance(step.detector, Detector)
    step.detector.distributed = True
    step.detector.allreduce = SimulatedAllReduce(device)
