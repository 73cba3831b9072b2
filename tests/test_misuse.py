"""What is said when a step or a Model is built in a way that trains wrongly, and what is not."""

import gc
import weakref

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
import pytest
from mindspore import Tensor, amp, boost, nn, ops
from mindspore_version import V200

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    LossScaleWarning,
    Model,
    NoLossScaleWarning,
    OptimizerScaleWarning,
    ScaleMismatchWarning,
    SharedParametersWarning,
    TrainOneStepWithLossScaleCell,
    TrainStep,
    UncheckedUpdateWarning,
    build_train_network,
    misuse,
)

SCALE = Tensor(1024.0)
X, Y = Tensor(np.ones((2, 3), np.float32)), Tensor(np.ones((2, 2), np.float32))


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch):
    monkeypatch.setattr(misuse, "_said", {UncheckedUpdateWarning})


def dense(**options):
    network = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
    return network, nn.Momentum(network.trainable_params(), 0.125, 0.5, **options)


def with_loss(network):
    return nn.WithLossCell(network, nn.MSELoss())


def step_of(network, optimizer, scale=SCALE, kind=TrainOneStepWithLossScaleCell, **options):
    return kind(with_loss(network), optimizer, scale, **options)


def model_of(network, optimizer, **options):
    return Model(network, nn.MSELoss(), optimizer, **options)


def network_of(network, optimizer, **options):
    options["level"] = options.pop("amp_level", "O0")
    return build_train_network(network, optimizer, nn.MSELoss(), **options)


BUILDERS = pytest.mark.parametrize("build", [model_of, network_of])


class OwnStep(TrainOneStepWithLossScaleCell):
    """As most code in the field writes it."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.hyper_map(ops.partial(grad_scale, self.scale_sense), self.weights)
        return ops.depend(loss, self.optimizer(grads))


grad_scale = ops.MultitypeFuncGraph("grad_scale")


class NothingDivided(TrainOneStepWithLossScaleCell):
    """The optimizer divides."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))
        return ops.depend(loss, self.optimizer(grads))


# An optimizer that divides, too.

class StepWithMethods(TrainOneStepWithLossScaleCell):
    """As this package's pages write it."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))
        return ops.depend(loss, self.optimizer(self.unscale(grads)))


@pytest.mark.parametrize("kind", [TrainOneStepWithLossScaleCell, TrainStep, OwnStep, StepWithMethods])
def test_an_optimizer_with_a_scale_of_its_own_is_reported(kind):
    what = f"'{kind.__name__}'.* 'loss_scale' is 512, .*Leave it at 1.0"
    with pytest.warns(OptimizerScaleWarning, match=what) as said:
        step_of(*dense(loss_scale=512.0), kind=kind)
    assert len(said) == 1


@BUILDERS
def test_an_optimizer_with_a_scale_of_its_own_is_reported_where_the_model_is_built(build):
    with pytest.warns(OptimizerScaleWarning) as said:
        build(*dense(loss_scale=1024.0), loss_scale_manager=DynamicLossScaleManager(1024))
    assert len(said) == 1


def test_the_warning_points_at_the_line_that_builds():
    with pytest.warns(OptimizerScaleWarning) as said:
        step_of(*dense(loss_scale=2.0))
        model_of(*dense(loss_scale=2.0), loss_scale_manager=FixedLossScaleManager(8))
    assert [warning.filename for warning in said] == [__file__, __file__]


def test_a_step_that_leaves_the_division_to_the_optimizer_is_left_alone():
    step_of(*dense(loss_scale=1024.0), kind=NothingDivided)


def test_a_step_that_does_not_scale_is_left_alone():
    step_of(*dense(loss_scale=1024.0), Tensor(1.0))
    step_of(*dense(loss_scale=1024.0), None, TrainStep, scaling=False)


def test_a_moving_scale_that_starts_at_one_is_no_step_without_scaling():
    with pytest.warns(OptimizerScaleWarning):
        step_of(*dense(loss_scale=1024.0), DynamicLossScaleUpdateCell(1, 2, 100))


def test_an_optimizer_without_a_scale_is_left_alone():
    network, _ = dense()

    class Own(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.parameters = ms.ParameterTuple(network.trainable_params())
            self.loss_scale = False  # no scale, but whether there is one

        def construct(self, grads):
            return grads

    step_of(network, Own())


# A manager that drops no update.

@BUILDERS
@pytest.mark.parametrize("manager", [FixedLossScaleManager, amp.FixedLossScaleManager])
@pytest.mark.parametrize("own", [1.0, 512.0])
def test_another_scale_in_the_optimizer_than_in_the_manager_is_reported(build, manager, own):
    with pytest.warns(ScaleMismatchWarning, match=f"by 1024, but .* {own:g}, and .* optimizer loss_scale=1024"):
        build(*dense(loss_scale=own), loss_scale_manager=manager(1024, False))


@BUILDERS
@pytest.mark.parametrize("scale", [1024.0, 0.1 * 12344])
def test_the_documented_recipe_of_equal_scales_is_not_called_a_mismatch(build, scale):
    build(*dense(loss_scale=scale), loss_scale_manager=FixedLossScaleManager(np.float32(scale), False))


@BUILDERS
def test_a_manager_that_drops_no_update_is_reported_once_in_a_process(build, monkeypatch):
    monkeypatch.setattr(misuse, "_said", set())
    with pytest.warns(UncheckedUpdateWarning, match="drop_overflow_update=True") as said:
        for _ in range(2):
            build(*dense(loss_scale=8.0), loss_scale_manager=FixedLossScaleManager(8, False))
    assert len(said) == 1


# Float16 without scaling.

@BUILDERS
def test_float16_layers_without_scaling_are_reported(build):
    network = nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 2).to_float(ms.float16))
    with pytest.warns(NoLossScaleWarning, match="the layer '.*1' is float16 .*DynamicLossScaleManager"):
        build(network, nn.SGD(network.trainable_params(), 0.1))


@BUILDERS
def test_float16_parameters_without_scaling_are_reported(build):
    network, _ = dense()
    network.to_float(ms.float32)
    network.weight.set_dtype(ms.float16)
    with pytest.warns(NoLossScaleWarning, match="the parameter 'weight'"):
        build(network, nn.SGD(network.trainable_params(), 0.1))


@BUILDERS
@pytest.mark.parametrize("level", ["O2", "O3", *(pytest.param(level, marks=pytest.mark.skipif(
    V200, reason="MindSpore 2.0.0 cannot build this level on CPU")) for level in ("O1", "auto"))])
def test_an_amp_level_without_scaling_is_reported(build, level):
    with pytest.warns(NoLossScaleWarning) as said:
        build(*dense(), amp_level=level, loss_scale_manager=None)
    assert len(said) == 1


def test_a_step_that_only_checks_is_reported_in_float16():
    with pytest.warns(NoLossScaleWarning) as said:
        model_of(*dense(), amp_level="O3", scaling=False)
        network, optimizer = dense()
        step_of(network.to_float(ms.float16), optimizer, None, TrainStep, scaling=False)
    assert len(said) == 2
    assert "'Model'" in str(said[0].message) and "'TrainStep'" in str(said[1].message)
    assert str(said[1].message).endswith("Give it a 'scale_sense'.")


class HalfLoss(nn.Cell):
    """Computes in float32 and returns its loss in another dtype, which only a call shows."""

    def __init__(self, network, dtype=ms.float16):
        super().__init__()
        self.network, self.dtype = network, dtype

    def construct(self, x, y):
        return ops.cast(ops.square(self.network(x) - y).mean(), self.dtype)


def test_a_float16_loss_that_nothing_scales_is_reported_at_the_first_call_and_once(mode):
    network, optimizer = dense()
    step = build_train_network(HalfLoss(network), optimizer)
    assert isinstance(step, nn.TrainOneStepCell)
    with pytest.warns(NoLossScaleWarning, match="'build_train_network', the loss is float16") as said:
        losses = [step(X, Y).asnumpy().item() for _ in range(2)]
    assert len(said) == 1 and said[0].filename == __file__
    assert losses[1] < losses[0]
    assert type(step) is nn.TrainOneStepCell


def test_a_float16_loss_in_a_model_is_reported_once(mode):
    data = ds.NumpySlicesDataset((X.asnumpy(), Y.asnumpy()), shuffle=False).batch(1)
    network, optimizer = dense()
    model = Model(HalfLoss(network), optimizer=optimizer)
    with pytest.warns(NoLossScaleWarning, match="'Model', the loss is float16") as said:
        for _ in range(2):
            model.train(1, data, dataset_sink_mode=False)
    assert len(said) == 1 and said[0].filename == __file__


def test_a_float16_loss_of_a_step_that_only_checks_is_reported_once(mode):
    network, optimizer = dense()
    step = TrainStep(HalfLoss(network), optimizer, scaling=False)
    with pytest.warns(NoLossScaleWarning, match="'TrainStep', the loss is float16") as said:
        for _ in range(2):
            step(X, Y)[0].asnumpy()
    assert len(said) == 1 and said[0].filename == __file__


def test_a_float32_loss_and_one_scaled_by_hand_are_left_alone(graph_mode):
    for dtype, own in ((ms.float32, 1.0), (ms.float16, 1024.0)):
        network, optimizer = dense(loss_scale=own)
        step = build_train_network(HalfLoss(network, dtype), optimizer)
        step(X, Y).asnumpy()
        assert type(step) is nn.TrainOneStepCell


def test_a_float16_loss_that_is_scaled_is_left_alone(graph_mode):
    network, optimizer = dense()
    step_of(network, optimizer, Tensor(8.0), lambda _, *args: TrainStep(HalfLoss(network), *args))(X, Y)[0].asnumpy()


@pytest.mark.skipif(V200, reason="MindSpore's step of 2.0.0 takes one output")
def test_the_first_of_several_outputs_is_the_loss(graph_mode):
    class Outputs(HalfLoss):
        def construct(self, x, y):
            logits = self.network(x)
            return ops.cast(ops.square(logits - y).mean(), self.dtype), logits

    network, optimizer = dense()
    step = build_train_network(Outputs(network), optimizer)
    with pytest.warns(NoLossScaleWarning, match="the loss is float16"):
        step(X, Y)[0].asnumpy()


def test_another_step_of_mindspores_stays_what_it_is():
    network, optimizer = dense()
    step = build_train_network(network, optimizer, nn.MSELoss(), boost_level="O1")
    assert type(step) is boost.BoostTrainOneStepCell


def test_a_network_that_was_reported_at_the_build_is_not_reported_for_its_loss(graph_mode):
    network, optimizer = dense()
    with pytest.warns(NoLossScaleWarning) as said:
        step = build_train_network(HalfLoss(network.to_float(ms.float16)), optimizer)
        step(X, Y).asnumpy()
    assert len(said) == 1


@BUILDERS
def test_float32_and_what_is_not_trained_are_left_alone(build):
    build(*dense())
    frozen, head = nn.Dense(3, 3).to_float(ms.float16), nn.Dense(3, 2)
    frozen.weight.requires_grad = frozen.bias.requires_grad = False
    network = nn.SequentialCell(frozen, head)
    build(network, nn.SGD(network.trainable_params(), 0.1))


@BUILDERS
def test_a_loss_scaled_by_hand_is_left_alone(build):
    build(*dense(loss_scale=1024.0), amp_level="O3", loss_scale_manager=None)


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 has no bfloat16")
def test_bfloat16_is_left_alone():
    network, optimizer = dense()
    build_train_network(network.to_float(ms.bfloat16), optimizer, nn.MSELoss())


def test_a_model_of_a_step_is_left_alone():
    network, optimizer = dense()
    Model(step_of(network.to_float(ms.float16), optimizer))


# Two steps over the same parameters.

def test_a_step_over_the_parameters_of_an_older_one_with_another_scale_is_reported(mode):
    network, optimizer = dense()
    older = step_of(network, optimizer, Tensor(8.0))
    older(X, Y)
    again = nn.SGD(network.trainable_params(), 0.1)
    with pytest.warns(SharedParametersWarning, match="'TrainStep', '.*weight' .*: 16, and 8 there.* one step") as said:
        newer = step_of(network, again, Tensor(16.0), TrainStep)
    for step in (older, newer, older):
        step(X, Y)
    assert len(said) == 1 and said[0].filename == __file__


@pytest.mark.parametrize("manager", [DynamicLossScaleManager(2**10), FixedLossScaleManager(512.0)])
def test_a_second_model_over_the_same_optimizer_with_another_scale_is_reported(manager):
    network, optimizer = dense()
    older = model_of(network, optimizer, loss_scale_manager=FixedLossScaleManager(128.0))
    with pytest.warns(SharedParametersWarning, match="128 there"):
        model_of(network, optimizer, loss_scale_manager=manager)
    assert older.train_network.get_loss_scale() == 128


@pytest.mark.parametrize("second", [Tensor(8.0), Tensor(4.0), None], ids=["first", "live", "shared"])
def test_two_steps_with_the_same_scale_are_left_alone(second):
    network, optimizer = dense()
    cell = DynamicLossScaleUpdateCell(8, 2, 100)
    older = step_of(network, optimizer, cell)
    older.set_sense_scale(Tensor(4.0 if second is not None else 2.0))
    step_of(network, optimizer, cell if second is None else second)


def test_steps_with_one_update_cell_are_left_alone_wherever_its_scale_went():
    network, optimizer = dense()
    cell = DynamicLossScaleUpdateCell(8, 2, 100)
    steps = []
    for scale in (4.0, 2.0, 1.0):
        steps.append(step_of(network, optimizer, cell))
        steps[-1].set_sense_scale(Tensor(scale))


def test_two_steps_over_other_parameters_are_left_alone():
    older, newer = step_of(*dense(), Tensor(8.0)), step_of(*dense(), Tensor(16.0))
    assert older.get_loss_scale() != newer.get_loss_scale()


def test_a_step_beside_one_that_does_not_scale_is_left_alone():
    network, optimizer = dense()
    older = step_of(network, optimizer, None, TrainStep, scaling=False)
    newer = step_of(network, optimizer, Tensor(16.0))
    assert older.optimizer is newer.optimizer


def test_a_step_that_is_gone_is_not_reported_and_none_is_kept_alive():
    network, optimizer = dense()
    steps = [weakref.ref(step_of(network, optimizer, Tensor(scale))) for scale in (2.0, 4.0, 8.0)]
    gc.collect()
    assert [step() for step in steps] == [None, None, None]


# An optimizer over a step.

@pytest.mark.parametrize("parameters_of", [
    lambda step: list(step.get_parameters()), lambda step: step.trainable_params(), lambda step: [step.scale_sense],
    lambda step: [step.applied_steps], lambda step: [step.loss_scaling_manager.last_overflow_iter],
    lambda step: [step.optimizer.moments[0]]])
def test_an_optimizer_over_the_parameters_of_a_step_is_refused(parameters_of):
    network, optimizer = dense()
    step = step_of(network, optimizer, nn.DynamicLossScaleUpdateCell(8, 2, 100))
    wrong = nn.SGD(parameters_of(step), 0.1)
    for build in (lambda: step_of(network, wrong), lambda: step_of(network, wrong, kind=TrainStep),
                  lambda: model_of(network, wrong), lambda: network_of(network, wrong),
                  lambda: model_of(network, wrong, loss_scale_manager=FixedLossScaleManager(1, False))):
        with pytest.raises(ValueError, match=r"which belongs to a training step.*network\.trainable_params\(\)"):
            build()


def test_an_optimizer_over_the_parameters_of_mindspores_step_is_refused():
    network, optimizer = dense()
    native = nn.TrainOneStepWithLossScaleCell(with_loss(network), optimizer, Tensor(8.0)) if not V200 else None
    if native is None:
        pytest.skip("MindSpore 2.0.0 does not build its step on CPU")
    with pytest.raises(ValueError, match="'scale_sense'"):
        step_of(network, nn.SGD(list(native.get_parameters()), 0.1))


def test_a_parameter_of_a_network_may_be_called_as_the_state_of_a_step_is():
    class Scaled(nn.Cell):
        def __init__(self):
            super().__init__()
            self.scale_sense = ms.Parameter(Tensor(np.ones(2, np.float32)), name="scale_sense")

    network = Scaled()
    step_of(network, nn.SGD(network.trainable_params(), 0.1))


def test_networks_that_a_subclass_holds_are_no_state():
    discriminator, its_optimizer = dense()

    class Adversarial(OwnStep):
        def __init__(self, *args):
            super().__init__(*args)
            self.discriminator = discriminator

    network, optimizer = dense()
    generator = Adversarial(with_loss(network), optimizer, Tensor(8.0))
    step_of(discriminator, its_optimizer, Tensor(8.0))
    assert generator.discriminator is discriminator


def test_each_warning_can_be_silenced_by_name():
    for category in (NoLossScaleWarning, OptimizerScaleWarning, ScaleMismatchWarning, SharedParametersWarning,
                     UncheckedUpdateWarning):
        assert issubclass(category, LossScaleWarning) and category is not LossScaleWarning
