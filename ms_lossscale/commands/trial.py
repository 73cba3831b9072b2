"""A tiny training through clean and overflowing steps, on whatever device is current: does loss scaling work here?"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_lossscale.train_step import TrainOneStepWithLossScaleCell
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell

MODES = {"GRAPH": ms.GRAPH_MODE, "PYNATIVE": ms.PYNATIVE_MODE}
CHECKS = ("clean step applied", "overflow skipped", "state untouched", "stale flag ignored", "scale sequence right")
FIRST_SCALE, FACTOR, WINDOW = 2.0**10, 2, 2
# Clean, clean (the scale grows), overflow (it shrinks), clean after a stale flag, clean (it grows again).
SCALES = [2.0**10, 2.0**11, 2.0**10, 2.0**10, 2.0**11]


class Network(nn.Cell):
    """A float16 layer and a loss that is multiplied by its third input."""

    def __init__(self):
        super().__init__()
        weight = Tensor(np.linspace(-1, 1, 12).reshape(3, 4), ms.float32)
        self.layer = nn.Dense(4, 3, weight_init=weight, bias_init="zeros").to_float(ms.float16)

    def construct(self, x, label, factor):
        return ((ops.cast(self.layer(x), ms.float32) - label) ** 2).mean() * factor


class Trial:
    """The step, its data, and its state as the host sees it."""

    def __init__(self) -> None:
        network = Network()
        optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
        update_cell = DynamicLossScaleUpdateCell(FIRST_SCALE, FACTOR, WINDOW)
        self.step = TrainOneStepWithLossScaleCell(network, optimizer, update_cell).set_train()
        self.kept = [*network.trainable_params(), *optimizer.moments, optimizer.global_step]
        self.x = Tensor(np.linspace(-1, 1, 8).reshape(2, 4), ms.float32)
        self.label = Tensor(np.ones((2, 3)), ms.float32)
        self.scales = []

    def run(self, factor: float = 1.0) -> tuple[bool, bool, bool]:
        """Run a step; return whether it said overflow, whether the weights moved, and whether anything did."""
        before = [parameter.asnumpy().copy() for parameter in self.kept]
        _, overflow, scale = self.step(self.x, self.label, Tensor(factor, ms.float32))
        self.scales.append(scale.asnumpy().item())
        moved = [not np.array_equal(old, now.asnumpy()) for old, now in zip(before, self.kept)]
        return bool(overflow.asnumpy()), moved[0], any(moved)


def overflow_elsewhere() -> None:
    """Overflow in an operator that no step runs: on a device with a register it leaves a stale flag."""
    large = Tensor(np.full(8, 6e4), ms.float16)
    (large + large).asnumpy()


def try_out(mode: str) -> dict[str, bool]:
    """Train a few steps in "GRAPH" or "PYNATIVE" mode; return whether each of `CHECKS` holds."""
    before = ms.get_context("mode")
    ms.set_context(mode=MODES[mode])
    try:
        trial = Trial()
        first, second = trial.run(), trial.run()
        overflowed = trial.run(1e30)
        overflow_elsewhere()
        after_stale, last = trial.run(), trial.run()
    finally:
        ms.set_context(mode=before)
    applied = (False, True, True)
    passed = (first == second == last == applied, overflowed[0], not overflowed[2], after_stale == applied,
              trial.scales == SCALES)
    return dict(zip(CHECKS, passed))
