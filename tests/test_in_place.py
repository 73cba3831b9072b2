"""What is set or loaded after a step has run is what its compiled graph goes on with."""

import mindspore as ms
import pytest
from mindspore import Tensor
from poisoned import OPTIMIZERS, batch, bits, changed, numbers, with_loss

from ms_lossscale import DynamicLossScaleManager, TrainOneStepWithLossScaleCell, load_checkpoint


def make_step(optimizer="Momentum"):
    """Return a step, and the manager that follows it."""
    manager = DynamicLossScaleManager(1024.0, 2, 2)
    network = with_loss()
    step = TrainOneStepWithLossScaleCell(network, OPTIMIZERS[optimizer](network.trainable_params()),
                                         manager.get_update_cell()).set_train()
    manager.follow(step)
    return step, manager


def train(step, count):
    """Train `count` steps and return the bits of everything after each."""
    seen = []
    for seed in range(count):
        step(*batch(seed=seed))
        seen.append(bits(step.get_parameters()))
    return seen


@pytest.mark.parametrize("optimizer", ["Momentum", "Adam"])
def test_a_step_that_has_trained_goes_on_from_a_loaded_checkpoint(mode, optimizer, tmp_path):
    step, _ = make_step(optimizer)
    train(step, 2)
    ms.save_checkpoint(step, str(tmp_path / "step.ckpt"))
    expected = train(step, 3)
    load_checkpoint(step, tmp_path / "step.ckpt")
    assert [changed(*both) for both in zip(expected, train(step, 3))] == [set()] * 3


def test_a_compiled_function_takes_the_scale_that_was_set(mode):
    step, manager = make_step()

    @ms.jit
    def compiled(data, label):
        return step(data, label)

    def scale_after_a_step():
        return numbers(compiled(*batch())[2])[0]

    assert [scale_after_a_step() for _ in range(2)] == [1024.0, 2048.0]
    step.set_sense_scale(Tensor(8.0, ms.float32))
    assert [scale_after_a_step() for _ in range(2)] == [8.0, 16.0]
    manager.loss_scale, manager.last_overflow_iter = 64.0, 3
    assert scale_after_a_step() == 128.0
