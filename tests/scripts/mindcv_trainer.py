"""mindcv's create_trainer with every way of scaling; prints a line for each: what was asked, what came of it."""

import itertools
import sys

import mindspore as ms
import numpy as np
from mindcv.utils import create_trainer
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset

ms.set_context(mode=ms.PYNATIVE_MODE if "PYNATIVE" in sys.argv else ms.GRAPH_MODE, device_target="Ascend")
X = np.random.RandomState(0).randn(8, 6).astype(np.float32)


class Losses(ms.Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_step_end(self, run_context):
        outputs = run_context.original_args().net_outputs
        loss = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        self.values.append(float(loss.asnumpy()))


def train(level, scaling, options):
    ms.set_seed(1)
    network = nn.SequentialCell(nn.Dense(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dense(5, 2))
    kind, drop = scaling
    # Without dropping and without options nothing but the optimizer unscales.
    optimizer_scale = 1.0 if drop or options else 64.0
    optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9, loss_scale=optimizer_scale)
    model = create_trainer(network, nn.CrossEntropyLoss(), optimizer, {"accuracy": nn.Accuracy()}, level, None,
                           loss_scale_type=kind, loss_scale=64.0, drop_overflow_update=drop, **options)
    data = NumpySlicesDataset((X, (X[:, 0] > 0).astype(np.int32)), shuffle=False).batch(4)
    losses = Losses()
    model.train(4, data, callbacks=[losses], dataset_sink_mode=False)
    ours = any(base.__module__.startswith("ms_lossscale") for base in type(model.train_network).__mro__)
    falls = np.isfinite(losses.values).all() and losses.values[-1] < losses.values[0]
    print(level, kind, drop, *options, "ours" if ours else "plain", "falls" if falls else losses.values, flush=True)


OPTIONS = [{}, {"ema": True}, {"clip_grad": True, "clip_value": 1.0}]
if "PYNATIVE" not in sys.argv:
    # mindcv's accumulation assigns an int to a Parameter: in PYNATIVE mode MindSpore refuses that.
    OPTIONS += [{"gradient_accumulation_steps": 2},
                {"ema": True, "clip_grad": True, "clip_value": 1.0, "gradient_accumulation_steps": 2}]
for case in itertools.product(("O0", "O2"), (("fixed", False), ("fixed", True), ("dynamic", True)), OPTIONS):
    train(*case)
