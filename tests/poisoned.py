"""A network whose gradients can be poisoned one at a time, and the state that a skipped step must not touch."""

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn, ops

ROWS, FEATURES, HIDDEN, OUTPUTS = 6, 4, 5, 2
# The gradients that can be poisoned, by place among all of them.
PLACES = ("first", "middle", "last")
OPTIMIZERS = {
    "Momentum": lambda params: nn.Momentum(params, 0.1, 0.9),
    "SGD": lambda params: nn.SGD(params, 0.1, momentum=0.9),
    "Adam": lambda params: nn.Adam(params, 0.05),
    "AdamWeightDecay": lambda params: nn.AdamWeightDecay(params, 0.05, weight_decay=0.01),
    "scheduled Momentum": lambda params: nn.Momentum(params, nn.ExponentialDecayLR(0.2, 0.5, 2), 0.9),
    "listed Adam": lambda params: nn.Adam(params, [0.05 / step for step in range(1, 40)]),
}


class Network(nn.Cell):
    """Three layers."""

    def __init__(self, batch_norm=False):
        super().__init__()
        self.first = nn.Dense(FEATURES, HIDDEN, weight_init=_normal(HIDDEN, FEATURES), bias_init="zeros")
        self.norm = nn.BatchNorm1d(HIDDEN) if batch_norm else nn.Sigmoid()
        self.middle = nn.Dense(HIDDEN, HIDDEN, weight_init=_normal(HIDDEN, HIDDEN), bias_init="zeros")
        self.last = nn.Dense(HIDDEN, OUTPUTS, weight_init=_normal(OUTPUTS, HIDDEN), bias_init="zeros")
        self.tanh = nn.Tanh()

    def construct(self, x):
        return self.last(self.tanh(self.middle(self.norm(self.first(x)))))


class PoisonedLoss(nn.Cell):
    """Mean squared error; the label's last three columns hold the numbers that poison the gradients at `PLACES`."""

    def __init__(self, network):
        super().__init__()
        weights = network.trainable_params()
        self.poisoned = ParameterTuple([weights[0], weights[len(weights) // 2], weights[-1]])
        self.width = OUTPUTS

    def construct(self, output, label):
        loss = ops.square(output - label[:, :self.width]).mean()
        numbers = label[0, self.width:]
        for place, weight in enumerate(self.poisoned):
            loss = loss + numbers[place] * weight.sum()
        return loss


def _normal(*shape):
    return Tensor(np.random.RandomState(sum(shape)).randn(*shape) / 2, ms.float32)


def batch(place=None, number=0.0, seed=0):
    """Return (data, label); every element of the gradient at `place` gets `number` added."""
    rng = np.random.RandomState(seed)
    data, label = rng.randn(ROWS, FEATURES), np.sin(rng.randn(ROWS, OUTPUTS))
    numbers = np.zeros((ROWS, len(PLACES)))
    if place is not None:
        numbers[0, PLACES.index(place)] = number
    return Tensor(data, ms.float32), Tensor(np.concatenate([label, numbers], axis=1), ms.float32)


def with_loss(batch_norm=False):
    """Return the network with its loss."""
    network = Network(batch_norm)
    return nn.WithLossCell(network, PoisonedLoss(network))


def bits(parameters):
    """Return the bytes of each parameter by name: equal bytes are equal bits, of NaN and -0, too."""
    return {parameter.name: parameter.asnumpy().tobytes() for parameter in parameters}


def gated(step):
    """Return the bits of all that the optimizer owns: parameters, moments, powers, global step, learning rate."""
    return bits(step.optimizer.get_parameters())


def changed(before, after):
    """Return the names whose bits differ."""
    return {name for name in before if before[name] != after[name]}


def weight_names(step):
    """Return the names of the parameters that are trained."""
    return {parameter.name for parameter in step.weights}


def numbers(*tensors):
    """Return Tensors of one element as Python numbers."""
    return tuple(tensor.asnumpy().item() for tensor in tensors)


def counters(step):
    """Return (applied, skipped, overflows in a row)."""
    return numbers(step.applied_steps, step.skipped_steps, step.consecutive_overflows)
