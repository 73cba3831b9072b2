"""The documented names: signatures, defaults, return values, attributes and parameter names are MindSpore's."""

import copy
import inspect
import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, amp, nn, ops
from mindspore.train.amp import build_train_network as native_build_train_network

import ms_lossscale
from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
    LossScaleManager,
    TrainOneStepWithLossScaleCell,
)

NATIVE = {
    "LossScaleManager": amp.LossScaleManager,
    "FixedLossScaleManager": amp.FixedLossScaleManager,
    "DynamicLossScaleManager": amp.DynamicLossScaleManager,
    "FixedLossScaleUpdateCell": nn.FixedLossScaleUpdateCell,
    "DynamicLossScaleUpdateCell": nn.DynamicLossScaleUpdateCell,
    "TrainOneStepWithLossScaleCell": nn.TrainOneStepWithLossScaleCell,
    "Model": ms.Model,
    "build_train_network": native_build_train_network,
}
CLASSES = sorted(name for name in NATIVE if inspect.isclass(NATIVE[name]))
UPDATE_CELLS = {"fixed": lambda: FixedLossScaleUpdateCell(8), "dynamic": lambda: DynamicLossScaleUpdateCell(8, 2, 3)}
COUNTERS = ["applied_steps", "skipped_steps", "consecutive_overflows"]
X = Tensor(np.ones((2, 2)), ms.float32)


class Net(nn.Cell):
    """Returns a loss whose gradient is that of one dense layer, times `factor`."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")

    def construct(self, x, factor):
        return self.dense(x).mean() * factor


def make_step(scale_sense=None, kind=TrainOneStepWithLossScaleCell, **options):
    network = Net()
    optimizer = nn.Momentum(network.trainable_params(), 0.125, 0.5)
    return kind(network, optimizer, Tensor(8.0) if scale_sense is None else scale_sense, **options)


def named(parameters):
    return [(p.name, p.kind, p.default) for p in parameters]


# Signatures.

@pytest.mark.parametrize("name", sorted(NATIVE))
def test_the_documented_arguments_are_mindspores_and_extras_are_keyword_only(name):
    native = list(inspect.signature(NATIVE[name]).parameters.values())
    ours = list(inspect.signature(getattr(ms_lossscale, name)).parameters.values())
    assert named(ours[:len(native)]) == named(native)
    for extra in ours[len(native):]:
        assert extra.kind is inspect.Parameter.KEYWORD_ONLY
        assert extra.default is not inspect.Parameter.empty


@pytest.mark.parametrize("name", CLASSES)
def test_the_documented_methods_take_what_mindspores_take(name):
    native, ours = NATIVE[name], getattr(ms_lossscale, name)
    methods = [method for method, value in vars(native).items() if inspect.isfunction(value)
               and not method.startswith("_") and method not in ("construct", "train", "fit")]
    assert methods or name == "Model"
    for method in methods:
        assert callable(getattr(ours, method)), method
        found = list(inspect.signature(getattr(ours, method)).parameters.values())
        assert named(found) == named(inspect.signature(getattr(native, method)).parameters.values()), method


@pytest.mark.parametrize("method", ["train", "fit"])
def test_model_passes_on_every_argument_of_mindspores(method):
    native = named(inspect.signature(getattr(ms.Model, method)).parameters.values())
    ours = named(inspect.signature(getattr(ms_lossscale.Model, method), follow_wrapped=False).parameters.values())
    rest = [(name, kind) for name, kind, _ in ours[-2:]]
    assert rest == [("args", inspect.Parameter.VAR_POSITIONAL), ("kwargs", inspect.Parameter.VAR_KEYWORD)]
    assert ours[:-2] == native[:len(ours) - 2]


@pytest.mark.parametrize("name", ["FixedLossScaleUpdateCell", "DynamicLossScaleUpdateCell"])
def test_an_update_cell_is_called_with_two_arguments(name):
    for cls in (NATIVE[name], getattr(ms_lossscale, name)):
        assert len(inspect.signature(cls.construct).parameters) == 3


@pytest.mark.parametrize("name", CLASSES)
def test_extras_are_refused_by_position(name):
    native = inspect.signature(NATIVE[name]).parameters.values()
    documented = [None for p in native if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    inspect.signature(getattr(ms_lossscale, name)).bind(*documented)
    with pytest.raises(TypeError, match="too many positional arguments"):
        inspect.signature(getattr(ms_lossscale, name)).bind(*documented, None)


# Base classes.

@pytest.mark.parametrize("name", ["LossScaleManager", "FixedLossScaleManager", "DynamicLossScaleManager"])
def test_managers_are_mindspores_managers(name):
    cls = getattr(ms_lossscale, name)
    assert issubclass(cls, amp.LossScaleManager)
    assert issubclass(cls, LossScaleManager)
    assert not issubclass(cls, (amp.FixedLossScaleManager, amp.DynamicLossScaleManager))


@pytest.mark.parametrize("name", ["FixedLossScaleUpdateCell", "DynamicLossScaleUpdateCell"])
def test_update_cells_are_cells_but_not_mindspores_own(name):
    cls = getattr(ms_lossscale, name)
    assert issubclass(cls, nn.Cell)
    assert not issubclass(cls, (nn.FixedLossScaleUpdateCell, nn.DynamicLossScaleUpdateCell))


def test_the_step_is_a_train_one_step_cell_but_not_mindspores_own():
    assert issubclass(TrainOneStepWithLossScaleCell, nn.TrainOneStepCell)
    assert not issubclass(TrainOneStepWithLossScaleCell, nn.TrainOneStepWithLossScaleCell)
    assert issubclass(ms_lossscale.Model, ms.Model)


# Managers.

def test_the_base_manager_answers_as_mindspores_does():
    for manager in (amp.LossScaleManager(), LossScaleManager()):
        assert manager.get_loss_scale() is None
        assert manager.update_loss_scale(True) is None
        assert manager.get_update_cell() is None
    assert LossScaleManager().get_drop_overflow_update() is False


@pytest.mark.parametrize("cell, drops", [(lambda: FixedLossScaleUpdateCell(8), True), (lambda: None, False)])
def test_a_manager_of_ones_own_needs_three_methods(cell, drops):
    class Own(LossScaleManager):
        def __init__(self):
            self.asked = 0

        def get_loss_scale(self):
            return 8

        def update_loss_scale(self, overflow):
            pass

        def get_update_cell(self):
            self.asked += 1
            return cell()

    manager = Own()
    assert manager.get_drop_overflow_update() is drops
    assert manager.get_drop_overflow_update() is drops
    assert manager.asked == 1


@pytest.mark.parametrize("drop", [True, False])
def test_the_fixed_manager_answers_as_mindspores_does(drop):
    for manager in (amp.FixedLossScaleManager(64, drop), FixedLossScaleManager(64, drop)):
        assert manager.get_drop_overflow_update() is drop
        assert manager.update_loss_scale(True) is None
        assert manager.get_loss_scale() == 64
        assert (manager.get_update_cell() is not None) is drop
    if drop:
        assert isinstance(manager.get_update_cell(), FixedLossScaleUpdateCell)
        assert manager.get_update_cell().get_loss_scale() == 64


def test_the_default_of_the_fixed_manager():
    manager = FixedLossScaleManager()
    assert (manager.get_loss_scale(), manager.get_drop_overflow_update()) == (128.0, True)


@pytest.mark.parametrize("arguments", [(), (2.0**10,), (1000, 4, 5)], ids=["default", "scale", "all"])
def test_a_new_dynamic_manager_has_mindspores_attributes(arguments):
    native, ours = amp.DynamicLossScaleManager(*arguments), DynamicLossScaleManager(*arguments)
    assert {"loss_scale", "scale_window", "scale_factor", "increase_ratio", "decrease_ratio", "cur_iter",
            "last_overflow_iter", "bad_step_max", "bad_step"} <= set(vars(native))
    for name, value in vars(native).items():
        assert getattr(ours, name) == value, name
    assert ours.get_drop_overflow_update() is native.get_drop_overflow_update() is True
    assert ours.get_loss_scale() == native.get_loss_scale()
    assert isinstance(ours.get_update_cell(), DynamicLossScaleUpdateCell)


@pytest.mark.parametrize("arguments", [(4, 3000), (2.0**16, 1.5), (1024, 2**0.5), (256, 2, 3), (2.0**10, 1)])
def test_the_dynamic_manager_moves_as_mindspores_does(arguments):
    native, ours = amp.DynamicLossScaleManager(*arguments), DynamicLossScaleManager(*arguments)
    native.scale_window = ours.scale_window = 3
    for overflow in [False] * 7 + [True, False, True, True] + [False] * 8 + [True] * 3:
        assert native.update_loss_scale(overflow) is ours.update_loss_scale(overflow) is None
        assert ours.get_loss_scale() == pytest.approx(native.get_loss_scale(), rel=1e-6)
        for name in ("cur_iter", "last_overflow_iter", "bad_step"):
            expected = getattr(native, name)
            if name == "last_overflow_iter" and not overflow:
                continue  # ours also notes growth there, as the device does
            assert getattr(ours, name) == expected, name


def test_the_second_positional_argument_is_the_factor():
    manager = DynamicLossScaleManager(4, 3000)
    assert (manager.get_loss_scale(), manager.scale_factor, manager.scale_window) == (4, 3000, 2000)
    cell = manager.get_update_cell()
    assert (cell.get_loss_scale(), cell.scale_factor.asnumpy(), cell.scale_window.asnumpy()) == (4, 3000, 2000)


def test_the_first_overflow_beyond_bad_step_max_raises_as_in_mindspore():
    for manager in (amp.DynamicLossScaleManager(), DynamicLossScaleManager()):
        for _ in range(1000):
            manager.update_loss_scale(True)
        with pytest.raises(RuntimeError):
            manager.update_loss_scale(True)


@pytest.mark.parametrize("number", [8, 8.5, 2**24, np.float16(8), np.float32(8.5), np.float64(8.5), np.int8(8),
                                    np.uint64(8)], ids=lambda number: f"{type(number).__name__}-{number}")
def test_get_loss_scale_returns_the_number_as_it_was_given(number):
    for owner in (FixedLossScaleManager(number), DynamicLossScaleManager(number), FixedLossScaleUpdateCell(number),
                  DynamicLossScaleUpdateCell(number, 2, 3)):
        assert owner.get_loss_scale() is number


def test_a_manager_copies_with_its_state():
    manager = DynamicLossScaleManager(1024, 2, 3)
    manager.update_loss_scale(True)
    twin = copy.deepcopy(manager)
    assert vars(twin).keys() == vars(manager).keys()
    twin.update_loss_scale(True)
    assert (manager.get_loss_scale(), manager.cur_iter) == (512, 2)
    assert (twin.get_loss_scale(), twin.cur_iter) == (256, 3)
    assert copy.deepcopy(FixedLossScaleManager(64, False)).get_loss_scale() == 64


# Update cells.

@pytest.mark.parametrize("make", UPDATE_CELLS.values(), ids=UPDATE_CELLS)
def test_an_update_cell_is_true(make):
    cell = make()
    assert cell
    assert bool(cell) is True
    assert copy.deepcopy(cell)


def test_the_parameters_of_an_update_cell_are_mindspores():
    def parameters(cell):
        return [(name, p.name, p.shape, p.dtype, p.asnumpy().item()) for name, p in cell.parameters_dict().items()]

    native, ours = nn.DynamicLossScaleUpdateCell(8, 2, 3), DynamicLossScaleUpdateCell(8, 2, 3)
    assert parameters(ours) == parameters(native)
    assert [ours.cur_iter.name, ours.last_overflow_iter.name] == [
        "current_iterator_step", "last_overflow_iterator_step"]
    for name in ("scale_factor", "scale_window", "minimum_loss_scale"):
        mine, theirs = getattr(ours, name), getattr(native, name)
        assert (mine.dtype, mine.shape, mine.asnumpy()) == (theirs.dtype, theirs.shape, theirs.asnumpy()), name
    assert parameters(FixedLossScaleUpdateCell(8)) == []


@pytest.mark.parametrize("shape", [(), (1,)])
def test_an_update_cell_returns_the_flag_and_its_copy_counts_alone(shape, mode):
    cell = DynamicLossScaleUpdateCell(8, 2, 2)
    twin = copy.deepcopy(cell)
    scale = Parameter(Tensor(np.full(shape, 8), ms.float32), name="scale")
    flags = [cell(scale, Tensor(flag)).asnumpy().tolist() for flag in (False, True, False, False)]
    assert flags == [False, True, False, False]
    assert scale.asnumpy().tolist() == np.full(shape, 8).tolist()  # halved, then doubled
    assert (cell.cur_iter.asnumpy(), cell.last_overflow_iter.asnumpy()) == (5, 4)
    assert (twin.cur_iter.asnumpy(), twin.last_overflow_iter.asnumpy()) == (1, 0)
    assert twin(scale, Tensor(True)).asnumpy() and cell.cur_iter.asnumpy() == 5
    assert FixedLossScaleUpdateCell(8)(scale, Tensor(True)).asnumpy()


def test_the_copy_of_an_owned_update_cell_leaves_the_step_alone():
    step = make_step(DynamicLossScaleUpdateCell(8, 2, 3))
    twin = copy.deepcopy(step.loss_scaling_manager)
    step.set_sense_scale(Tensor(32.0))
    assert step.loss_scaling_manager.get_loss_scale() == 32
    assert twin.get_loss_scale() == 8


def test_a_cell_given_other_numbers_before_the_step_is_built_uses_them(mode):
    cells = [nn.DynamicLossScaleUpdateCell(8, 2, 4), DynamicLossScaleUpdateCell(8, 2, 4)]
    outcomes = []
    for cell in cells:
        cell.loss_scale_value = 64
        cell.cur_iter = Tensor(9, ms.int32)
        cell.last_overflow_iter = Parameter(Tensor(6, ms.int32), name="last_overflow_iterator_step")
        scale = Parameter(Tensor(cell.get_loss_scale(), ms.float32), name="scale")
        steps = [(cell(scale, Tensor(False)), scale.asnumpy().item())[1] for _ in range(3)]
        outcomes.append((steps, cell.cur_iter.asnumpy().item(), cell.last_overflow_iter.asnumpy().item()))
    assert outcomes[0] == outcomes[1] == ([64, 128, 128], 12, 10)
    assert make_step(cells[1]).get_loss_scale() == 64


def test_two_steps_may_share_one_update_cell():
    cell = DynamicLossScaleUpdateCell(8, 2, 3)
    one, two = make_step(cell), make_step(cell)
    assert one.loss_scaling_manager is two.loss_scaling_manager is cell
    assert one.scale_sense is not two.scale_sense
    assert one.loss_scaling_manager.cur_iter is two.loss_scaling_manager.cur_iter


# The step, from outside.

# What no known subclass uses: flags of device targets, and operators of MindSpore's own check.
UNUSED = {"gpu_target", "ascend_910a_target", "ascend_910b_target", "enable_allfinite",
          "base0", "equal", "logic_not", "reduce_all"}


def public(cell):
    return {name for name in (*vars(cell), *cell._cells, *cell._params) if not name.startswith("_")}


@pytest.mark.parametrize("make", [nn.DynamicLossScaleUpdateCell, None], ids=["cell", "tensor"])
def test_the_step_has_the_attributes_of_mindspores(make):
    native = make_step(make and make(8, 2, 3), kind=nn.TrainOneStepWithLossScaleCell)
    ours = make_step(make and DynamicLossScaleUpdateCell(8, 2, 3))
    assert {name for name in public(native) if not hasattr(ours, name)} <= UNUSED
    for name in ("grad", "grad_reducer", "hyper_map", "less_equal", "allreduce", "reduce_sum"):
        assert type(getattr(ours, name)) is type(getattr(native, name)), name
    for name in ("reducer_flag", "parallel_mode", "is_distributed", "enable_tuple_broaden"):
        assert getattr(ours, name) == getattr(native, name), name
    assert (ours.grad.get_by_list, ours.grad.sens_param) == (True, True)
    assert ours.reduce_sum.keep_dims == native.reduce_sum.keep_dims
    assert (ours.base.dtype, ours.base.shape, ours.base.asnumpy()) == (ms.float32, (), 1)
    assert ours.grad_reducer(X) is X
    assert getattr(ours, "use_graceful_exit", None) == getattr(native, "use_graceful_exit", None)
    assert (ours.loss_scaling_manager is None) == (native.loss_scaling_manager is None)


def test_the_step_holds_what_it_was_given():
    network, cell = Net(), FixedLossScaleUpdateCell(8)
    optimizer = nn.SGD(network.trainable_params(), 0.125)
    step = TrainOneStepWithLossScaleCell(network, optimizer, cell)
    assert step.network is network and step.optimizer is optimizer
    assert [id(weight) for weight in step.weights] == [id(parameter) for parameter in network.trainable_params()]
    assert step.loss_scaling_manager is cell
    assert TrainOneStepWithLossScaleCell(network, optimizer, scale_sense=Tensor(8.0)).loss_scaling_manager is None


@pytest.mark.skipif(not hasattr(make_step(kind=nn.TrainOneStepWithLossScaleCell), "use_graceful_exit"),
                    reason="this MindSpore knows no graceful exit")
def test_the_step_takes_part_in_graceful_exit(monkeypatch):
    monkeypatch.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")
    native, ours = make_step(kind=nn.TrainOneStepWithLossScaleCell), make_step()
    assert ours.use_graceful_exit is native.use_graceful_exit is True
    assert type(ours.graceful_exit) is type(native.graceful_exit)
    for name in ("exit_param", "init_param"):
        mine, theirs = getattr(ours, name), getattr(native, name)
        assert (mine.name, mine.shape, mine.dtype) == (theirs.name, theirs.shape, theirs.dtype)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_the_scale_is_a_float32_parameter_of_the_given_shape(shape):
    native = make_step(Tensor(np.full(shape, 8), ms.float32), kind=nn.TrainOneStepWithLossScaleCell).scale_sense
    ours = make_step(Tensor(np.full(shape, 8), ms.float32)).scale_sense
    for scale in (native, ours):
        assert isinstance(scale, Parameter)
        assert (scale.name, scale.shape, scale.dtype) == ("scale_sense", shape, ms.float32)
        assert scale.asnumpy().item() == 8


def test_the_live_scale_reads_from_step_and_update_cell():
    step = make_step(DynamicLossScaleUpdateCell(8, 2, 3))
    assert step.get_loss_scale() == step.loss_scaling_manager.get_loss_scale() == 8
    step.scale_sense.set_data(Tensor(32.0))
    assert step.get_loss_scale() == step.loss_scaling_manager.get_loss_scale() == 32
    assert step.scale_sense.asnumpy().item() == 32


class Box(nn.Cell):
    """Holds a step as an attribute, as an outer cell does."""

    def __init__(self, step):
        super().__init__()
        self.step = step


@pytest.mark.parametrize("make", [nn.DynamicLossScaleUpdateCell, nn.FixedLossScaleUpdateCell, None],
                         ids=["dynamic", "fixed", "tensor"])
@pytest.mark.parametrize("outer", [lambda step: step, Box, nn.SequentialCell], ids=["bare", "in a cell", "in a list"])
def test_checkpoint_keys_are_mindspores_and_three_counters(make, outer, tmp_path):
    def build(module, kind):
        arguments = (8, 2, 3) if make is nn.DynamicLossScaleUpdateCell else (8,)
        return outer(make_step(make and getattr(module, make.__name__)(*arguments), kind=kind))

    def keys(cell, file):
        ms.save_checkpoint(cell, str(tmp_path / file))
        return list(ms.load_checkpoint(str(tmp_path / file)))

    native = keys(build(nn, nn.TrainOneStepWithLossScaleCell), "native.ckpt")
    step = build(ms_lossscale, TrainOneStepWithLossScaleCell)
    ours = keys(step, "ours.ckpt")
    counters = [key for key in ours if key.rpartition(".")[2] in COUNTERS]
    assert [key for key in ours if key not in counters] == native
    assert [key.rpartition(".")[2] for key in counters] == COUNTERS
    assert len({key.rpartition(".")[0] for key in (*counters, *(k for k in ours if k.endswith("scale_sense")))}) == 1
    # and both ways MindSpore's own loader finds what it looks for
    missing = ms.load_param_into_net(step, ms.load_checkpoint(str(tmp_path / "native.ckpt")))
    assert sorted(missing[0] if isinstance(missing, tuple) else missing) == sorted(counters)


def test_the_counters_are_not_trained():
    step = make_step(DynamicLossScaleUpdateCell(8, 2, 3))
    trained = {parameter.name for parameter in step.trainable_params()}
    assert trained & {*COUNTERS, "scale_sense", "current_iterator_step", "last_overflow_iterator_step"} == set()


# The step, when it runs.

def test_a_step_returns_loss_flag_and_scale(mode):
    step = make_step(DynamicLossScaleUpdateCell(8, 2, 2))
    wanted = [(1.0, False, 8), (np.inf, True, 4), (1.0, False, 4), (1.0, False, 8)]
    for factor, overflow, scale in wanted:
        outputs = step(X, Tensor(factor, ms.float32))
        assert isinstance(outputs, tuple) and len(outputs) == 3
        assert all(isinstance(output, Tensor) for output in outputs)
        assert (outputs[1].dtype, outputs[1].shape) == (ms.bool_, ())
        assert (outputs[2].dtype, outputs[2].shape) == (ms.float32, ())
        assert outputs[1].asnumpy() == overflow and bool(outputs[1]) is overflow
        assert outputs[2].asnumpy() == scale and outputs[2].value().asnumpy() == scale
        assert np.isfinite(outputs[0].asnumpy()) != overflow
    assert step.scale_sense.asnumpy().item() == 8


class ThirdParty(TrainOneStepWithLossScaleCell):
    """Written as subclasses of MindSpore's step are: an own scale, its own order, and every inherited name."""

    def __init__(self, network, optimizer, scale_update_cell=None):
        super(ThirdParty, self).__init__(network, optimizer, scale_update_cell)  # noqa: UP008
        self.cast = ops.Cast()
        self.loss_scaling_manager = scale_update_cell
        self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), ms.float32), name="loss_scale")

    def construct(self, x, factor, sens=None):
        weights = self.weights
        loss = self.network(x, factor)
        scaling_sens = self.loss_scale if sens is None else sens
        status, scaling_sens = self.start_overflow_check(loss, scaling_sens)
        seed = self.cast(scaling_sens, ops.dtype(loss)) * ops.ones_like(loss)
        grads = self.grad(self.network, weights)(x, factor, seed)
        grads = self.hyper_map(ops.partial(divide, scaling_sens), grads)
        grads = self.grad_reducer(grads)
        cond = self.get_overflow_status(status, grads)
        overflow = cond
        if sens is None:
            overflow = self.loss_scaling_manager(self.loss_scale, cond)
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond, scaling_sens.value()


divide = ops.MultitypeFuncGraph("divide")


@divide.register("Tensor", "Tensor")
def divide_tensor(scale, grad):
    return grad * ops.cast(ops.Reciprocal()(scale), ops.dtype(grad))


def test_a_third_party_subclass_runs_unchanged(mode):
    step = make_step(DynamicLossScaleUpdateCell(8, 2, 2), kind=ThirdParty)
    weight, skipped = step.network.dense.weight, []
    for factor in (1.0, np.inf, 1.0, 1.0):
        before = weight.asnumpy().copy()
        outputs = step(X, Tensor(factor, ms.float32))
        assert outputs[1].asnumpy() == np.isinf(factor)
        skipped.append(np.array_equal(before, weight.asnumpy()))
    assert skipped == [False, True, False, False]
    assert step.loss_scale.asnumpy().item() == 8
    assert step.loss_scaling_manager.cur_iter.asnumpy().item() == 5


def test_the_scale_is_set_for_the_next_step_and_keeps_its_shape(mode):
    for shape in ((), (1,)):
        step = make_step(Tensor(np.full(shape, 8), ms.float32))
        one = Tensor(1.0, ms.float32)
        assert step(X, one)[2].asnumpy().tolist() == np.full(shape, 8).tolist()
        for value in (Tensor(16.0), Tensor([32], ms.int32), Tensor([2], ms.float16)):
            step.set_sense_scale(value)
            scale = step(X, one)[2]
            assert (scale.shape, step.scale_sense.dtype) == (shape, ms.float32)
            assert scale.asnumpy().item() == value.asnumpy().item() == step.get_loss_scale()
        before = step.network.dense.weight.asnumpy().copy()
        step.set_sense_scale(Tensor(2.0**126, ms.float32))  # 16 times it is Inf
        assert step(X, Tensor(16.0, ms.float32))[1].asnumpy()
        assert np.array_equal(before, step.network.dense.weight.asnumpy())


def test_a_scale_of_zero_can_be_repaired(mode):
    step, one = make_step(), Tensor(1.0, ms.float32)
    step.scale_sense.set_data(Tensor(0.0, ms.float32))
    assert step(X, one)[1].asnumpy()
    step.set_sense_scale(Tensor(8.0))
    assert not step(X, one)[1].asnumpy()
    assert [getattr(step, name).asnumpy().item() for name in COUNTERS] == [1, 1, 0]


# Docstrings.

SECTIONS = ["Args", "Keyword Args", "Inputs", "Outputs", "Attributes", "Returns", "Raises", "Supported Platforms",
            "Examples"]


def methods_of(cls):
    return [(f"{cls.__name__}.{name}", value) for name, value in vars(cls).items()
            if inspect.isfunction(value) and not name.startswith("_") and name != "construct"]


PUBLIC = [(name, getattr(ms_lossscale, name)) for name in ms_lossscale.__all__]
DOCUMENTED = PUBLIC + [method for _, value in PUBLIC if inspect.isclass(value) for method in methods_of(value)
                       if method[0] not in ("Model.train", "Model.fit")]


@pytest.mark.parametrize("name, value", DOCUMENTED, ids=[name for name, _ in DOCUMENTED])
def test_a_docstring_begins_with_one_sentence_and_keeps_the_order_of_sections(name, value):
    text = value.__doc__ if not inspect.isclass(value) else vars(value).get("__doc__")
    assert text, "no docstring of its own"
    first = inspect.cleandoc(text).split("\n\n")[0]
    assert first.endswith(".") and "\n" not in first
    found = re.findall(rf"^({'|'.join(SECTIONS)}):$", inspect.cleandoc(text), re.MULTILINE)
    assert found == [section for section in SECTIONS if section in found]


@pytest.mark.parametrize("name, value", [pair for pair in PUBLIC if not (
    inspect.isclass(pair[1]) and issubclass(pair[1], Warning))])
def test_a_docstring_has_mindspores_sections(name, value):
    text = inspect.cleandoc(value.__doc__)
    expected = {"Supported Platforms"}
    if name != "LossScaleManager":
        expected.add("Examples")
    if inspect.signature(value).parameters:
        expected |= {"Args", "Raises"}
    if inspect.isclass(value) and issubclass(value, nn.Cell):
        expected |= {"Inputs", "Outputs"}
    if inspect.isfunction(value):
        expected.add("Returns")
    assert expected <= set(re.findall(r"^([A-Z][\w ]+):$", text, re.MULTILINE))
    platforms = re.search(r"Supported Platforms:\n    (.*)", text)[1]
    assert platforms == "``Ascend`` ``GPU`` ``CPU``"
