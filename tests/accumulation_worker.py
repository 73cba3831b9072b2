"""One rank of two under msrun: two windows of two micro-steps, with an overflow on rank 1 in the second."""

import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.communication import get_rank, init

from ms_lossscale import TrainStep

RATE = 0.5


class Weighted(nn.Cell):
    """A loss whose gradient is its input."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(3), ms.float32), name="weight")

    def construct(self, x):
        return (self.weight * x).sum()


def gradient(rank, call):
    """Return the gradient of a rank in a call; one of them is infinite."""
    return np.full(3, np.inf) if (rank, call) == (1, 2) else np.arange(3) + 1.0 + rank + 3 * call


def expected(drop_window):
    """Return the weights after both windows: each moves them by the mean over what is kept."""
    first, second = ([gradient(rank, call) for rank in range(2) for call in calls] for calls in ((0, 1), (2, 3)))
    kept = [each for each in second if np.isfinite(each).all()]
    return -RATE * (np.mean(first, axis=0) + (0 if drop_window else np.mean(kept, axis=0)))


def train(rank, drop_window):
    network = Weighted()
    step = TrainStep(network, nn.SGD(network.trainable_params(), RATE), Tensor(8.0), accumulation_steps=2,
                     drop_window=drop_window, clip_norm=1e6).set_train()
    flags, outcomes = [], []
    for call in range(4):
        _, overflow, _ = step(Tensor(gradient(rank, call), ms.float32))
        flags.append(overflow.asnumpy().item())
        outcomes.append(step.last_outcome.asnumpy().item())
    return {"flags": flags, "outcomes": outcomes, "weights": network.weight.asnumpy(), "norm": step.get_global_norm(),
            "expected": expected(drop_window), "skipped": step.skipped_steps.asnumpy()}


def main():
    ms.set_context(device_target="CPU")
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=2)
    for name, mode in (("graph", ms.GRAPH_MODE), ("pynative", ms.PYNATIVE_MODE)):
        ms.set_context(mode=mode)
        for way in ("window", "micro-step"):
            numbers = train(get_rank(), way == "window")
            np.savez(Path(sys.argv[1]) / f"{name} {way} rank {get_rank()}.npz", **numbers)


if __name__ == "__main__":
    main()
