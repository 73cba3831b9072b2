"""JointStep: two networks against each other, with one scale or two, skipping together or apart."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from poisoned import bits, changed, numbers

from ms_lossscale import DynamicLossScaleUpdateCell, JointStep, TrainStep, load_checkpoint

INF = float("inf")
GENERATOR, DISCRIMINATOR = 0, 1


def normal(*shape):
    return Tensor(np.random.RandomState(sum(shape)).randn(*shape) / 2, ms.float32)


class GeneratorLoss(nn.Cell):
    """How far the discriminator is from taking the generated for real."""

    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def construct(self, real, noise, factors):
        return ops.square(self.discriminator(self.generator(noise)) - 1.0).mean() * factors[0]


class DiscriminatorLoss(nn.Cell):
    """How far it is from telling real from generated."""

    def __init__(self, generator, discriminator):
        super().__init__()
        self.generator, self.discriminator = generator, discriminator

    def construct(self, real, noise, factors):
        fake = ops.stop_gradient(self.generator(noise))
        loss = ops.square(self.discriminator(real) - 1.0) + ops.square(self.discriminator(fake))
        return loss.mean() * factors[1]


def steps_of(scales=(64.0, 16.0), moving=True, **options):
    generator = nn.SequentialCell(nn.Dense(3, 4, normal(4, 3), has_bias=False), nn.BatchNorm1d(4))
    discriminator = nn.Dense(4, 1, normal(1, 4), has_bias=False)
    networks = GeneratorLoss(generator, discriminator), DiscriminatorLoss(generator, discriminator)
    return [TrainStep(network, nn.SGD(own.trainable_params(), 0.1),
                      DynamicLossScaleUpdateCell(scale, 2, 2) if moving else Tensor(scale), **options).set_train()
            for network, own, scale in zip(networks, (generator, discriminator), scales)]


def batch(generator=1.0, discriminator=1.0):
    rng = np.random.RandomState(5)
    return (Tensor(rng.randn(6, 4), ms.float32), Tensor(rng.randn(6, 3), ms.float32),
            Tensor([generator, discriminator], ms.float32))


def weights(step):
    return [bits(each.weights) for each in step.steps]


def run(step, *factors):
    """Return which networks moved, which said overflow, and the scales."""
    before = weights(step)
    _, overflows, scales = step(*batch(*factors))
    overflows, scales = numbers(*overflows), numbers(*scales)
    return [len(changed(*each)) > 0 for each in zip(before, weights(step))], list(overflows), list(scales)


def outcomes(step):
    return [(each.get_outcome(), *numbers(each.applied_steps, each.skipped_steps)) for each in step.steps]


def test_two_scales_move_apart_and_an_overflow_of_one_skips_both(mode):
    step = JointStep(steps_of())
    assert run(step) == ([True, True], [False, False], [64, 16])
    assert run(step, INF) == ([False, False], [True, False], [32, 32])
    assert outcomes(step) == [("skipped", 1, 1)] * 2
    assert run(step, 1.0, INF) == ([False, False], [False, True], [32, 16])
    assert run(step) == ([True, True], [False, False], [64, 16])


def test_one_scale_is_moved_once_a_step_by_an_overflow_of_any(mode):
    step = JointStep(steps_of(), shared_scale=True)
    assert run(step) == ([True, True], [False, False], [64, 64])
    assert run(step, 1.0, INF) == ([False, False], [False, True], [32, 32])
    assert run(step) == ([True, True], [False, False], [32, 32])
    assert run(step) == ([True, True], [False, False], [64, 64])
    assert outcomes(step) == [("applied", 3, 1)] * 2


def test_apart_each_skips_its_own_steps_only(mode):
    step = JointStep(steps_of(), skip_together=False)
    assert run(step, 1.0, INF) == ([True, False], [False, True], [64, 8])
    assert outcomes(step) == [("applied", 1, 0), ("skipped", 0, 1)]
    assert run(step, INF) == ([False, True], [True, False], [32, 8])


@pytest.mark.slow
def test_one_scale_and_apart_is_what_one_scaler_for_two_optimizers_does(mode):
    step = JointStep(steps_of(), shared_scale=True, skip_together=False)
    assert run(step, 1.0, INF) == ([True, False], [False, True], [32, 32])
    assert run(step) == ([True, True], [False, False], [32, 32])


def test_both_gradients_are_taken_before_either_update(mode):
    alone, joint = steps_of(moving=False), JointStep(steps_of(moving=False))
    # Each of these two sees the other's weights as they were at the start.
    first, second = alone[GENERATOR], steps_of(moving=False)[DISCRIMINATOR]
    losses = [step(*batch())[0].asnumpy() for step in (first, second)]
    together = [loss.asnumpy() for loss in joint(*batch())[0]]
    np.testing.assert_allclose(together, losses, rtol=1e-6)
    for mine, theirs in zip(joint.steps, (first, second)):
        for own, other in zip(mine.weights, theirs.weights):
            np.testing.assert_allclose(own.asnumpy(), other.asnumpy(), rtol=1e-6)


@pytest.mark.slow
def test_the_options_of_its_steps_hold(mode):
    step = JointStep(steps_of(clip_norm=1e-3, restore_buffers=True))
    norm = step.steps[GENERATOR].network.generator[1]
    before = bits([norm.moving_mean])
    assert run(step, INF)[0] == [False, False]
    assert changed(before, bits([norm.moving_mean])) == set()
    start = [weight.asnumpy().copy() for weight in step.steps[DISCRIMINATOR].weights]
    run(step)
    moved = [weight.asnumpy() - old for weight, old in zip(step.steps[DISCRIMINATOR].weights, start)]
    assert np.sqrt(sum((each**2).sum() for each in moved)) == pytest.approx(1e-4, rel=1e-3)
    assert step.steps[DISCRIMINATOR].get_global_norm() > 1e-3


def test_a_checkpoint_of_both_resumes_both(graph_mode):
    one, other = JointStep(steps_of(), shared_scale=True), JointStep(steps_of((8.0, 8.0)), shared_scale=True)
    ms.save_checkpoint(one, "both.ckpt")
    assert load_checkpoint(other, "both.ckpt") == {}
    assert [step.get_loss_scale() for step in other.steps] == [64, 64]
    assert changed(bits(one.get_parameters()), bits(other.get_parameters())) == set()


def twice():
    """Two steps over one network."""
    step = steps_of()[GENERATOR]
    return [step, TrainStep(step.network, nn.SGD(step.weights, 0.1), Tensor(step.get_loss_scale()))]


@pytest.mark.parametrize("steps, error, text", [
    (twice, ValueError, "must train different parameters, but '.*weight' is trained by two"),
    (lambda: steps_of()[:1] * 2, ValueError, "must train different parameters"),
    (lambda: None, TypeError, "'steps' must be a list of TrainStep"),
    (lambda: [nn.Dense(2, 2)] * 2, TypeError, "'steps' must be a list of TrainStep"),
    (lambda: steps_of()[:1], ValueError, "two or more"),
    (lambda: steps_of(accumulation_steps=2), ValueError, "accumulation_steps")])
def test_what_is_no_list_of_steps_is_refused(steps, error, text):
    with pytest.raises(error, match=text):
        JointStep(steps())
