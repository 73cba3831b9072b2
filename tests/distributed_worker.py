"""One rank of a data-parallel job under msrun: trains 30 mixed steps each way, and writes what it ended with."""

import os
import sys
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from device_checks import BACKWARD, Network
from mindspore import Tensor, nn
from mindspore.communication import get_group_size, get_rank, init
from simulated_device import SimulatedDevice, simulated

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell

STEPS, SCALE, WINDOW = 30, 2.0**10, 3
WAYS = [(mode, name) for mode in ("graph", "pynative") for name in ("CPU", "910A")]


TURNS = [step for step in range(STEPS) if step * step % 7 == 1]


def overflowing_rank(step, ranks):
    """Return the only rank that overflows in a step, or None; every rank has its turns."""
    return TURNS.index(step) % ranks if step in TURNS else None


def train(mode, name, rank, ranks):
    """Train one way; return every number that must be the same on all ranks."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    # On a 910A the gradients stay finite and only the register tells; on CPU the gradients are Inf.
    device = SimulatedDevice(saturates=name == "910A")
    network = Network(device)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    with simulated(name, device):
        step = TrainOneStepWithLossScaleCell(network, optimizer, DynamicLossScaleUpdateCell(SCALE, 2, WINDOW))
    step.set_train()
    rng = np.random.RandomState(rank)
    told = []
    for index in range(STEPS):
        device.trouble = {BACKWARD} if overflowing_rank(index, ranks) == rank else set()
        x, label = Tensor(rng.randn(5, 3), ms.float32), Tensor(rng.randn(5, 2), ms.float32)
        _, overflow, scale = step(x, label)
        told.append((float(overflow.asnumpy()), float(scale.asnumpy())))
    return {"told": np.array(told), **{p.name: p.asnumpy() for p in step.get_parameters()}}


def main():
    ms.set_context(device_target="CPU")
    init()
    rank, ranks = get_rank(), get_group_size()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=ranks)
    for mode, name in WAYS:
        np.savez(Path(sys.argv[1]) / f"{mode} {name} rank {rank}.npz", **train(mode, name, rank, ranks))


if __name__ == "__main__":
    main()
