"""A training loop with functions, as MindSpore's tutorial on mixed precision has it."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.amp import DynamicLossScaler, all_finite

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="Ascend")
network = nn.Dense(3, 1, weight_init="ones", bias_init="zeros")
loss_fn = nn.MSELoss()
optimizer = nn.SGD(network.trainable_params(), learning_rate=0.1)
scaler = DynamicLossScaler(scale_value=2**10, scale_factor=2, scale_window=2)


def forward(data, label):
    loss = loss_fn(network(data), label)
    return scaler.scale(loss), loss


gradients = ms.value_and_grad(forward, None, optimizer.parameters, has_aux=True)


@ms.jit
def train_step(data, label):
    (_, loss), grads = gradients(data, label)
    grads = scaler.unscale(grads)
    finite = all_finite(grads)
    scaler.adjust(finite)
    if finite:
        loss = ops.depend(loss, optimizer(grads))
    return loss, finite


for factor in (1, 1, float("inf"), 1):
    x = Tensor(np.linspace(-1, 1, 12).reshape(4, 3), ms.float32)
    _, finite = train_step(x, x[:, :1] * factor)
    print(bool(finite.asnumpy()), f"{scaler.scale_value.asnumpy().item():g}")
