"""Trains a float16 network on the device target given, from a scale it cannot carry, and prints what happened."""

import json
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell


class Network(nn.Cell):
    """One float16 layer; `factor` scales the forward pass of a part whose gradient is zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Dense(4, 3, weight_init="ones", bias_init="zeros").to_float(ms.float16)

    def construct(self, x, label, factor):
        loss = ((ops.cast(self.layer(x), ms.float32) - label) ** 2).mean()
        aside = ops.clip_by_value(ops.stop_gradient(ops.cast(x, ms.float16) * ops.cast(factor, ms.float16)), -1.0, 1.0)
        return loss + ops.cast(aside, ms.float32).mean() * 0.0


def main(target, mode):
    ms.set_context(device_target=target, mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    network = Network()
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    step = TrainOneStepWithLossScaleCell(network, optimizer, DynamicLossScaleUpdateCell(2.0**24, 2, 1000)).set_train()
    x, label = Tensor(np.ones((2, 4)), ms.float32), Tensor(np.zeros((2, 3)), ms.float32)
    losses, overflows = [], []
    for index in range(30):
        # One large element aside in the last step: its product overflows, and neither loss nor gradients show it.
        loss, overflow, scale = step(x, label, Tensor(6e4 if index == 29 else 1.0, ms.float32) * (1.0 + (index == 29)))
        losses.append(float(loss.asnumpy()))
        overflows.append(bool(overflow.asnumpy()))
    print(json.dumps({"losses": losses, "overflows": overflows, "scale": float(scale.asnumpy()),
                      "detector": type(step.detector).__name__,
                      "finite": all(bool(np.isfinite(p.asnumpy()).all()) for p in step.get_parameters())}))


if __name__ == "__main__":
    main(*sys.argv[1:])
