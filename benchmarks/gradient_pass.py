"""The pass over the gradients: multiply by the reciprocal of the scale, and tell whether one holds NaN or Inf."""

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, amp, nn, ops

import ms_lossscale
from benchmarks.step_tax import without_the_compiled_part
from benchmarks.timing import medians
from ms_lossscale.fused import UnscaleAndCheck
from ms_lossscale.gradients import Unscale
from ms_lossscale.overflow.host import HostCheck

SETS = {"64 x 1M": (64, (1024, 1024)), "60 x 256x256": (60, (256, 256)), "300 x 64x64": (300, (64, 64))}
QUICK_SETS = {"20 x 64x64": (20, (64, 64))}
GROWTH = {f"{count} x {side}x{side}": (count, (side, side)) for side in (16, 256) for count in (4, 32, 256)}
GROWING = ("one Mul each", "ours, in the step", "MindSpore, in the step")
REFERENCE = "one Mul each"
SCALE = 1024.0

_times = ops.MultitypeFuncGraph("times")
_divided = ops.MultitypeFuncGraph("divided")
_not_finite = ops.MultitypeFuncGraph("not_finite")


@_times.register("Tensor", "Tensor")
def _tensor_times(factor, grad):
    return grad * factor


@_divided.register("Tensor", "Tensor")
def _tensor_divided(scale, grad):
    return grad * ops.cast(ops.Reciprocal()(scale), ops.dtype(grad))


@_not_finite.register("Tensor")
def _tensor_not_finite(grad):
    return 1 - ops.cast(ops.isfinite(grad).all(), ms.float32)


class MulOnly(nn.Cell):
    """The reference: nothing is checked."""

    def __init__(self):
        super().__init__()
        self.hyper_map = ops.HyperMap()
        self.inverse = Parameter(Tensor(1 / SCALE, ms.float32), requires_grad=False)

    def construct(self, *grads):
        return self.hyper_map(ops.partial(_times, self.inverse), grads)


class OurPass(nn.Cell):
    """What the step does."""

    def __init__(self, grads):
        super().__init__()
        self.scale = Parameter(Tensor(SCALE, ms.float32), requires_grad=False)
        parts = SimpleNamespace(_unscale=Unscale(), grad_reducer=None, detector=HostCheck(False, len(grads)),
                                weights=grads)
        self.unscale_and_check = UnscaleAndCheck(parts, ms_lossscale.TrainOneStepWithLossScaleCell)

    def construct(self, *grads):
        return self.unscale_and_check(grads, self.scale)


class MindSporePass(nn.Cell):
    """What MindSpore's step does with gradients where it looks at them."""

    def __init__(self):
        super().__init__()
        self.hyper_map = ops.HyperMap()
        self.scale = Parameter(Tensor(SCALE, ms.float32), requires_grad=False)

    def construct(self, *grads):
        grads = self.hyper_map(ops.partial(_divided, self.scale), grads)
        return grads, ops.addn(self.hyper_map(_not_finite, grads)) > 0


class FunctionalPass(nn.Cell):
    """A functional scaler and `all_finite`, ours or MindSpore's."""

    def __init__(self, scaler, all_finite):
        super().__init__()
        self.scaler = scaler
        self.all_finite = all_finite

    def construct(self, *grads):
        grads = self.scaler.unscale(grads)
        return grads, self.all_finite(grads)


def numpy_multiply(arrays):
    """Return a call that multiplies in place, by 1: the product of many calls stays a normal number."""
    one = np.float32(1)

    def multiply():
        for array in arrays:
            np.multiply(array, one, out=array)

    return multiply


def torch_unscale(arrays):
    """Return a call of PyTorch's unscaling and check, in place; None where PyTorch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    parameters = [torch.nn.Parameter(torch.zeros(array.shape)) for array in arrays]
    for parameter, array in zip(parameters, arrays):
        parameter.grad = torch.from_numpy(array.copy())
    scaler, optimizer = torch.amp.GradScaler("cpu", init_scale=1.0), torch.optim.SGD(parameters, lr=0.0)
    scaler.scale(torch.ones(()))

    def unscale():
        scaler.unscale_(optimizer)
        scaler.update(1.0)

    return unscale


def variants(count, shape):
    """Return {name: call} over `count` gradients, each called once."""
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape, np.float32) for _ in range(count)]
    grads = [Tensor(array) for array in arrays]
    cells = {
        REFERENCE: MulOnly(),
        f"{REFERENCE}, again": MulOnly(),
        "ours, in the step": OurPass(grads),
        "ours, nothing compiled": without_the_compiled_part(OurPass, grads),
        "ours, functional": FunctionalPass(ms_lossscale.StaticLossScaler(SCALE), ms_lossscale.all_finite),
        "MindSpore, in the step": MindSporePass(),
        "MindSpore, functional": FunctionalPass(amp.StaticLossScaler(SCALE), amp.all_finite),
    }
    calls = {name: (lambda cell=cell: cell(*grads)) for name, cell in cells.items()}
    calls["NumPy, multiply in place"] = numpy_multiply(arrays)
    calls["PyTorch, unscale_"] = torch_unscale(arrays)
    calls = {name: call for name, call in calls.items() if call is not None}
    for call in calls.values():
        call()
    return calls


def measure(quick):
    """Return {set: {name: seconds}} in the mode that is set."""
    return {name: _seconds(variants(*numbers), numbers, quick) for name, numbers in
            (QUICK_SETS if quick else SETS).items()}


def measure_growth():
    """Return {set: {name: seconds}}: few and many gradients, small and large ones."""
    return {name: _seconds({each: call for each, call in variants(*numbers).items() if each in GROWING}, numbers)
            for name, numbers in GROWTH.items()}


def _seconds(calls, numbers, quick=False):
    large = numbers[0] * int(np.prod(numbers[1])) > 2**24
    return medians(calls, rounds=3 if quick else 7 if large else 15, repeats=1 if large else 3)
