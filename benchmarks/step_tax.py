"""The training step: with loss scaling, with nothing but the `if` around the optimizer, and plain."""

import functools
import os
import statistics
from unittest import mock

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

import ms_lossscale
from benchmarks.timing import medians, once
from ms_lossscale import compiled

SCALE = 1024.0
PLAIN = "plain"
GATE = "the if alone"
TINY = "tiny: 3 x 64, batch 32"

_divided = ops.MultitypeFuncGraph("divided")


@_divided.register("Tensor", "Tensor")
def _tensor_divided(scale, grad):
    return grad * ops.cast(ops.Reciprocal()(scale), ops.dtype(grad))


class GateOnly(nn.TrainOneStepCell):
    """A flag that is never set, and the `if`: what any step that may skip the optimizer costs at least."""

    def __init__(self, network, optimizer):
        super().__init__(network, optimizer)
        self.overflow = Parameter(Tensor(False), name="overflow", requires_grad=False)

    def construct(self, *inputs):
        loss = self.network(*inputs)
        seed = ops.fill(loss.dtype, loss.shape, self.sens)
        grads = self.grad_reducer(self.grad(self.network, self.weights)(*inputs, seed))
        if not self.overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss


class Subclass(ms_lossscale.TrainOneStepWithLossScaleCell):
    """A step as MindSpore's documentation writes one of its own."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        scale = self.scale_sense
        status, scale = self.start_overflow_check(loss, scale)
        seed = ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))
        grads = self.grad(self.network, self.weights)(*inputs, seed)
        grads = self.hyper_map(ops.partial(_divided, scale), grads)
        grads = self.grad_reducer(grads)
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond, scale


def mindspore_step(network, optimizer):
    """Return MindSpore's own step; it runs on CPU if it takes it for an Ascend that makes Inf and NaN."""
    step = nn.TrainOneStepWithLossScaleCell(network, optimizer, nn.DynamicLossScaleUpdateCell(SCALE, 2, 1000))
    step.ascend_910b_target, step.enable_allfinite = True, False
    return step


def our_step(network, optimizer, step=ms_lossscale.TrainOneStepWithLossScaleCell):
    """Return this package's step."""
    return step(network, optimizer, ms_lossscale.DynamicLossScaleUpdateCell(SCALE, 2, 1000))


def without_the_compiled_part(build, *parts):
    """Return what `build` makes of `parts` where the package was installed without a C compiler."""
    with mock.patch.dict(os.environ, {compiled.SWITCH: "0"}):
        return build(*parts)


STEPS = {
    PLAIN: nn.TrainOneStepCell,
    "plain again": nn.TrainOneStepCell,
    GATE: GateOnly,
    "ours": our_step,
    "ours, nothing compiled": lambda network, optimizer: without_the_compiled_part(our_step, network, optimizer),
    "ours, a subclass": lambda network, optimizer: our_step(network, optimizer, Subclass),
    "MindSpore's": mindspore_step,
}
COMPILED_STEPS = (PLAIN, "ours", "ours, nothing compiled", "MindSpore's")
OPTIONS = {"clip_norm": 1.0, "clip_value": 1.0, "accumulation_steps": 4, "restore_buffers": True, "scaling": False}


def step_with(network, optimizer, **options):
    """Return this package's step with options."""
    if not options.get("scaling", True):
        return ms_lossscale.TrainStep(network, optimizer, **options)
    return our_step(network, optimizer, functools.partial(ms_lossscale.TrainStep, **options))


STEPS.update({f"{name}={value}": functools.partial(step_with, **{name: value})
              for name, value in OPTIONS.items()})


def dense(*widths):
    """Return a network of dense layers."""
    layers = []
    for taken, given in zip(widths, widths[1:]):
        layers += [nn.Dense(taken, given, weight_init="normal", bias_init="zeros"), nn.ReLU()]
    return nn.SequentialCell(layers[:-1])


def convolutional():
    """Return a network like LeNet, for 28 x 28 pixels."""
    return nn.SequentialCell(
        nn.Conv2d(1, 6, 5, pad_mode="same", weight_init="normal"), nn.ReLU(), nn.MaxPool2d(2, 2),
        nn.Conv2d(6, 16, 5, pad_mode="valid", weight_init="normal"), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
        dense(400, 120, 84, 10))


NETWORKS = {
    TINY: (lambda: dense(64, 64, 64, 64), (32, 64), (32, 64)),
    "wide: 4 x 2048, batch 8": (lambda: dense(2048, 2048, 2048, 2048, 2048), (8, 2048), (8, 2048)),
    "convolutional, batch 64": (convolutional, (64, 1, 28, 28), (64, 10)),
}


def build(step, network, input_shape, label_shape):
    """Return a call of the step named `step`, over fresh parameters."""
    ms.set_seed(1)
    loss = nn.WithLossCell(network(), nn.MSELoss())
    cell = STEPS[step](loss, nn.Momentum(loss.trainable_params(), learning_rate=1e-3, momentum=0.9))
    cell.set_train()
    random = np.random.default_rng(0)
    inputs = Tensor(random.standard_normal(input_shape, np.float32))
    labels = Tensor(random.standard_normal(label_shape, np.float32))
    return lambda: cell(inputs, labels)


def measure(quick):
    """Return {network: {step: seconds}} in the mode that is set."""
    seconds = {}
    for name, parts in _networks(quick):
        calls = {step: build(step, *parts) for step in STEPS}
        for call in calls.values():
            for _ in range(4):
                once(call)
        tiny = name == TINY
        seconds[name] = medians(calls, rounds=4 if quick else 30 if tiny else 12, repeats=3 if tiny else 1)
    return seconds


def measure_first_calls(quick):
    """Return {network: {step: seconds}} of first calls, medians of three steps; a graph is compiled there."""
    seconds = {}
    for name, parts in _networks(quick):
        once(build(PLAIN, *parts))  # what the process does once counts for no variant
        firsts = {step: [] for step in COMPILED_STEPS}
        for _ in range(1 if quick else 3):
            for step, values in firsts.items():
                values.append(once(build(step, *parts)))
        seconds[name] = {step: statistics.median(values) for step, values in firsts.items()}
    return seconds


def _networks(quick):
    return list(NETWORKS.items())[:1 if quick else None]
