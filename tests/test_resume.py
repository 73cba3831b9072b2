"""A checkpoint holds all that decides the next step, and loading one says what it did not hold."""

import re
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import CheckpointConfig, ModelCheckpoint

from ms_lossscale import (
    CheckpointWarning,
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    Model,
    TrainOneStepWithLossScaleCell,
    load_checkpoint,
)

INF = np.inf
BFLOAT16 = [ms.bfloat16] if hasattr(ms, "bfloat16") else []
X = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32)
COUNTERS = {"applied_steps", "skipped_steps", "consecutive_overflows"}
MINDSPORES = {"scale_sense", "current_iterator_step", "last_overflow_iterator_step"}


def network_and_optimizer(kind=nn.Momentum):
    weight = np.linspace(-0.5, 0.5, 6).reshape(2, 3).astype(np.float32)
    network = nn.Dense(3, 2, weight_init=Tensor(weight), bias_init="zeros")
    options = {"momentum": 0.5} if kind is nn.Momentum else {}
    return network, kind(network.trainable_params(), 0.125, **options)


def step_of(scale_sense=None, kind=TrainOneStepWithLossScaleCell):
    network, optimizer = network_and_optimizer()
    scale_sense = DynamicLossScaleUpdateCell(64, 2, 3) if scale_sense is None else scale_sense
    return kind(nn.WithLossCell(network, nn.MSELoss()), optimizer, scale_sense)


def native_step(scale_sense=None):
    return step_of(scale_sense or nn.DynamicLossScaleUpdateCell(64, 2, 3), nn.TrainOneStepWithLossScaleCell)


def feed(step, *labels):
    for label in labels:
        step(Tensor(X), Tensor(np.full((4, 2), label, np.float32)))


def set_numbers(step, **numbers):
    """Set Parameters by name, to tell them apart later."""
    for parameter in step.get_parameters():
        value = numbers.get(parameter.name.rpartition(".")[2])
        if value is not None:
            parameter.set_data(Tensor(np.full(parameter.shape, value), parameter.dtype))


def numbers(step):
    return {parameter.name: parameter.asnumpy().copy() for parameter in step.get_parameters()}


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


class Box(nn.Cell):
    """A cell that holds a step: inside it, names are attribute paths."""

    def __init__(self, step):
        super().__init__()
        self.train = step

    def construct(self, *inputs):
        return self.train(*inputs)


# What is in a checkpoint.

def test_a_checkpoint_holds_all_that_decides_the_next_step(mode):
    step = step_of(DynamicLossScaleUpdateCell(64, 2, 3, hysteresis=2))
    feed(step, 1, INF)
    ms.save_checkpoint(step, "step.ckpt")
    saved = {name: value.asnumpy() for name, value in ms.load_checkpoint("step.ckpt").items()}
    assert same(saved, numbers(step))
    assert {name: int(saved[name]) for name in MINDSPORES | COUNTERS | {"tolerated_overflows"}} == {
        "scale_sense": 64, "current_iterator_step": 3, "last_overflow_iterator_step": 2, "applied_steps": 1,
        "skipped_steps": 1, "consecutive_overflows": 1, "tolerated_overflows": 1}


def test_the_state_is_not_trained_and_a_fixed_scale_has_no_window():
    step = step_of(FixedLossScaleUpdateCell(8))
    names = {parameter.name for parameter in step.get_parameters()}
    assert COUNTERS | {"scale_sense"} <= names and not names & {"current_iterator_step", "tolerated_overflows"}
    assert not {parameter.name for parameter in step.trainable_params()} & (COUNTERS | MINDSPORES)


def test_reading_the_counters_does_not_disturb_a_step(mode):
    watched, alone = step_of(), step_of()
    seen = []
    for label in (1, INF, INF, 1):
        feed(watched, label)
        seen.append((*(getattr(watched, name).asnumpy().item() for name in sorted(COUNTERS)),
                     watched.get_loss_scale()))
    feed(alone, 1, INF, INF, 1)
    assert seen == [(1, 0, 0, 64), (1, 1, 1, 32), (1, 2, 2, 16), (2, 0, 2, 16)]
    assert same(numbers(watched), numbers(alone))


@pytest.mark.parametrize("options", [{}, {"hysteresis": 1, "consecutive_hysteresis": True}],
                         ids=["default", "hysteresis"])
def test_a_resumed_training_is_the_uninterrupted_one_bit_for_bit(options, mode):
    labels = [1, INF, 2, INF, INF, 1, 2, 3]
    whole, before, after = (step_of(DynamicLossScaleUpdateCell(64, 3, 2, **options)) for _ in range(3))
    feed(whole, *labels)
    feed(before, *labels[:4])
    ms.save_checkpoint(before, "step.ckpt")
    feed(after, 5)  # also into a step that has run
    assert load_checkpoint(after, "step.ckpt") == {}
    feed(after, *labels[4:])
    assert same(numbers(after), numbers(whole))


# Model.

def batches(*labels):
    y = np.concatenate([np.full((4, 2), label, np.float32) for label in labels])
    return NumpySlicesDataset((np.tile(X, (len(labels), 1)), y), shuffle=False).batch(4)


def model_of(manager):
    network, optimizer = network_and_optimizer(kind=nn.Adam)
    return Model(network, nn.MSELoss(), optimizer, loss_scale_manager=manager)


def test_model_resumes_from_what_modelcheckpoint_wrote_manager_included(mode):
    def manager():
        return DynamicLossScaleManager(64, 3, 2, hysteresis=1)

    whole, labels = manager(), [1, INF, INF, 1, INF, 1, 2, 3]
    expected = model_of(whole)
    expected.train(1, batches(*labels), dataset_sink_mode=False)
    first = model_of(manager())
    saver = ModelCheckpoint("net", directory="ckpt", config=CheckpointConfig(save_checkpoint_steps=5))
    first.train(1, batches(*labels[:5]), callbacks=saver, dataset_sink_mode=False)
    resumed = manager()
    model = model_of(resumed)
    assert load_checkpoint(model.train_network, Path("ckpt/net-1_5.ckpt")) == {}
    assert resumed.state_dict() == first._loss_scale_manager.state_dict()
    assert resumed.get_loss_scale() == model.train_network.get_loss_scale()
    model.train(1, batches(*labels[5:]), dataset_sink_mode=False)
    assert same(numbers(model.train_network), numbers(expected.train_network))
    assert resumed.state_dict() == whole.state_dict()


# Checkpoints that hold less, and MindSpore's own.

def without(step, *names):
    """Save `step` without some of its Parameters."""
    ms.save_checkpoint([{"name": parameter.name, "data": parameter} for parameter in step.get_parameters()
                        if parameter.name not in names], "step.ckpt")


def test_what_an_older_checkpoint_lacks_is_kept_and_said():
    old = step_of(DynamicLossScaleUpdateCell(64, 2, 3, hysteresis=2))
    set_numbers(old, scale_sense=32, cur_iter=9, current_iterator_step=9, applied_steps=7)
    without(old, "tolerated_overflows", "skipped_steps")
    new = step_of(DynamicLossScaleUpdateCell(64, 2, 3, hysteresis=2))
    set_numbers(new, skipped_steps=3)
    with pytest.warns(CheckpointWarning) as caught:
        assumed = load_checkpoint(new, "step.ckpt")
    assert assumed == {"skipped_steps": 3, "tolerated_overflows": 0}
    assert len(caught) == 1 and caught[0].filename == __file__
    assert re.search(r"'step.ckpt' did not hold .* skipped_steps = 3, tolerated_overflows = 0\.$",
                     str(caught[0].message))
    assert (new.get_loss_scale(), new.applied_steps.asnumpy(), new.skipped_steps.asnumpy()) == (32, 7, 3)


def test_what_a_checkpoint_holds_beyond_the_step_is_left_alone(mode):
    ms.save_checkpoint(step_of(DynamicLossScaleUpdateCell(64, 2, 3, hysteresis=2)), "step.ckpt",
                       append_dict={"epoch_num": 3})
    step = step_of()
    assert load_checkpoint(step, "step.ckpt") == {}
    feed(step, 1)


@pytest.mark.parametrize("boxed", [False, True], ids=["bare", "in a container"])
def test_a_checkpoint_of_mindspores_own_step_loads(boxed, mode):
    native = native_step()
    source = Box(native) if boxed else native
    set_numbers(native, scale_sense=1024, current_iterator_step=41, cur_iter=41, last_overflow_iterator_step=39,
                last_overflow_iter=39, bias=0.25)
    ms.save_checkpoint(source, "native.ckpt")
    ours = step_of()
    target = Box(ours) if boxed else ours
    with pytest.warns(CheckpointWarning, match="did not hold the whole loss-scale state; assumed: "):
        assumed = load_checkpoint(target, "native.ckpt")
    prefix = "train." if boxed else ""
    assert assumed == {prefix + name: 0 for name in COUNTERS}
    saved = numbers(source)
    assert {f"{prefix}{name}" for name in ("scale_sense", "weight", "bias")} < set(saved)
    assert same({name: value for name, value in numbers(target).items() if name in saved}, saved)
    feed(target, 1)
    assert ours.get_loss_scale() == 1024
    feed(target, 1)
    assert ours.get_loss_scale() == 2048  # the steps 40, 41 and 42 were clean: the window of 3 is full


@pytest.mark.parametrize("boxed", [False, True], ids=["bare", "in a container"])
def test_mindspores_own_step_loads_a_checkpoint_of_ours(boxed, mode):
    ours = step_of()
    feed(ours, 1, INF, 1)
    source = Box(ours) if boxed else ours
    ms.save_checkpoint(source, "ours.ckpt")
    native = native_step()
    target = Box(native) if boxed else native
    missing = ms.load_param_into_net(target, ms.load_checkpoint("ours.ckpt"))
    assert not (missing[0] if isinstance(missing, tuple) else missing)
    saved = numbers(source)
    assert same(numbers(target), {name: value for name, value in saved.items()
                                  if name.rpartition(".")[2] not in COUNTERS})


@pytest.mark.parametrize("scale, assumed", [(INF, 2.0**126), (2.0**127, 2.0**126), (0.25, 1), (0, 64), (-8, 64),
                                            (np.nan, 64)])
def test_a_scale_that_no_step_can_use_is_replaced_by_the_nearest_bound_and_said(scale, assumed):
    native = native_step()
    native.scale_sense.set_data(Tensor(scale, ms.float32))
    ms.save_checkpoint(native, "native.ckpt")
    step = step_of()
    with pytest.warns(CheckpointWarning, match=re.escape(f"scale_sense = {assumed:g}")):
        assert load_checkpoint(step, "native.ckpt")["scale_sense"] == assumed
    assert step.get_loss_scale() == assumed


@pytest.mark.parametrize("name, wrong, assumed", [
    ("current_iterator_step", np.float32(np.nan), 5), ("current_iterator_step", np.int32(-7), 5),
    ("applied_steps", np.int64(2**40), 3), ("skipped_steps", np.float32(INF), 2),
    ("last_overflow_iterator_step", np.int32(10**6), 8)], ids=str)
def test_a_counter_that_counts_no_steps_is_replaced_and_said(name, wrong, assumed):
    donor, step = step_of(), step_of()
    set_numbers(donor, current_iterator_step=9)
    ms.save_checkpoint(replace(donor, name, wrong), "step.ckpt")
    set_numbers(step, current_iterator_step=5, applied_steps=3, skipped_steps=2)
    with pytest.warns(CheckpointWarning):
        assert load_checkpoint(step, "step.ckpt") == {name: assumed}


def test_a_missing_step_number_does_not_keep_the_scale_from_growing(mode):
    donor, step = step_of(), step_of()
    set_numbers(donor, current_iterator_step=5001, last_overflow_iterator_step=5000)
    without(donor, "current_iterator_step")
    with pytest.warns(CheckpointWarning):
        assert load_checkpoint(step, "step.ckpt") == {"current_iterator_step": 1, "last_overflow_iterator_step": 0}
    feed(step, 1, 1, 1)
    assert step.get_loss_scale() == 128


def test_the_bounds_are_those_of_the_steps_own_rule():
    ms.save_checkpoint(step_of(Tensor(2.0**-100)), "step.ckpt")
    for scale_sense, scale in ((FixedLossScaleUpdateCell(8), 2.0**-100), (Tensor(4.0), 2.0**-100),
                               (DynamicLossScaleUpdateCell(8, 2, 3, min_loss_scale=2.0**-20), 2.0**-20)):
        step = step_of(scale_sense)
        if scale == 2.0**-20:
            with pytest.warns(CheckpointWarning):
                load_checkpoint(step, "step.ckpt")
        elif isinstance(scale_sense, nn.Cell) or scale_sense.shape == ():
            assert load_checkpoint(step, "step.ckpt") == {}
        assert step.get_loss_scale() == scale


@pytest.mark.parametrize("saved, held", [((), (1,)), ((1,), ())])
@pytest.mark.parametrize("dtype", [ms.float16, ms.float32, ms.int32, *BFLOAT16], ids=str)
def test_a_scale_of_another_shape_or_dtype_is_loaded_into_the_steps_own(saved, held, dtype, mode):
    parameters = [{"name": p.name, "data": p} for p in step_of(Tensor(2.0)).get_parameters() if p.name != "scale_sense"]
    scale = Tensor(np.full(saved, 512, np.float32)).astype(dtype)
    ms.save_checkpoint([*parameters, {"name": "scale_sense", "data": scale}], "step.ckpt")
    step = step_of(Tensor(np.full(held, 8, np.float32)))
    assert load_checkpoint(step, "step.ckpt") == {}
    assert (step.scale_sense.shape, step.scale_sense.dtype, step.get_loss_scale()) == (held, ms.float32, 512)
    if dtype == ms.float16:
        feed(step, 1)


# What is refused, with nothing changed.

def replace(step, name, value):
    return [{"name": p.name, "data": Tensor(value) if p.name == name else p} for p in step.get_parameters()]


def wrong_shape(step):
    return replace(step, "weight", np.ones((5, 3), np.float32))


def wrong_dtype(step):
    return replace(step, "weight", np.ones((2, 3), np.int32))


def wrong_counter(step):
    return replace(step, "applied_steps", np.ones(3, np.int32))


def wrong_scale(step):
    return replace(step, "scale_sense", np.ones(2, np.float32))


def no_moments(step):
    return [{"name": p.name, "data": p} for p in step.get_parameters() if not p.name.startswith("moments")]


@pytest.mark.parametrize("make, text", [
    (wrong_shape, "'weight' of shape (2, 3) and dtype Float32, but got shape (5, 3) and dtype Float32."),
    (wrong_dtype, "'weight' of shape (2, 3) and dtype Float32, but got shape (2, 3) and dtype Int32."),
    (wrong_counter, "'applied_steps' of shape () and dtype Int32, but got shape (3,) and dtype Int32."),
    (wrong_scale, "'scale_sense' of shape () and dtype Float32, but got shape (2,) and dtype Float32."),
    (no_moments, "It lacks moments.bias, moments.weight.")], ids=lambda value: getattr(value, "__name__", ""))
def test_a_checkpoint_that_does_not_fit_changes_nothing(make, text, mode):
    donor, step = step_of(), step_of()
    set_numbers(donor, scale_sense=2, bias=9, applied_steps=9)
    ms.save_checkpoint(make(donor), "step.ckpt")
    before = numbers(step)
    with pytest.raises(ValueError, match=re.escape(text)):
        load_checkpoint(step, "step.ckpt")
    assert same(numbers(step), before)


def test_a_weight_of_another_float_dtype_is_converted(mode):
    donor = step_of()
    data = [{"name": p.name, "data": p.astype(ms.float16) if p.name == "weight" else p} for p in donor.get_parameters()]
    ms.save_checkpoint(data, "step.ckpt")
    step = step_of()
    assert load_checkpoint(step, "step.ckpt") == {}
    assert step.weights[0].dtype == ms.float32


@pytest.mark.parametrize("wrong", [None, 5, nn.Dense(2, 2), DynamicLossScaleManager(), TrainOneStepWithLossScaleCell])
def test_what_holds_no_step_is_refused(wrong):
    with pytest.raises(TypeError, match="'step' must be a Cell that is or holds a TrainOneStepWithLossScaleCell"):
        load_checkpoint(wrong, "step.ckpt")


@pytest.mark.parametrize("wrong", [None, 5, b"step.ckpt", ["step.ckpt"]])
def test_what_is_no_path_is_refused(wrong):
    with pytest.raises(TypeError, match="'path' must be a str or a path"):
        load_checkpoint(step_of(), wrong)


class TwoSteps(nn.Cell):
    """Two steps under one name each, as auto_prefix=False gives."""

    def __init__(self, prefix):
        super().__init__(auto_prefix=prefix)
        self.first, self.second = step_of(), step_of()


def test_two_steps_whose_names_collide_are_refused_and_two_that_do_not_are_loaded():
    with pytest.raises(ValueError, match="'step' holds two parameters of the name 'weight'"):
        load_checkpoint(TwoSteps(False), "step.ckpt")
    pair = TwoSteps(True)
    set_numbers(pair.first, scale_sense=2)
    set_numbers(pair.second, scale_sense=4)
    ms.save_checkpoint(pair, "pair.ckpt")
    other = TwoSteps(True)
    assert load_checkpoint(other, "pair.ckpt") == {}
    assert (other.first.get_loss_scale(), other.second.get_loss_scale()) == (2, 4)


def test_a_parameter_that_replaced_a_counter_is_loaded_under_its_own_name():
    def replaced():
        cell = DynamicLossScaleUpdateCell(64, 2, 3)
        cell.cur_iter = Parameter(Tensor(7, ms.int32), name="theirs")
        return step_of(cell)

    donor, step = replaced(), replaced()
    set_numbers(donor, theirs=50)
    ms.save_checkpoint(donor, "step.ckpt")
    assert load_checkpoint(step, "step.ckpt") == {}
    assert step.loss_scaling_manager.cur_iter.asnumpy() == 50


# The proof.

@pytest.mark.slow
@pytest.mark.parametrize("mode_name", ["graph", "pynative"])
def test_a_training_killed_ten_times_ends_as_the_uninterrupted_one(mode_name):
    script = Path(__file__).parent / "kill_and_resume.py"
    run = subprocess.run([sys.executable, str(script), "--kills", "10", "--mode", mode_name], capture_output=True,
                         text=True, timeout=600)
    assert run.returncode == 0, run.stderr
    assert re.search(r"killed 10 times .* skipped [1-9].*: bit for bit the same", run.stdout)
