"""What a step must do on any device, as checks that run on a simulated one; the mutants must fail one of them."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from simulated_device import Passing, SimulatedDevice, join_ranks, simulated

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell

SCALE = 2.0**10
FORWARD, BACKWARD, REDUCTION = "hidden forward", "hidden backward", "reduction"
ASIDE = "aside forward"  # its value, once clamped, changes neither loss nor gradients: only the register tells


class Network(nn.Cell):
    """Two layers with an operator of the device after each, one more operator aside, and a loss."""

    def __init__(self, device):
        super().__init__()
        rng = np.random.RandomState(3)
        self.first = nn.Dense(3, 4, weight_init=Tensor(rng.randn(4, 3), ms.float32), has_bias=False)
        self.second = nn.Dense(4, 2, weight_init=Tensor(rng.randn(2, 4), ms.float32), bias_init="zeros")
        self.hidden = Passing(device, "hidden")
        self.output = Passing(device, "output")
        self.aside = Passing(device, "aside")

    def construct(self, x, label):
        loss = ((self.output(self.second(self.hidden(self.first(x)))) - label) ** 2).mean()
        return loss + self.aside(x).mean() * 0.0


class Reduction(nn.Cell):
    """A reduction over ranks whose sum can overflow."""

    def __init__(self, device):
        super().__init__()
        self.total = device.operator(REDUCTION)

    def construct(self, grads):
        return (self.total(grads[0]),) + grads[1:]  # noqa: RUF005  MindSpore 2.0.0 compiles no star


class NoisyMomentum(nn.Momentum):
    """An optimizer that runs an operator of the device."""

    def __init__(self, device, *args):
        super().__init__(*args)
        self.noise = device.operator("optimizer")

    def construct(self, gradients):
        noisy = gradients[0] + self.noise(gradients[0]) * 0.0
        gradients = (noisy,) + gradients[1:]  # noqa: RUF005
        return super(NoisyMomentum, self).construct(gradients)  # noqa: UP008  graph mode needs the class


class Training:
    """A step on a simulated device, with its data."""

    def __init__(self, name, cell=TrainOneStepWithLossScaleCell, scale=SCALE, window=3, ranks=False):
        self.device = SimulatedDevice(saturates=name in ("910A", "910B saturation"))
        self.network = Network(self.device)
        self.optimizer = NoisyMomentum(self.device, self.network.trainable_params(), 0.05, 0.9)
        update_cell = DynamicLossScaleUpdateCell(scale, 2, window)
        with simulated(name, self.device):
            self.step = cell(self.network, self.optimizer, update_cell).set_train()
        self.step.grad_reducer = Reduction(self.device)
        if ranks:
            join_ranks(self.step, self.device)
        rng = np.random.RandomState(4)
        self.x, self.label = Tensor(rng.randn(5, 3), ms.float32), Tensor(rng.randn(5, 2), ms.float32)

    def state(self):
        """Return every number a skipped step must leave alone."""
        constant = ("learning_rate", "momentum", "global_step")  # 2.0.0 counts no step at a constant rate
        return [each.asnumpy().copy() for each in self.optimizer.get_parameters() if each.name not in constant]

    def run(self, *trouble):
        """Run one step with overflow at these places; return whether it said overflow, and whether it was applied."""
        before = self.state()
        self.device.trouble = set(trouble)
        self.device.events.clear()
        _, overflow, _ = self.step(self.x, self.label)
        said = bool(overflow.asnumpy())
        after = self.state()  # PYNATIVE mode: now the optimizer, too, has run
        self.device.trouble = set()
        changed = [not np.array_equal(old, new) for old, new in zip(before, after)]
        assert all(changed) or not any(changed), "a part of the state was updated"
        return said, all(changed)

    def scale(self):
        return self.step.get_loss_scale()


APPLIED, SKIPPED = (False, True), (True, False)


def check_a_clean_step_is_applied(training):
    assert training.run() == APPLIED
    assert training.scale() == SCALE


def check_overflow_skips_the_step_and_the_next_is_applied(training, place):
    assert training.run(place) == SKIPPED
    assert training.scale() == SCALE / 2
    assert training.run() == APPLIED
    assert training.scale() == SCALE / 2


def check_a_flag_from_before_is_ignored(training):
    training.device.raised = True
    assert training.run() == APPLIED


def check_a_flag_from_evaluation_is_ignored(training):
    training.device.trouble = {FORWARD}
    training.network(training.x, training.label).asnumpy()
    assert training.device.raised
    assert training.run() == APPLIED


def check_a_flag_from_the_optimizer_is_ignored(training):
    assert training.run("optimizer") == APPLIED
    assert training.device.raised
    assert training.run() == APPLIED


def check_the_register_is_clean_before_the_gate(training):
    for trouble in ((), (BACKWARD,)):
        training.run(*trouble)
        events = [event for event in training.device.events if event != "optimizer"]
        assert events[0] == events[-1] == "clear"
        assert events.count("clear") == 2


def check_the_forward_pass_runs_once_and_is_watched(training):
    check_each_operator_runs_once(training)
    check_overflow_skips_the_step_and_the_next_is_applied(training, ASIDE)


def check_each_operator_runs_once(training):
    training.run()
    for place in (FORWARD, BACKWARD, "output forward", "output backward", REDUCTION):
        assert training.device.events.count(place) == 1, place


def check_an_overflow_of_another_rank_skips_the_step(training, ranks=1):
    training.device.other_ranks = ranks
    assert training.run() == SKIPPED
    training.device.other_ranks = 0
    assert training.run() == APPLIED


def history(training, steps):
    """Train with overflows of every kind; return scales, flags and the final state."""
    troubles = [(), (), (FORWARD,), (), (BACKWARD,), (), (), (), (REDUCTION,), (), (FORWARD, BACKWARD), ()]
    told = []
    for index in range(steps):
        said, applied = training.run(*troubles[index % len(troubles)])
        told.append((said, applied, training.scale()))
    return told, training.state()


def check_the_history_equals(training, reference, steps=16):
    (told, state), (told_by_reference, state_of_reference) = history(training, steps), reference
    assert told == told_by_reference
    for ours, theirs in zip(state, state_of_reference):
        np.testing.assert_array_equal(ours, theirs)
