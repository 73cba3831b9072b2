"""A training step of the script's own in Model, as MindSpore's tutorial on custom training has it."""

# ruff: noqa: UP008  graph mode needs the arguments of super(), and the repositories write them

import sys

import mindspore as ms
import mindspore.nn as nn
import numpy as np
from mindspore import ops
from mindspore.dataset import GeneratorDataset
from mindspore.nn.wrap.loss_scale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell
from mindspore.train import Callback, Model

ms.set_context(mode=ms.GRAPH_MODE)
if hasattr(ms, "set_device"):
    ms.set_device("Ascend", 3)
else:
    ms.set_context(device_target="Ascend", device_id=3)


class Source:
    def __len__(self):
        return 16

    def __getitem__(self, index):
        x = np.linspace(-1, 1, 48).reshape(16, 3)[index].astype(np.float32)
        return x, x[:1] * np.float32(np.inf if 8 <= index < 12 else 2)


class ClippedStep(TrainOneStepWithLossScaleCell):
    def __init__(self, network, optimizer, scale_sense):
        super(ClippedStep, self).__init__(network, optimizer, scale_sense)
        self.grad = ops.GradOperation(get_by_list=True, sens_param=True)

    def construct(self, x, label):
        loss = self.network(x, label)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        grads = self.grad(self.network, self.weights)(x, label, ops.ones_like(loss) * scale)
        grads = ops.clip_by_global_norm(grads, 1024.0)
        cond = self.get_overflow_status(status, grads)
        if not self.process_loss_scale(cond):
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond, self.scale_sense.value()


class Print(Callback):
    def step_end(self, run_context):
        _, overflow, scale = run_context.original_args().net_outputs
        print(f"{overflow.asnumpy()} {scale.asnumpy():g}")


if __name__ == "__main__":
    network = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")
    optimizer = nn.Momentum(network.trainable_params(), learning_rate=1e-4, momentum=0.9)
    step = ClippedStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, DynamicLossScaleUpdateCell(64, 2, 2))
    data = GeneratorDataset(Source(), ["x", "label"], shuffle=False, num_parallel_workers=2).batch(4)
    Model(step).train(1, data, callbacks=[Print()], dataset_sink_mode=False)
    print(isinstance(step, nn.TrainOneStepWithLossScaleCell), sys.argv[1:])
    sys.exit(7)
