"""jit with capture_mode="trace" records one run of a function, checks on the host and all: the package refuses it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mindspore_version import V200

import ms_lossscale

# A program of its own: MindSpore's recording fails in a stack that pytest is in, and leaves the process broken.
PROGRAM = """
import mindspore as ms
import numpy as np
from mindspore import Tensor
from ms_lossscale import DynamicLossScaler, all_finite

scaler = DynamicLossScaler(8.0, 2, 1)


def ask(grad):
    return all_finite((grad * 2.0,))


def scale(loss):
    return scaler.scale(loss)


def unscale(grad):
    return scaler.unscale(grad)


def adjust(finite):
    return scaler.adjust(finite)


flag, grad = Tensor(True), Tensor([1.0])
for function, argument in ((ask, grad), (scale, grad), (unscale, grad), (adjust, flag)):
    traced = ms.jit(function, capture_mode="trace")
    for _ in range(2):
        try:
            print(function.__name__, traced(argument))
        except RuntimeError as error:
            print(function.__name__, str(error).split(" is ")[0])
print(all_finite(Tensor([np.inf])), scaler.adjust(True), scaler, ms.jit(ask)(Tensor([1.0])))
"""
SAID = """\
ask For 'all_finite', jit with capture_mode="trace"
ask For 'all_finite', jit with capture_mode="trace"
scale For 'DynamicLossScaler', jit with capture_mode="trace"
scale For 'DynamicLossScaler', jit with capture_mode="trace"
unscale For 'DynamicLossScaler', jit with capture_mode="trace"
unscale For 'DynamicLossScaler', jit with capture_mode="trace"
adjust For 'DynamicLossScaler', jit with capture_mode="trace"
adjust For 'DynamicLossScaler', jit with capture_mode="trace"
False True DynamicLossScaler(scale_value=16.0, counter=0) True
"""


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 has no trace capture")
def test_functional_scalers_refuse_it_and_the_process_goes_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    where = str(Path(ms_lossscale.__file__).parent.parent)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": where})
    assert done.stdout == SAID, done.stderr


STEP_PROGRAM = """
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from ms_lossscale import JointStep, TrainOneStepWithLossScaleCell, TrainStep

x, y = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 2), np.float32))
ms.set_context(mode=ms.PYNATIVE_MODE)


def build(kind):
    network = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    return kind(nn.WithLossCell(network, nn.MSELoss()), optimizer, Tensor(8.0))


for step in (build(TrainOneStepWithLossScaleCell), build(TrainStep), JointStep([build(TrainStep), build(TrainStep)])):
    def train(x, y):
        return step(x, y)

    traced = ms.jit(train, capture_mode="trace")
    for _ in range(2):
        try:
            print(traced(x, y))
        except RuntimeError as error:
            print(str(error).split(" is ")[0])
    overflow = step(x, y)[1]
    print(overflow[0] if isinstance(overflow, tuple) else overflow)
"""


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 has no trace capture")
def test_steps_refuse_it_and_the_process_goes_on(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(STEP_PROGRAM, encoding="utf-8")
    where = str(Path(ms_lossscale.__file__).parent.parent)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": where})
    said = "".join(f"For '{kind}', jit with capture_mode=\"trace\"\n" * 2 + "False\n"
                   for kind in ("TrainOneStepWithLossScaleCell", "TrainStep", "JointStep"))
    assert done.stdout == said, done.stderr
