"""Model and build_train_network: any manager on CPU, at every amp level, and one scale through everything."""

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, boost, context, nn
from mindspore.boost import GroupLossScaleManager
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback, CheckpointConfig, LearningRateScheduler, LossMonitor, ModelCheckpoint
from mindspore.train.amp import _check_level, _config_level
from mindspore.train.amp import build_train_network as native_build_train_network
from mindspore_version import V200

import ms_lossscale
from ms_lossscale import DynamicLossScaleManager, FixedLossScaleManager, LossScaleManager, Model, build_train_network

# Managers that drop no update are built on purpose; that is said once in a process.
pytestmark = pytest.mark.filterwarnings("ignore::ms_lossscale.UncheckedUpdateWarning")

NUMBERS = ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step")
X = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32)
INF = np.inf


def batches(*labels):
    """A dataset of one batch for each label; an infinite label makes every gradient overflow."""
    y = np.concatenate([np.full((4, 2), label, np.float32) for label in labels])
    return NumpySlicesDataset((np.tile(X, (len(labels), 1)), y), ["x", "label"], shuffle=False).batch(4)


def dense(**options):
    """A small network and its optimizer, always from the same weights."""
    weight = np.linspace(-0.5, 0.5, 6).reshape(2, 3).astype(np.float32)
    network = nn.Dense(3, 2, weight_init=Tensor(weight), bias_init="zeros")
    return network, nn.Momentum(network.trainable_params(), 0.125, 0.5, **options)


def make_model(manager, optimizer_scale=1.0, **options):
    network, optimizer = dense(loss_scale=optimizer_scale)
    return Model(network, nn.MSELoss(), optimizer, loss_scale_manager=manager, **options)


def train(model, *labels, callbacks=None, epoch=1):
    model.train(epoch, batches(*labels), callbacks, dataset_sink_mode=False)


def weights(model):
    return [parameter.asnumpy().copy() for parameter in model._network.trainable_params()]


def same(one, other):
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other))


class Record(Callback):
    """What the manager says and what the step holds, after every step."""

    def __init__(self, manager=None):
        super().__init__()
        self.manager = manager
        self.host, self.device, self.overflow, self.scale = [], [], [], []

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        step = params.train_network
        self.overflow.append(bool(params.net_outputs[1].asnumpy()))
        self.scale.append(float(params.net_outputs[2].asnumpy()))
        self.host.append(numbers(self.manager))
        self.device.append(device_numbers(step))


def numbers(manager):
    return {name: getattr(manager, name, None) for name in NUMBERS}


def device_numbers(step):
    cell = step.loss_scaling_manager
    parameters = (step.scale_sense, getattr(cell, "cur_iter", None), getattr(cell, "last_overflow_iter", None),
                  step.consecutive_overflows)
    return dict(zip(NUMBERS, (p if p is None else p.asnumpy().item() for p in parameters)))


class OwnUpdateCell(nn.Cell):
    """A scale that doubles after a clean step."""

    def __init__(self):
        super().__init__()
        self.growth = Tensor(2.0, ms.float32)

    def get_loss_scale(self):
        return 64

    def construct(self, loss_scale, overflow):
        ms.ops.assign(loss_scale, ms.ops.select(overflow, loss_scale, loss_scale * self.growth))
        return overflow


class OwnManager(LossScaleManager):
    """The three methods a manager must have, and no more."""

    def __init__(self, update_cell):
        self.update_cell, self.seen = update_cell, []

    def get_loss_scale(self):
        return 64

    def update_loss_scale(self, overflow):
        self.seen.append(bool(overflow))

    def get_update_cell(self):
        return self.update_cell


class NativeChild(amp.LossScaleManager):
    """Derived from MindSpore's own base class, which knows nothing of this package."""

    def __init__(self, **_):
        self.seen = []

    def get_loss_scale(self):
        return 64

    def update_loss_scale(self, overflow):
        self.seen.append(bool(overflow))

    def get_update_cell(self):
        return nn.FixedLossScaleUpdateCell(64)

    def get_drop_overflow_update(self):
        return True


SKIPPING = {
    "fixed": (lambda: FixedLossScaleManager(64), [64, 64, 64, 64]),
    "dynamic": (lambda: DynamicLossScaleManager(64, 2, 2), [64, 32, 32, 64]),
    "own": (lambda: OwnManager(OwnUpdateCell()), [128, 128, 256, 512]),
    "MindSpore's fixed": (lambda: amp.FixedLossScaleManager(64), [64, 64, 64, 64]),
    "MindSpore's dynamic": (lambda: amp.DynamicLossScaleManager(64, 2, 2), [64, 32, 32, 64]),
    "child of MindSpore's": (NativeChild, [64, 64, 64, 64]),
}
NOT_SKIPPING = {
    "fixed": lambda: FixedLossScaleManager(64, drop_overflow_update=False),
    "numpy": lambda: FixedLossScaleManager(np.float32(64), drop_overflow_update=False),
    "own": lambda: OwnManager(None),
    "MindSpore's fixed": lambda: amp.FixedLossScaleManager(64, drop_overflow_update=False),
}


@pytest.fixture(scope="module")
def unscaled():
    """The weights after 3 steps without loss scaling; scales that are powers of two must not change a bit of them."""
    context.set_context(mode=ms.PYNATIVE_MODE)
    model = make_model(None)
    train(model, 1, 2, 3)
    return weights(model)


@pytest.mark.parametrize("make, scales", SKIPPING.values(), ids=SKIPPING)
def test_model_trains_with_any_manager_and_skips_the_overflow(make, scales, mode, unscaled):
    manager = make()
    model = make_model(manager)
    record = Record()
    train(model, 1, INF, 2, 3, callbacks=record)
    assert record.overflow == [False, True, False, False]
    assert record.scale == scales
    assert same(weights(model), unscaled)
    assert (model.train_network.applied_steps.asnumpy(), model.train_network.skipped_steps.asnumpy()) == (3, 1)
    if hasattr(manager, "seen"):
        assert manager.seen == record.overflow
    else:
        assert manager.get_loss_scale() == scales[-1]


@pytest.mark.parametrize("make", NOT_SKIPPING.values(), ids=NOT_SKIPPING)
def test_a_manager_without_update_cell_scales_the_seed_and_skips_nothing(make, mode, unscaled):
    model = make_model(make(), optimizer_scale=64.0)
    assert type(model.train_network) is nn.TrainOneStepCell
    train(model, 1, 2, 3)
    assert same(weights(model), unscaled)
    train(model, INF)
    assert not np.isfinite(weights(model)[0]).all()


def test_the_host_manager_equals_the_device_at_every_step_of_two_trainings_with_evaluation_between(mode):
    first, second = [1, INF, INF, 1, 1, 1], [1, INF, 1, 1, 1]
    manager, by_hand = DynamicLossScaleManager(8, 4, 2), DynamicLossScaleManager(8, 4, 2)
    model, record = make_model(manager, metrics={"mae": nn.MAE()}), Record(manager)
    train(model, *first, callbacks=record)
    before = numbers(manager)
    assert np.isfinite(model.eval(batches(1, 2), dataset_sink_mode=False)["mae"])
    assert numbers(manager) == before
    train(model, *second, callbacks=record)

    assert record.overflow == [label == INF for label in first + second]
    expected = []
    for overflow in record.overflow:
        by_hand.update_loss_scale(overflow)
        expected.append(numbers(by_hand))
    assert record.host == expected
    assert record.device == expected
    assert record.scale == [row["loss_scale"] for row in expected]
    assert len(set(record.scale)) > 2


def test_a_loaded_checkpoint_is_the_managers_state(mode):
    trained = DynamicLossScaleManager(2**6, 2, 3)
    donor = make_model(trained)
    train(donor, 1, INF, INF, 1, INF)
    ms.save_checkpoint(donor.train_network, "step.ckpt")

    manager = DynamicLossScaleManager(2**6, 2, 3)
    model, record, expected = make_model(manager), Record(manager), Record(trained)
    missing = ms.load_param_into_net(model.train_network, ms.load_checkpoint("step.ckpt"))
    assert not (missing[0] if isinstance(missing, tuple) else missing)
    assert numbers(manager) == numbers(trained) == {"loss_scale": 8, "cur_iter": 6, "last_overflow_iter": 5,
                                                    "bad_step": 1}
    train(model, 1, 1, 1, callbacks=record)
    train(donor, 1, 1, 1, callbacks=expected)
    assert record.host == record.device == expected.device
    assert record.scale[-1] == 16
    assert same(weights(model), weights(donor))


def test_more_overflows_in_a_row_than_bad_step_max_raise(mode):
    manager = DynamicLossScaleManager(4, 2, 2)
    manager.bad_step_max = 2
    model, record = make_model(manager), Record(manager)
    train(model, INF, INF, 1, INF, INF, callbacks=record)
    assert record.host[-1]["bad_step"] == 2
    with pytest.raises(RuntimeError, match="3 steps in a row overflowed"):
        train(model, INF, INF)
    assert manager.bad_step == 3


def test_a_fixed_manager_stops_a_training_in_which_every_step_overflows(mode):
    model = make_model(FixedLossScaleManager(8, max_consecutive_overflows=2, check_interval=1))
    train(model, INF, INF, 1, INF, INF)
    with pytest.raises(RuntimeError, match="3 steps in a row overflowed"):
        train(model, INF)


@pytest.mark.parametrize("method", ["train", "fit"])
def test_overflows_in_a_row_raise_in_a_data_sink_too(method, monkeypatch):
    manager, given = DynamicLossScaleManager(4, max_consecutive_overflows=2), {}
    model, own = make_model(manager, metrics={"mae": nn.MAE()}), Record(manager)
    arguments = (2, batches(1)) if method == "train" else (2, batches(1), batches(1))
    monkeypatch.setattr(ms.Model, method, lambda self, *args, **kwargs: given.update(callbacks=args[-1], **kwargs))
    for callbacks in (None, own, [own], (own,), {own}):
        getattr(model, method)(*arguments, callbacks=callbacks, dataset_sink_mode=True)
        assert given["callbacks"][:-1] == ([] if callbacks is None else [own]) and given["dataset_sink_mode"]
    sinking, called = (SimpleNamespace(original_args=lambda flag=flag: SimpleNamespace(dataset_sink_mode=flag))
                       for flag in (True, False))
    guard = given["callbacks"][-1]
    guard.on_train_step_end(sinking)
    manager.bad_step = 3
    guard.on_train_step_end(called)
    with pytest.raises(RuntimeError, match="3 steps in a row overflowed"):
        guard.on_train_step_end(sinking)


def test_a_model_without_our_step_gets_the_callbacks_as_they_are_once_its_first_loss_was_seen(monkeypatch, graph_mode):
    trained, given = make_model(None), []
    train(trained, 1)
    monkeypatch.setattr(ms.Model, "train", lambda self, *args, **kwargs: given.append(args[2]))
    for callbacks in (None, [LossMonitor()]):
        for model in (trained, make_model(FixedLossScaleManager(64, False), optimizer_scale=64.0)):
            model.train(1, batches(1), callbacks)
            assert given.pop() is callbacks


def levels():
    broken = "MindSpore 2.0.0 cannot build this level on CPU"
    for level in ("O0", "O1", "O2", "O3", "auto"):
        yield pytest.param(level, marks=pytest.mark.skipif(V200 and level in ("O1", "auto"), reason=broken))


@pytest.mark.parametrize("level", levels())
def test_every_amp_level_trains_with_a_manager(level, mode):
    manager = DynamicLossScaleManager(2**10, 2, 2)
    model, record = make_model(manager, amp_level=level), Record(manager)
    train(model, 1, INF, 1, callbacks=record)
    assert record.overflow == [False, True, False]
    assert record.host == record.device
    assert all(np.isfinite(w).all() and w.dtype == np.float32 for w in weights(model))


@pytest.mark.slow
@pytest.mark.parametrize("level", levels())
def test_every_amp_level_computes_the_loss_of_mindspores_own_step(level, mode):
    ours = build_train_network(*dense(), nn.MSELoss(), level=level, loss_scale_manager=DynamicLossScaleManager(2**10))
    native = native_build_train_network(*dense(), nn.MSELoss(), level=level, loss_scale_manager=None)
    batch = Tensor(X), Tensor(np.ones((4, 2)), ms.float32)
    first, overflow, _ = ours(*batch)
    assert not overflow.asnumpy() and first.asnumpy() == native(*batch).asnumpy()
    assert ours(*batch)[0].asnumpy() < first.asnumpy()


def test_level_o2_without_a_manager_scales_by_our_default(mode):
    network, optimizer = dense()
    model = Model(network, nn.MSELoss(), optimizer, amp_level="O2")
    manager = model._loss_scale_manager
    assert type(manager) is DynamicLossScaleManager and manager.loss_scale == 2**24
    record = Record(manager)
    train(model, *[1] * 12, callbacks=record)
    assert record.overflow[0] and not record.overflow[-1]
    assert record.host == record.device
    step = build_train_network(*dense(), nn.MSELoss(), level="O2")
    assert step.scale_sense.asnumpy() == 2**24
    assert type(step.loss_scaling_manager) is ms_lossscale.DynamicLossScaleUpdateCell


@pytest.mark.filterwarnings("ignore::ms_lossscale.NoLossScaleWarning")
def test_no_manager_means_no_scaling():
    for level in ("O0", "O2"):
        step = build_train_network(*dense(), nn.MSELoss(), level=level, loss_scale_manager=None)
        assert isinstance(step, nn.TrainOneStepCell) and not hasattr(step, "scale_sense")
        assert type(make_model(None, amp_level=level).train_network) is nn.TrainOneStepCell
    assert not hasattr(build_train_network(*dense(), nn.MSELoss()), "scale_sense")


@pytest.mark.parametrize("target", ["CPU", "GPU", "Ascend"])
@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "auto"])
def test_the_levels_that_scale_without_a_manager_are_mindspores(level, target, pretend):
    pretend(target)
    try:
        native = _config_level[_check_level(level, "O0")[0]]["loss_scale_manager"] is not None
    except ValueError:
        native = False  # refused on this target
    assert ms_lossscale.model.scales_by_default(level) == native


def test_fit_serves_callbacks_metrics_and_evaluation(mode, capsys):
    manager = DynamicLossScaleManager(2**100, 2, 100)
    network, optimizer = dense()
    model = Model(network, nn.MSELoss(), optimizer, metrics={"mae": nn.MAE()}, loss_scale_manager=manager)
    record = Record(manager)
    checkpoint = ModelCheckpoint("net", directory="ckpt", config=CheckpointConfig(save_checkpoint_steps=2))
    schedule = LearningRateScheduler(lambda rate, step: rate / 2 if step == 1 else rate)
    results = []

    class Own(Callback):
        def on_eval_end(self, run_context):
            results.append(run_context.original_args().eval_results["mae"])

    # A large input overflows the gradient and leaves the loss finite, which LossMonitor insists on.
    large = NumpySlicesDataset((np.concatenate([X, X * 1e12]), np.ones((8, 2), np.float32)), shuffle=False).batch(4)
    model.fit(2, large, batches(1), callbacks=[record, LossMonitor(1), checkpoint, schedule, Own()],
              dataset_sink_mode=False, valid_dataset_sink_mode=False)
    assert record.overflow == [False, True, False, True]
    assert record.host == record.device and record.scale == [2.0**100, 2.0**99, 2.0**99, 2.0**98]
    assert optimizer.learning_rate.asnumpy() == np.float32(0.0625)
    assert len(results) == 2 and results[1] < results[0]
    assert capsys.readouterr().out.count("loss is") == 4
    saved = ms.load_checkpoint("ckpt/net-2_2.ckpt")
    assert saved["scale_sense"].asnumpy() == 2.0**98
    assert {"weight", "moments.weight", "current_iterator_step", "last_overflow_iterator_step", "skipped_steps",
            "applied_steps", "consecutive_overflows"} <= set(saved)


def test_model_runs_a_step_of_ones_own(mode):
    network, optimizer = dense()
    manager, record = DynamicLossScaleManager(8, 2, 1), Record()
    step = build_train_network(network, optimizer, nn.MSELoss(), loss_scale_manager=manager)
    Model(step).train(1, batches(1, INF, 1), record, dataset_sink_mode=True)  # on CPU no sink: MindSpore goes without
    assert record.overflow == [False, True, False]
    assert record.scale == [16, 8, 16] and manager.loss_scale == 16


class Doubling(Callback):
    """Sets the scale of the step from outside, as scripts do."""

    def on_train_step_end(self, run_context):
        step = run_context.original_args().train_network
        step.set_sense_scale(Tensor(step.scale_sense.asnumpy() * 2))


def test_a_callback_may_set_the_scale_of_a_step_with_a_tensor(mode):
    network, optimizer = dense()
    step = ms_lossscale.TrainOneStepWithLossScaleCell(nn.WithLossCell(network, nn.MSELoss()), optimizer, Tensor([8.0]))
    record = Record()
    Model(step).train(1, batches(1, 1, 1), [record, Doubling()], dataset_sink_mode=False)
    assert record.scale == [8, 16, 32] and step.get_loss_scale() == 64


def test_a_manager_copies_and_pickles_inside_and_outside_of_model(mode):
    manager = DynamicLossScaleManager(2**6, 2, 2)
    manager.update_loss_scale(True)
    model = make_model(manager)
    train(model, 1, INF, 1)
    assert (manager.loss_scale, manager.cur_iter) == (16, 5)
    at_copying = numbers(manager)
    twins = copy.copy(manager), copy.deepcopy(manager), pickle.loads(pickle.dumps(manager))
    train(model, INF)
    moved = numbers(manager)
    for twin in twins:
        assert type(twin) is DynamicLossScaleManager and numbers(twin) == at_copying
        assert twin.get_update_cell().cur_iter.asnumpy() == twin.cur_iter
        twin.update_loss_scale(False)
        assert (twin.cur_iter, numbers(manager)) == (6, moved)
        again = pickle.loads(pickle.dumps(copy.deepcopy(twin)))
        make_model(again)
        assert numbers(again) == numbers(twin)
    fixed = pickle.loads(pickle.dumps(copy.deepcopy(make_model(FixedLossScaleManager(8))._loss_scale_manager)))
    assert (fixed.get_loss_scale(), fixed.get_drop_overflow_update()) == (8, True)


def test_our_managers_pass_for_mindspores():
    assert issubclass(LossScaleManager, amp.LossScaleManager)
    for manager in (FixedLossScaleManager(), DynamicLossScaleManager(), OwnManager(None)):
        assert isinstance(manager, LossScaleManager) and isinstance(manager, amp.LossScaleManager)


def test_dynamic_shapes_are_carried_over_to_the_step(mode):
    network, optimizer = dense()
    shapes = Tensor(shape=(None, 3), dtype=ms.float32), Tensor(shape=(None, 2), dtype=ms.float32)
    loss = nn.MSELoss()
    network.set_inputs(shapes[0])
    loss.set_inputs(Tensor(shape=(None, 2), dtype=ms.float32), shapes[1])
    manager = DynamicLossScaleManager(2**6, 2, 1)
    model = Model(network, loss, optimizer, loss_scale_manager=manager)
    assert [tuple(t.shape) for t in model.train_network.get_inputs()] == [(-1, 3), (-1, 2)]
    x = np.concatenate([X, X, X])[:10]
    ragged = NumpySlicesDataset((x, np.ones((10, 2), np.float32)), shuffle=False).batch(4)
    model.train(1, ragged, dataset_sink_mode=False)
    assert manager.loss_scale == 2**9
    if mode == ms.GRAPH_MODE:
        assert len(model.train_network.compile_cache) == 1


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 has no set_inputs by name")
def test_dynamic_shapes_set_by_name_are_carried_over(mode):
    network, optimizer = dense()
    network.set_inputs(x=Tensor(shape=(None, 3), dtype=ms.float32))
    ours = Model(network, nn.MSELoss(), optimizer, loss_scale_manager=FixedLossScaleManager(8))
    native = ms.Model(network, nn.MSELoss(), optimizer)
    assert repr(ours.train_network.get_inputs()) == repr(native.train_network.get_inputs())
    assert ours.train_network.get_inputs() is not None


class BatchNormed(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.norm = nn.Dense(3, 2), nn.BatchNorm1d(2)

    def construct(self, x):
        return self.norm(self.dense(x))


@pytest.mark.parametrize("level, keep", [("O2", True), ("O2", False), ("O3", True), ("O3", False)])
def test_keep_batchnorm_fp32_does_what_mindspores_does(level, keep):
    def cells(build):
        network = BatchNormed()
        step = build(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), level)
        return [(name, type(cell).__name__, cell.get_flags()) for name, cell in step.network.cells_and_names()]

    native = cells(lambda *args: native_build_train_network(
        args[0], args[1], nn.MSELoss(), args[2], loss_scale_manager=None, keep_batchnorm_fp32=keep))
    assert ("_OutputTo16" in str(native)) == keep
    assert native == cells(lambda *args: build_train_network(
        args[0], args[1], nn.MSELoss(), args[2], loss_scale_manager=FixedLossScaleManager(), keep_batchnorm_fp32=keep))
    assert native == cells(lambda *args: Model(
        args[0], nn.MSELoss(), args[1], amp_level=args[2], loss_scale_manager=FixedLossScaleManager(),
        keep_batchnorm_fp32=keep).train_network)


WRONG = {
    "unknown keyword": {"scale": 1},
    "keep_batchnorm_fp32": {"keep_batchnorm_fp32": "yes"},
    "cast_model_type": {"cast_model_type": ms.int32},
    "level": {"level": "O9"},
    "type of level": {"level": ["O2"]},
    "boost_level": {"boost_level": "O7"},
    "network": {"network": 5},
    "optimizer": {"optimizer": None},
    "loss_fn": {"loss_fn": "mse"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("manager", [{}, {"loss_scale_manager": FixedLossScaleManager(8)}], ids=["none", "fixed"])
def test_a_wrong_argument_is_refused_as_by_mindspore(wrong, manager):
    def error(build, manager):
        network, optimizer = dense()
        arguments = {"network": network, "optimizer": optimizer, "loss_fn": nn.MSELoss(), **wrong}
        with pytest.raises(Exception) as caught:
            build(**arguments, **manager)
        return caught.type, str(caught.value)

    assert error(build_train_network, manager) == error(native_build_train_network, {})

    if "optimizer" not in wrong:  # Model needs none
        wrong = {"amp_level": wrong["level"]} if "level" in wrong else wrong
        assert error(Model, manager) == error(ms.Model, {})


@pytest.mark.parametrize("manager", [5, True, "dynamic", 1024.0, FixedLossScaleManager,
                                     FixedLossScaleManager().get_update_cell()])
def test_what_is_no_manager_is_refused(manager):
    for build, who in ((Model, "Model"), (build_train_network, "build_train_network")):
        network, optimizer = dense()
        with pytest.raises(TypeError, match=f"For '{who}', 'loss_scale_manager' must be a LossScaleManager or None"):
            build(network, loss_fn=nn.MSELoss(), optimizer=optimizer, loss_scale_manager=manager)


def test_a_manager_needs_an_optimizer():
    with pytest.raises(ValueError, match="For 'Model', 'optimizer' must be an Optimizer"):
        Model(dense()[0], nn.MSELoss(), loss_scale_manager=FixedLossScaleManager())


@pytest.mark.parametrize("scale, kind", [(None, TypeError), ("64", TypeError), (0, ValueError), (INF, ValueError)])
def test_a_manager_without_update_cell_needs_a_usable_scale(scale, kind):
    class Bad(LossScaleManager):
        def get_loss_scale(self):
            return scale

    with pytest.raises(kind, match=r"For 'Model', 'loss_scale_manager\.get_loss_scale\(\)' must be a finite"):
        make_model(Bad())


@pytest.fixture
def pretend(monkeypatch):
    """Return a function that makes MindSpore answer with another device target."""
    get = context.get_context

    def as_if(target):
        monkeypatch.setattr(context, "get_context", lambda name: target if name == "device_target" else get(name))

    return as_if


def group_manager():
    return {"loss_scale_manager": GroupLossScaleManager(64, [])}


def accumulating():
    network, optimizer = dense()
    return {"network": nn.GradAccumulationCell(nn.WithLossCell(network, nn.MSELoss()), 2), "loss_fn": None,
            "optimizer": optimizer}


def with_optimizer(kind):
    # What they are made of is not for one CPU: an empty one must do.
    return {"optimizer": type(kind.__name__, (kind,), {"__init__": nn.Cell.__init__})()}


def parallel(**options):
    context.set_auto_parallel_context(**options)
    return {}


def thor():
    from mindspore.nn.optim.thor import ThorGpu
    return with_optimizer(ThorGpu)


FOREIGN = {
    "boost level O1": lambda: {"boost_level": "O1"},
    "boost level O2": lambda: {"boost_level": "O2"},
    "GroupLossScaleManager": group_manager,
    "gradient accumulation cell": accumulating,
    "AdaSum": lambda: with_optimizer(nn.AdaSumByGradWrapCell),
    "Thor": thor,
    "pipeline parallelism": lambda: parallel(pipeline_stages=2),
    "parallel mode auto_parallel": lambda: parallel(parallel_mode="auto_parallel"),
    "parallel mode semi_auto_parallel": lambda: parallel(parallel_mode="semi_auto_parallel"),
}


def foreign_arguments(mode_name):
    if mode_name == "gradient accumulation cell" and not hasattr(nn, "GradAccumulationCell"):
        pytest.skip("this MindSpore has no gradient accumulation cell")
    network, optimizer = dense()
    return {"network": network, "optimizer": optimizer, "loss_fn": nn.MSELoss(),
            "loss_scale_manager": DynamicLossScaleManager(64), **FOREIGN[mode_name]()}


def builders(mode_name):
    yield build_train_network, "build_train_network"
    if not (V200 and "parallel mode" in mode_name):  # there its Model wants the ranks to be connected
        yield Model, "Model"


@pytest.fixture
def graph():
    """Semi-automatic parallelism is for graph mode alone."""
    before = context.get_context("mode")
    context.set_context(mode=ms.GRAPH_MODE)
    yield
    context.reset_auto_parallel_context()
    context.set_context(mode=before)


@pytest.mark.parametrize("mode_name", FOREIGN)
def test_a_mode_that_only_mindspore_serves_is_refused_on_cpu(mode_name, graph):
    arguments = foreign_arguments(mode_name)
    for build, who in builders(mode_name):
        with pytest.raises(ValueError) as caught:
            build(**arguments)
        assert f"For '{who}', loss scaling with" in str(caught.value) and mode_name in str(caught.value)
        assert "do not run on CPU" in str(caught.value)


@pytest.mark.parametrize("mode_name", ["boost level O1", "parallel mode semi_auto_parallel"])
def test_a_mode_that_only_mindspore_serves_is_left_to_it_on_other_devices(mode_name, graph, pretend):
    pretend("Ascend")
    arguments = foreign_arguments(mode_name)
    expected = boost.BoostTrainOneStepWithLossScaleCell if "boost" in mode_name else nn.TrainOneStepWithLossScaleCell
    for build, _ in builders(mode_name):
        with pytest.warns(RuntimeWarning, match=f"Loss scaling with {mode_name} is done by MindSpore's own") as caught:
            step = build(**arguments)
        step = getattr(step, "train_network", step)
        assert [warning.filename for warning in caught] == [__file__]
        assert type(step) is expected
        assert isinstance(step.loss_scaling_manager, ms_lossscale.DynamicLossScaleUpdateCell)


def test_the_default_manager_goes_to_mindspores_cells_too(graph, pretend):
    pretend("Ascend")
    network, optimizer = dense()
    with pytest.warns(RuntimeWarning, match="boost level O1"):
        model = Model(network, nn.MSELoss(), optimizer, amp_level="O2", boost_level="O1")
    assert isinstance(model.train_network.loss_scaling_manager, ms_lossscale.DynamicLossScaleUpdateCell)
    assert isinstance(model._loss_scale_manager, DynamicLossScaleManager)


def test_boost_runs_on_cpu_where_nothing_is_skipped(mode):
    model = make_model(FixedLossScaleManager(64, False), 64.0, metrics={"mae": nn.MAE()}, boost_level="O1")
    assert type(model.train_network) is boost.BoostTrainOneStepCell
    train(model, 1)


SNAPSHOT = """
import json, sys, types
import mindspore

def snapshot():
    return {name: {key: id(value) for key, value in vars(module).items()}
            for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType) and name.split(".")[0] == "mindspore"}

keep, before = [list(vars(module).values()) for module in list(sys.modules.values()) if module], snapshot()
import ms_lossscale
after = snapshot()
changed = [f"{name}.{key}" for name in before for key in before[name].keys() | after[name].keys()
           if before[name].get(key) != after[name].get(key) and f"{name}.{key}" not in sys.modules]
print(json.dumps(changed))
"""


def test_importing_the_package_changes_nothing_in_mindspore():
    run = subprocess.run([sys.executable, "-c", SNAPSHOT], capture_output=True, text=True, timeout=120,
                         env={**os.environ, "PYTHONPATH": str(Path(ms_lossscale.__file__).parent.parent)})
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout.splitlines()[-1]) == []
