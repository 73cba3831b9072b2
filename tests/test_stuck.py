"""A training in which every step overflows is stopped, wherever the scale lives, and says what it saw."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    Model,
    TrainOneStepWithLossScaleCell,
    load_checkpoint,
)
from ms_lossscale.stuck import StuckGuard

STUCK = "steps in a row overflowed"
CLEAN, OVERFLOW = 1.0, np.inf


class Loss(nn.Cell):
    """A loss whose gradient is `factor`, and whose value is finite."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(2, np.float32)), name="weight")

    def construct(self, factor, label):
        return (self.weight * factor * label).sum()


def step_of(scale_sense, **options):
    network = Loss()
    optimizer = nn.Momentum(network.trainable_params(), 0.5, 0.5)
    return TrainOneStepWithLossScaleCell(network, optimizer, scale_sense, **options)


def feed(step, *factors):
    for factor in factors:
        step(Tensor(factor, ms.float32), Tensor(1.0))


def in_a_row(step):
    return step.consecutive_overflows.asnumpy().item()


# By hand.

def test_a_manager_driven_by_hand_raises_at_the_first_overflow_too_many():
    manager = DynamicLossScaleManager(max_consecutive_overflows=5)
    for overflow in [True] * 5 + [False] + [True] * 5:
        manager.update_loss_scale(overflow)
    with pytest.raises(RuntimeError, match=f"^6 {STUCK}"):
        manager.update_loss_scale(True)
    with pytest.raises(RuntimeError, match=f"^7 {STUCK}"):
        manager.update_loss_scale(True)
    manager.update_loss_scale(False)
    manager.update_loss_scale(True)
    assert manager.bad_step == 1


def test_the_default_limit_is_a_thousand_as_in_mindspore():
    manager = DynamicLossScaleManager()
    for _ in range(1000):
        manager.update_loss_scale(True)
    with pytest.raises(RuntimeError, match=f"^1001 {STUCK}"):
        manager.update_loss_scale(True)


def test_none_never_raises():
    manager = DynamicLossScaleManager(max_consecutive_overflows=None)
    for _ in range(1100):
        manager.update_loss_scale(True)
    assert (manager.bad_step, manager.loss_scale) == (1100, 1)


def test_bad_step_max_may_be_assigned_at_any_time():
    manager = DynamicLossScaleManager()
    manager.bad_step_max = 1
    manager.update_loss_scale(True)
    with pytest.raises(RuntimeError, match=r"more than 'max_consecutive_overflows' \(1\)"):
        manager.update_loss_scale(True)
    manager.bad_step_max = None
    manager.update_loss_scale(True)


# In a step.

@pytest.mark.parametrize("make", [lambda: DynamicLossScaleUpdateCell(2.0**4, 2, 10), lambda: Tensor(16.0)],
                         ids=["dynamic", "Tensor"])
def test_a_step_raises_at_the_first_overflow_too_many(make, mode):
    step = step_of(make(), max_consecutive_overflows=3, check_interval=1)
    feed(step, OVERFLOW, OVERFLOW, OVERFLOW, CLEAN, OVERFLOW, OVERFLOW, OVERFLOW)
    with pytest.raises(RuntimeError, match=f"^4 {STUCK}"):
        feed(step, OVERFLOW)
    with pytest.raises(RuntimeError, match=f"^5 {STUCK}"):
        feed(step, OVERFLOW)
    feed(step, CLEAN, OVERFLOW)
    assert in_a_row(step) == 1 and step.applied_steps.asnumpy() == 2 and step.skipped_steps.asnumpy() == 9


def test_between_two_checks_nothing_is_read_and_nothing_raises(mode):
    step = step_of(DynamicLossScaleUpdateCell(2.0**4, 2, 10), max_consecutive_overflows=3, check_interval=10)
    feed(step, *[OVERFLOW] * 9)
    with pytest.raises(RuntimeError, match=f"^10 {STUCK}"):
        feed(step, OVERFLOW)


def test_by_default_a_step_looks_every_hundred_calls(graph_mode):
    step = step_of(DynamicLossScaleUpdateCell(2.0**4, 2, 10), max_consecutive_overflows=50)
    feed(step, *[OVERFLOW] * 99)
    with pytest.raises(RuntimeError, match=f"^100 {STUCK}"):
        feed(step, OVERFLOW)


def test_a_step_with_none_never_raises(mode):
    step = step_of(Tensor(16.0), max_consecutive_overflows=None, check_interval=1)
    feed(step, *[OVERFLOW] * 3)
    step.consecutive_overflows.set_data(Tensor(5000, ms.int32))
    feed(step, OVERFLOW)
    step.check_consecutive_overflows()
    assert in_a_row(step) == 5001


def test_the_default_limit_of_a_step_is_a_thousand():
    step = step_of(Tensor(16.0))
    for count in (1000, 1001):
        step.consecutive_overflows.set_data(Tensor(count, ms.int32))
        if count == 1000:
            step.check_consecutive_overflows()
    with pytest.raises(RuntimeError, match=f"^1001 {STUCK}"):
        step.check_consecutive_overflows()


class Twice(nn.Cell):
    """Trains two steps in one graph, as a data sink does."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def construct(self, first, second, label):
        self.step(first, label)
        return self.step(second, label)


def test_in_another_cell_the_counter_counts_and_the_check_raises(mode):
    step = step_of(DynamicLossScaleUpdateCell(16.0, 2, 10), max_consecutive_overflows=3)
    sink = Twice(step)
    sink(Tensor(OVERFLOW), Tensor(OVERFLOW), Tensor(1.0))
    step.check_consecutive_overflows()
    sink(Tensor(OVERFLOW), Tensor(OVERFLOW), Tensor(1.0))
    with pytest.raises(RuntimeError, match=f"^4 {STUCK}"):
        step.check_consecutive_overflows()
    sink(Tensor(OVERFLOW), Tensor(CLEAN), Tensor(1.0))
    step.check_consecutive_overflows()
    assert step.applied_steps.asnumpy() == 1


# In Model.

def batches(*factors):
    data = np.array(factors, np.float32), np.ones(len(factors), np.float32)
    return NumpySlicesDataset(data, ["factor", "label"], shuffle=False)


def model_of(manager):
    network = Loss()
    return Model(network, None, nn.Momentum(network.trainable_params(), 0.5, 0.5), loss_scale_manager=manager,
                 eval_network=Evaluation(network), metrics={"loss"}, eval_indexes=[0, 1, 2])


class Evaluation(nn.Cell):
    def __init__(self, network):
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, factor, label):
        return self.network(factor, label), label, label


def train(model, *factors):
    model.train(1, batches(*factors), dataset_sink_mode=False)


def test_model_raises_at_the_first_overflow_too_many_and_can_evaluate_and_save_then(mode):
    manager = DynamicLossScaleManager(16, max_consecutive_overflows=2)
    model = model_of(manager)
    train(model, OVERFLOW, OVERFLOW, CLEAN, OVERFLOW, OVERFLOW)
    with pytest.raises(RuntimeError, match=f"^3 {STUCK}"):
        train(model, OVERFLOW, CLEAN)
    step = model.train_network
    assert (manager.bad_step, in_a_row(step), step.applied_steps.asnumpy().item()) == (3, 3, 1)
    assert np.isfinite(model.eval(batches(CLEAN), dataset_sink_mode=False)["loss"])
    ms.save_checkpoint(step, "stuck.ckpt")
    other = model_of(DynamicLossScaleManager(16, max_consecutive_overflows=2))
    assert load_checkpoint(other.train_network, "stuck.ckpt") == {}
    assert in_a_row(other.train_network) == 3
    train(model, CLEAN)
    train(other, CLEAN)
    assert (manager.bad_step, in_a_row(other.train_network)) == (0, 0)


def test_a_limit_assigned_to_the_manager_of_a_model_is_the_steps(mode):
    manager = DynamicLossScaleManager(16, max_consecutive_overflows=2, check_interval=1)
    model = model_of(manager)
    manager.bad_step_max = 3
    train(model, *[OVERFLOW] * 3)
    with pytest.raises(RuntimeError, match=f"^4 {STUCK}"):
        feed(model.train_network, OVERFLOW)
    manager.bad_step_max = None
    train(model, *[OVERFLOW] * 3)


def test_a_model_with_a_fixed_scale_is_stopped_too(mode):
    model = model_of(FixedLossScaleManager(16, max_consecutive_overflows=2, check_interval=1))
    with pytest.raises(RuntimeError, match=f"^3 {STUCK}"):
        train(model, *[OVERFLOW] * 4)


@pytest.mark.parametrize("manager", [FixedLossScaleManager, DynamicLossScaleManager])
@pytest.mark.parametrize("name, wrong, kind", [
    ("max_consecutive_overflows", 0, ValueError), ("max_consecutive_overflows", 1.5, TypeError),
    ("max_consecutive_overflows", True, TypeError), ("check_interval", 0, ValueError),
    ("check_interval", None, TypeError), ("fit_loss_dtype", 1, TypeError)])
def test_a_wrong_option_is_refused(manager, name, wrong, kind):
    with pytest.raises(kind, match=f"^For '{manager.__name__}', '{name}' must be"):
        manager(**{name: wrong})
    with pytest.raises(kind, match=f"^For 'TrainOneStepWithLossScaleCell', '{name}' must be"):
        step_of(Tensor(16.0), **{name: wrong})


# In a data sink, which on CPU only a stand-in shows: two steps in one graph, and the callback after it.

class SinkRun:
    """What MindSpore's Model does in a data sink: one call for two steps, then the callbacks, once."""

    def __init__(self, model, monkeypatch):
        self.model, self.graph = model, Twice(model.train_network)
        monkeypatch.setattr(ms.Model, "train", self.train)

    def train(self, epoch, dataset, callbacks=None, **options):
        arguments = type("Arguments", (dict,), {"__getattr__": dict.get})(
            dataset_sink_mode=options["dataset_sink_mode"], train_network=self.graph)
        context = type("Context", (), {"original_args": lambda self: arguments})()
        for first, second in dataset:
            for callback in callbacks:
                callback.on_train_step_begin(context)
            outputs = self.graph(Tensor(first, ms.float32), Tensor(second, ms.float32), Tensor(1.0))
            arguments["net_outputs"] = outputs
            for callback in callbacks:
                callback.on_train_step_end(context)


def test_a_data_sink_is_stopped_after_the_sink_that_held_the_overflow_too_many(mode, monkeypatch):
    model = model_of(DynamicLossScaleManager(16, max_consecutive_overflows=3))
    SinkRun(model, monkeypatch)
    o, c = OVERFLOW, CLEAN
    model.train(1, [(o, o), (o, c), (o, o)], Callback(), dataset_sink_mode=True)
    with pytest.raises(RuntimeError, match=f"^4 {STUCK}.*went 2 -> 1, its minimum"):
        model.train(1, [(o, o), (c, c)], None, dataset_sink_mode=True)


# What it says.

def told(limit, seen, minimum):
    guard = StuckGuard(limit)
    with pytest.raises(RuntimeError) as caught:
        for scale, count, last_clean in seen:
            guard.check(scale, count, last_clean, minimum)
    return str(caught.value)


def test_the_text_holds_how_many_the_way_of_the_scale_the_minimum_and_what_to_do():
    text = told(2, [(16, 0, 5), (8, 1, 5), (4, 2, 5), (2, 3, 5)], 1)
    assert text.startswith("3 steps in a row overflowed, more than 'max_consecutive_overflows' (2). "
                           "The loss scale went 16 -> 8 -> 4 -> 2, above its minimum (1). ")
    assert text.endswith("If the gradients overflow at scale 1, too, the cause is not the scale: look for NaN or Inf "
                         "in the data, in the loss and in the parameters, and at the learning rate.")


def test_the_text_says_when_the_scale_is_at_its_minimum():
    text = told(1, [(1, 0, 0), (0.5, 1, 0), (0.5, 2, 0)], 0.5)
    assert "went 1 -> 0.5, its minimum; to go below it, pass a smaller 'min_loss_scale' than 0.5." in text


def test_the_text_of_a_fixed_scale_says_that_it_does_not_change():
    assert "The loss scale stayed at 64, which does not change by itself; try a smaller one." in told(1, [(64, 2, 0)],
                                                                                                     None)


def test_a_long_way_is_cut_in_the_middle():
    text = told(20, [(2.0**(24 - i), i, 0) for i in range(22)], 1)
    assert "went 1.67772e+07 -> ... -> 256 -> 128 -> 64 -> 32 -> 16 -> 8, above" in text


def test_the_way_begins_where_the_scale_was_before_these_overflows():
    # A clean step between two looks: what was before it is no part of the way.
    text = told(15, [(64, 0, 1), (32, 1, 1), (16, 10, 7), (1, 20, 7)], 1)
    assert "went 32 -> 16 -> 1, its minimum" in text


def test_the_way_is_that_of_the_step(mode):
    step = step_of(DynamicLossScaleUpdateCell(64.0, 4, 1), max_consecutive_overflows=3, check_interval=1)
    with pytest.raises(RuntimeError, match="went 256 -> 64 -> 16 -> 4 -> 1, its minimum"):
        feed(step, CLEAN, *[OVERFLOW] * 4)
    step = step_of(DynamicLossScaleUpdateCell(64.0, 4, 1), max_consecutive_overflows=1, check_interval=2)
    with pytest.raises(RuntimeError, match="went 64 -> 4, above its minimum"):
        feed(step, *[OVERFLOW] * 2)


