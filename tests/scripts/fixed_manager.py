"""Model with a fixed manager, as MindSpore's tutorial on mixed precision has it. Nothing here knows of ms_lossscale."""

import argparse

import mindspore as ms
import numpy as np
from mindspore import context, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, Model
from mindspore.train.loss_scale_manager import FixedLossScaleManager


class Print(Callback):
    def step_end(self, run_context):
        _, overflow, scale = run_context.original_args().net_outputs
        print(f"{overflow.asnumpy()} {scale.asnumpy():g}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="GRAPH")
    options = parser.parse_args()
    context.set_context(mode=getattr(context, f"{options.mode}_MODE"), device_target="Ascend")
    x = np.linspace(-1, 1, 48).reshape(16, 3).astype(np.float32)
    y = x[:, :1] * 2
    y[8:12] = np.inf
    network = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
    manager = FixedLossScaleManager(1024, drop_overflow_update=True)
    model = Model(network, loss_fn=nn.MSELoss(), optimizer=optimizer, amp_level="O0", loss_scale_manager=manager)
    model.train(1, NumpySlicesDataset((x, y), shuffle=False).batch(4), callbacks=[Print()], dataset_sink_mode=False)
    print(isinstance(manager, ms.FixedLossScaleManager), np.isfinite(network.weight.asnumpy()).all())
