"""The rule on the device, against the oracle and against MindSpore's own update cell."""

import copy

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore_version import V200
from scale_oracle import POLICIES, oracle_of, random_trace

from ms_lossscale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, TrainOneStepWithLossScaleCell
from ms_lossscale.rule import ScaleRule


def cell_of(policy):
    scale, (factor, window), options = policy
    return DynamicLossScaleUpdateCell(scale, factor, window, **options)


class Trace(nn.Cell):
    """Runs a whole trace inside one graph, and keeps the scale after every step."""

    def __init__(self, cell, steps, shape=()):
        super().__init__()
        self.update, self.steps = cell, steps
        self.scale = Parameter(Tensor(np.full(shape, cell.get_loss_scale(), np.float32)), "scale", requires_grad=False)
        self.history = Parameter(Tensor(np.zeros(steps, np.float32)), "history", requires_grad=False)

    def construct(self, flags):
        i = Tensor(0, ms.int32)
        while i < self.steps:
            self.update(self.scale, flags[i])
            ops.scatter_update(self.history, i, ops.reshape(self.scale, ()))
            i = i + 1
        return i


def run_on_device(cell, trace, shape=()):
    """Return the scale after every step of `trace`, in the present mode."""
    runner = Trace(cell, len(trace), shape)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        runner(Tensor(trace))
        return runner.history.asnumpy().copy()
    flags = {flag: Tensor(flag) for flag in (True, False)}
    scales = []
    for overflow in trace:
        cell(runner.scale, flags[overflow])
        scales.append(runner.scale.asnumpy().item())
    return np.array(scales, np.float32)


def counters(cell):
    return {name: getattr(cell, name).asnumpy().item()
            for name in ("cur_iter", "last_overflow_iter", "tolerated_overflows") if hasattr(cell, name)}


def check(name, steps, seed):
    cell, oracle, trace = cell_of(POLICIES[name]), oracle_of(POLICIES[name]), random_trace(steps, seed)
    expected = oracle.run(trace)
    assert run_on_device(cell, trace).tobytes() == expected.tobytes()
    assert counters(cell).items() <= oracle.numbers().items()
    assert np.isfinite(expected).all() and len(set(expected)) > 1


@pytest.mark.parametrize("name", ["at the caps", "narrow", "hysteresis in a row"])
def test_steps_on_the_device_are_the_oracles_bit_for_bit(name, mode):
    check(name, 2000 if mode == ms.GRAPH_MODE else 60, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_ten_thousand_steps_in_a_graph_are_the_oracles_bit_for_bit(name):
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    check(name, 10_000, seed=2)
    ms.set_context(mode=before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["at the caps", "hysteresis in a row"])
def test_ten_thousand_steps_outside_a_graph_are_the_oracles_bit_for_bit(name):
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    check(name, 10_000, seed=2)
    ms.set_context(mode=before)


@pytest.mark.parametrize("name", ["factor 3", "hysteresis"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scale_of_either_shape_is_updated_in_place(name, shape, mode):
    scale, oracle = Parameter(Tensor(np.full(shape, 2187, np.float32)), name="own"), oracle_of(POLICIES[name])
    oracle.scale, cell = np.float32(2187), cell_of(POLICIES[name])
    for overflow in random_trace(24, seed=3):
        returned = cell(scale, Tensor(overflow))
        assert returned.asnumpy() == overflow and returned.dtype == ms.bool_ and returned.shape == ()
        assert scale.shape == shape and scale.asnumpy().item() == oracle.step(overflow)


@pytest.mark.parametrize("scale", [np.inf, 3e38, 2.0**-130, 0.25])
@pytest.mark.parametrize("overflow", [True, False])
def test_a_scale_from_outside_is_back_inside_its_bounds_after_one_step(scale, overflow, mode):
    parameter = Parameter(Tensor(scale, ms.float32), name="own")
    DynamicLossScaleUpdateCell(2, 2, 3, max_loss_scale=1e6)(parameter, Tensor(overflow))
    assert 1 <= parameter.asnumpy() <= 1e6


def test_it_moves_the_scale_as_mindspores_own_cell_does(mode):
    for scale, factor, window in ((2.0**20, 2, 4), (1000.7, 3, 2), (4, 3000, 3)):
        cells = DynamicLossScaleUpdateCell(scale, factor, window), nn.DynamicLossScaleUpdateCell(scale, factor, window)
        scales = [Parameter(Tensor(scale, ms.float32), name=f"scale{i}") for i in range(2)]
        for overflow in random_trace(20, seed=5):
            flags = [cell(parameter, Tensor(overflow)) for cell, parameter in zip(cells, scales)]
            assert flags[0].asnumpy() == flags[1].asnumpy() == overflow
            assert scales[0].asnumpy().tobytes() == scales[1].asnumpy().tobytes()
        assert counters(cells[0]) == counters(cells[1])


# What users do to a cell before they build a step from it: the effect must be MindSpore's.

ASSIGNED = {"int": lambda: 7, "numpy": lambda: np.int32(7), "Tensor": lambda: Tensor(7, ms.int32),
            "Tensor of shape (1,)": lambda: Tensor([7], ms.int32), "float Tensor": lambda: Tensor(7.0, ms.float32),
            "Parameter": lambda: Parameter(Tensor(7, ms.int32), name="theirs")}
TARGETS = [*((name, kind) for name in ("cur_iter", "last_overflow_iter") for kind in ASSIGNED),
           *(("loss_scale_value", kind) for kind in ASSIGNED)]


def effect(kind, name, value):
    """Return the error that assigning gives, or the scales and counters of the steps after it."""
    update, one_step = ((DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell) if kind == "ours" else
                        (nn.DynamicLossScaleUpdateCell, nn.TrainOneStepWithLossScaleCell))
    cell, network = update(16, 2, 3), nn.Dense(3, 2)
    try:
        setattr(cell, name, value)
    except (TypeError, ValueError) as error:
        return type(error)
    step = one_step(nn.WithLossCell(network, nn.MSELoss()), nn.SGD(network.trainable_params()), cell)
    names = {parameter.name for parameter in step.get_parameters()}
    seen = [step.scale_sense.shape, str(step.scale_sense.dtype), step.scale_sense.asnumpy().item(), "theirs" in names]
    for overflow in (False, False, True, False, False, False, False):
        step.process_loss_scale(Tensor(overflow)) if kind == "ours" else cell(step.scale_sense, Tensor(overflow))
        seen.append((step.scale_sense.asnumpy().item(), *(getattr(cell, name).asnumpy().item()
                                                          for name in ("cur_iter", "last_overflow_iter"))))
    return seen


@pytest.mark.parametrize("name, kind", TARGETS)
def test_what_is_assigned_to_a_cell_has_the_effect_it_has_in_mindspore(name, kind):
    if kind == "Tensor of shape (1,)" and (V200 or name != "loss_scale_value"):
        pytest.skip("MindSpore's own cell does not run after it")
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        assert effect("ours", name, ASSIGNED[kind]()) == effect("native", name, ASSIGNED[kind]())
    finally:
        ms.set_context(mode=before)


def test_counters_that_were_assigned_decide_when_the_scale_grows(mode):
    cell = DynamicLossScaleUpdateCell(16, 2, 100)
    cell.loss_scale_value, cell.cur_iter, cell.last_overflow_iter = 64, Tensor(250, ms.int32), Tensor(152, ms.int32)
    assert list(run_on_device(cell, [False, False, False])) == [64, 64, 128]
    assert counters(cell) == {"cur_iter": 253, "last_overflow_iter": 252}


# The cell and the step that owns it.

class Loss(nn.Cell):
    """A loss whose gradient is `factor`."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros(2, np.float32)), name="weight")

    def construct(self, factor):
        return (self.weight * factor).sum()


def step_around(cell):
    network = Loss()
    return TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params()), cell)


@pytest.mark.parametrize("make", [lambda: DynamicLossScaleUpdateCell(2**20, 2, 3),
                                  lambda: FixedLossScaleUpdateCell(2**20)], ids=["dynamic", "fixed"])
def test_get_loss_scale_is_the_number_given_and_then_the_live_scale_of_the_step(make, mode):
    cell = make()
    assert cell.get_loss_scale() == 2**20 and type(cell.get_loss_scale()) is int
    step = step_around(cell)
    assert cell.get_loss_scale() == 2.0**20 and type(cell.get_loss_scale()) is float
    step.set_sense_scale(Tensor(96.0))
    assert cell.get_loss_scale() == step.get_loss_scale() == 96
    assert [parameter.name for parameter in cell.get_parameters()].count("scale_sense") == 0


def test_a_cell_shared_by_two_steps_counts_the_steps_of_both(mode):
    cell = DynamicLossScaleUpdateCell(16, 2, 3)
    generator, discriminator = step_around(cell), step_around(cell)
    for step, overflow in ((generator, False), (discriminator, False), (generator, False), (discriminator, True)):
        step(Tensor(np.inf if overflow else 1.0, ms.float32))
    assert (generator.get_loss_scale(), discriminator.get_loss_scale()) == (32, 8)
    assert counters(cell) == {"cur_iter": 5, "last_overflow_iter": 4}
    assert [generator.applied_steps.asnumpy(), discriminator.skipped_steps.asnumpy()] == [2, 1]


@pytest.mark.parametrize("name", ["default", "hysteresis"])
def test_a_deep_copy_goes_on_by_itself(name, mode):
    cell, scale = cell_of(POLICIES[name]), Parameter(Tensor(64.0), name="own")
    cell(scale, Tensor(True))
    twin = copy.deepcopy(cell)
    assert counters(twin) == counters(cell) and twin.get_loss_scale() == cell.get_loss_scale()
    twin(scale, Tensor(False))
    assert counters(twin)["cur_iter"] == counters(cell)["cur_iter"] + 1


def test_update_cells_are_true():
    assert DynamicLossScaleUpdateCell(16, 2, 3) and FixedLossScaleUpdateCell(16)


def test_the_host_and_the_device_hold_the_same_factors():
    cell = DynamicLossScaleUpdateCell(10, 3, 5, min_loss_scale=0.1, max_loss_scale=1e20)
    rule = ScaleRule(3, 1 / 3, 5, 0.1, 1e20)
    for name, number in (("growth_factor", rule.growth), ("backoff_factor", rule.backoff), ("scale_factor", 3),
                         ("minimum_loss_scale", rule.minimum), ("maximum_loss_scale", rule.maximum),
                         ("scale_window", 5)):
        assert getattr(cell, name).asnumpy() == np.float32(number)
