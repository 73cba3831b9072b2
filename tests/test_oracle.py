"""A step is MindSpore's own step, bit for bit: losses, flags, scales, parameters and optimizer state."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore_version import V200
from poisoned import bits, changed

import ms_lossscale

STEPS, FAST_STEPS = 50, 20
# What the loss of a step is multiplied by; 2e38 overflows only because of the scale.
FACTORS = {0: np.inf, 7: np.nan, 8: -np.inf, 9: 2e38, 23: np.nan, 40: 2e38}
COUNTERS = {"applied_steps", "skipped_steps", "consecutive_overflows"}


class Perceptron(nn.Cell):
    """Dense layers and BatchNorm on vectors."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Dense(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 4))

    def construct(self, x, factor):
        return ops.square(self.layers(x[:, :6]) - x[:, 6:]).mean() * factor

    def batch(self, rng):
        return rng.randn(7, 10).astype(np.float32)


class Convolution(nn.Cell):
    """Convolutions, BatchNorm and pooling on images."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2, 2),
                                        nn.Conv2d(3, 2, 3, has_bias=True), nn.Flatten(), nn.Dense(18, 3))

    def construct(self, x, factor):
        return ops.reduce_sum(ops.log_softmax(self.layers(x), -1)[:, 1]) * -factor

    def batch(self, rng):
        return rng.rand(5, 1, 6, 6).astype(np.float32)


class Tokens(nn.Cell):
    """An embedding, LayerNorm and a gate on token numbers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.LayerNorm((6,))
        self.gate = nn.Dense(6, 6, activation="sigmoid")
        self.head = nn.Dense(6, 2)

    def construct(self, tokens, factor):
        x = self.norm(self.embedding(tokens))
        return ops.square(self.head((x * self.gate(x)).mean(1)) - 1.0).mean() * factor

    def batch(self, rng):
        return rng.randint(0, 11, (4, 5)).astype(np.int32)


NETWORKS = {"perceptron": Perceptron, "convolution": Convolution, "tokens": Tokens}
OPTIMIZERS = {
    "Momentum": lambda params: nn.Momentum(params, nn.ExponentialDecayLR(0.05, 0.9, 10), 0.9, weight_decay=1e-3),
    "Adam": lambda params: nn.Adam(params, [0.02 / (1 + step / 20) for step in range(STEPS)]),
    "AdamWeightDecay": lambda params: nn.AdamWeightDecay(params, 0.01, weight_decay=0.01),
    "SGD": lambda params: nn.SGD(params, 0.05, momentum=0.9, nesterov=True),
}
# The starting scale, the factor and the window; nn or ms_lossscale makes the cell.
DYNAMIC = {"dynamic x2": (2**12, 2, 3), "dynamic x3": (300000.0, 3, 4), "dynamic x1.1": (2**10, 1.1, 2),
           "dynamic x1.5": (2**14, 1.5, 5)}
TENSORS = {"Tensor ()": Tensor(1024.0, ms.float32), "Tensor (1,)": Tensor([1000.0], ms.float32)}

FAST = [("perceptron", "Momentum", "dynamic x3"),
        ("tokens", "AdamWeightDecay", "dynamic x1.1"), ("perceptron", "SGD", "fixed")]
# Three networks x three optimizers x three kinds of scale, whose variants take turns.
PLACES = [(network, optimizer) for network in NETWORKS for optimizer in list(OPTIMIZERS)[:3]]
SLOW = [(*place, scale) for number, place in enumerate(PLACES)
        for scale in ("fixed", list(DYNAMIC)[number % 4], list(TENSORS)[number % 2])]
SLOW.append(("convolution", "Adam", "Tensor (1,)"))


class InfNanStep(nn.TrainOneStepWithLossScaleCell):
    """The step of MindSpore 2.0.0 with the Inf/NaN check of later versions: it has none for CPU."""

    def start_overflow_check(self, pre_cond, compute_input):
        return Tensor([0] * 8, ms.int32), compute_input

    def get_overflow_status(self, status, compute_output):
        finite = Tensor(True)
        for grad in compute_output:
            finite = ops.logical_and(finite, ops.isfinite(grad).all())
        return ops.logical_not(finite)


def make_scale(cells, kind):
    """Return an update cell of `cells`, MindSpore's nn or this package, or a Tensor."""
    if kind in TENSORS:
        return Tensor(TENSORS[kind].asnumpy())
    if kind == "fixed":
        return cells.FixedLossScaleUpdateCell(768.0)
    return cells.DynamicLossScaleUpdateCell(*DYNAMIC[kind])


def make_step(cells, network, optimizer, scale, start):
    """Return a step whose network starts from `start`, parameters by name."""
    network = NETWORKS[network]()
    for parameter in network.get_parameters():
        parameter.set_data(Tensor(start[parameter.name]))
    cell = InfNanStep if cells is nn and V200 else cells.TrainOneStepWithLossScaleCell
    step = cell(network, OPTIMIZERS[optimizer](network.trainable_params()), make_scale(cells, scale)).set_train()
    if cells is nn:
        step.ascend_910b_target, step.enable_allfinite = True, False  # its Inf/NaN branch, which runs on CPU, too
    return step


def train(step, steps):
    """Train `steps` steps and return the bits of (loss, flag, scale) and of all parameters after every step."""
    rng = np.random.RandomState(5)
    seen = []
    for number in range(steps):
        batch = Tensor(step.network.batch(rng))
        outputs = step(batch, Tensor(FACTORS.get(number, 1.0), ms.float32))
        seen.append(([output.asnumpy().tobytes() for output in outputs], bits(step.get_parameters())))
    return seen


@pytest.mark.parametrize(("network", "optimizer", "scale", "steps"), [
    *[(*case, FAST_STEPS) for case in FAST], *[pytest.param(*case, STEPS, marks=pytest.mark.slow) for case in SLOW]])
def test_a_training_equals_mindspores_own_bit_for_bit(mode, network, optimizer, scale, steps):
    start = {parameter.name: parameter.asnumpy() for parameter in NETWORKS[network]().get_parameters()}
    theirs = train(make_step(nn, network, optimizer, scale, start), steps)
    ours = train(make_step(ms_lossscale, network, optimizer, scale, start), steps)
    for number, ((their_outputs, their_state), (our_outputs, our_state)) in enumerate(zip(theirs, ours)):
        assert our_outputs == their_outputs, f"step {number}"
        assert changed(their_state, our_state) == set(), f"step {number}"
        assert our_state.keys() - their_state.keys() == COUNTERS
    check_that_it_was_a_training(ours, scale, start)


def check_that_it_was_a_training(seen, scale, start):
    """Equal traces prove little if nothing happened in them."""
    flags = [outputs[1] == b"\x01" for outputs, _ in seen]
    assert flags == [number in FACTORS for number in range(len(seen))]
    scales = [np.frombuffer(outputs[2], np.float32).item() for outputs, _ in seen]
    moves = {np.sign(after - before) for before, after in zip(scales, scales[1:])}
    assert moves == ({-1, 0, 1} if scale in DYNAMIC else {0})
    final = seen[-1][1]
    assert all(start[name].tobytes() != final[name] for name in start)
