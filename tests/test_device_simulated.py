"""Whole trainings on simulated devices: an overflow skips its step and only its step, wherever it happens."""

import functools

import device_checks as checks
import mindspore as ms
import pytest
from device_checks import APPLIED, ASIDE, BACKWARD, FORWARD, REDUCTION, SKIPPED, Training, history
from devices import DEVICES
from mindspore import ops

from ms_lossscale import TrainOneStepWithLossScaleCell, _versions

every_device = pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.skipif(device.detector == "all_finite" and _versions.AllFinite is None,
                                                reason="MindSpore 2.0.0 has no AllFinite"))
    for name, device in DEVICES.items()])
every_register = pytest.mark.parametrize("name", ["910A", "910B saturation"])
STEPS = 14


@functools.cache
def training_on(name, mode):
    """Compile one step for a device and a mode, for all tests that start from the same state."""
    training = Training(name)
    return training, [(p, p.asnumpy().copy()) for p in training.step.get_parameters()]


@pytest.fixture
def training(name, mode):
    """A step as it was when it was built."""
    training, start = training_on(name, mode)
    for parameter, value in start:
        ops.assign(parameter, ms.Tensor(value))  # set_data does not reach what only the branch of the gate holds
    training.device.raised = False
    return training


def start_hard(training):
    """Let a training start from a scale that float16 cannot carry, so that it overflows by itself, too."""
    training.step.set_sense_scale(ms.Tensor(2.0**20, ms.float32))
    return training


@functools.cache
def on_cpu(mode):
    """The same training on the CPU's own path: scales, flags and the final state."""
    return history(start_hard(Training("CPU")), STEPS)


@every_device
def test_scales_flags_and_parameters_equal_the_cpu_path(training, mode):
    told, _ = on_cpu(mode)
    assert [said for said, _, _ in told].count(True) >= 6
    assert [said for said, _, _ in told].count(False) >= 6
    checks.check_the_history_equals(start_hard(training), on_cpu(mode), STEPS)


@every_device
def test_a_clean_step_is_applied(training):
    checks.check_a_clean_step_is_applied(training)


@every_device
@pytest.mark.parametrize("place", [FORWARD, BACKWARD, REDUCTION])
def test_an_overflow_at_one_place_skips_its_step_and_only_its_step(training, place):
    checks.check_overflow_skips_the_step_and_the_next_is_applied(training, place)


@every_register
def test_an_overflow_that_neither_loss_nor_gradients_show_skips_its_step(training):
    checks.check_overflow_skips_the_step_and_the_next_is_applied(training, ASIDE)


@pytest.mark.parametrize("name", ["910B IsFinite", "GPU"])
def test_without_a_register_an_overflow_that_the_gradients_do_not_show_is_not_one(training):
    assert training.run(ASIDE) == APPLIED


@every_device
def test_forward_and_backward_run_once(training):
    checks.check_each_operator_runs_once(training)


@every_register
def test_a_flag_that_something_left_before_the_step_is_ignored(training):
    checks.check_a_flag_from_before_is_ignored(training)


@every_register
def test_a_flag_that_evaluation_left_is_ignored(training):
    checks.check_a_flag_from_evaluation_is_ignored(training)


@every_register
def test_a_flag_that_the_optimizer_left_is_ignored(training):
    checks.check_a_flag_from_the_optimizer_is_ignored(training)


@every_register
def test_the_register_is_cleared_first_and_last(training):
    checks.check_the_register_is_clean_before_the_gate(training)


@pytest.mark.parametrize("name", ["910A", "GPU", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "910B saturation", "910B IsFinite"))])
def test_one_overflowing_rank_skips_the_step_everywhere(name, mode):
    training = Training(name, ranks=True)
    checks.check_an_overflow_of_another_rank_skips_the_step(training)
    checks.check_an_overflow_of_another_rank_skips_the_step(training, ranks=256)


class ClearedFirst(TrainOneStepWithLossScaleCell):
    """A step of one's own as the docs recommend it: the check starts before the network."""

    def construct(self, x, label):
        status, inputs = self.start_overflow_check(self.scale_sense, (x, label))
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))
        grads = self.grad_reducer(self.unscale(grads))
        overflow = self.get_overflow_status(status, grads)
        if not self.process_loss_scale(overflow):
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, overflow, self.scale_sense.value()


class ClearedBetween(TrainOneStepWithLossScaleCell):
    """A step of one's own as MindSpore 2.0 wrote it: the check starts between the loss and the gradients."""

    def construct(self, x, label):
        loss = self.network(x, label)
        status, scale = self.start_overflow_check(loss, self.scale_sense)
        seed = ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))
        grads = self.grad(self.network, self.weights)(x, label, seed)
        grads = self.grad_reducer(self.unscale(grads))
        overflow = self.get_overflow_status(status, grads)
        if not self.process_loss_scale(overflow):
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, overflow, self.scale_sense.value()


def test_a_step_of_ones_own_that_starts_the_check_first_sees_everything(mode):
    training = Training("910A", cell=ClearedFirst)
    checks.check_a_flag_from_before_is_ignored(training)
    for place in (ASIDE, FORWARD, BACKWARD, REDUCTION):
        assert training.run(place) == SKIPPED
        assert training.run() == APPLIED


def test_a_step_of_ones_own_that_starts_the_check_after_the_loss_forgets_earlier_flags(mode):
    training = Training("910A", cell=ClearedBetween)
    checks.check_a_flag_from_before_is_ignored(training)
    assert training.run(ASIDE) == APPLIED  # as with MindSpore's methods called there
    for place in (BACKWARD, REDUCTION):
        assert training.run(place) == SKIPPED
        assert training.run() == APPLIED
