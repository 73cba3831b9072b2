"""Model with a dynamic manager at O3, as MindSpore's tutorial on mixed precision has it."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn
from mindspore.dataset import NumpySlicesDataset

ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        weight = Tensor(np.linspace(-1, 1, 24).reshape(3, 8), ms.float32)
        self.layer = nn.Dense(8, 3, weight_init=weight, has_bias=False)

    def construct(self, x):
        return self.layer(x)


x = np.random.RandomState(0).randn(64, 8).astype(np.float32)
network = Network()
optimizer = nn.Adam(network.trainable_params(), learning_rate=0.01)
manager = amp.DynamicLossScaleManager(init_loss_scale=2**20, scale_factor=2, scale_window=1000)
model = ms.Model(network, nn.MSELoss(), optimizer, amp_level="O3", loss_scale_manager=manager)
model.train(1, NumpySlicesDataset((x, x[:, :3]), shuffle=False).batch(4), dataset_sink_mode=False)
scale = model.train_network.scale_sense.asnumpy().item()
print(manager.get_loss_scale() == scale, scale < 2**20, np.isfinite(network.layer.weight.asnumpy()).all())
