"""Steps as public repositories write them give the same numbers on this package's class as on MindSpore's own."""

import mindspore as ms
import numpy as np
import pytest
import wild_steps as wild
import wild_steps_more as more
from mindspore import Parameter, Tensor, nn, ops
from mindspore_version import V200
from poisoned import batch, with_loss

import ms_lossscale

INF = float("inf")
# The steps of a training: where its gradients are poisoned.
BATCHES = [batch(seed=0), batch(seed=1), batch("middle", INF, seed=2), batch(seed=3), batch(seed=4)]
FLAGS = [False, False, True, False, False]


class Native(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's own step, looking at the gradients with IsFinite, as on a 910B in Inf/NaN mode."""

    def __init__(self, network, optimizer, scale_sense):
        super().__init__(network, optimizer, scale_sense)
        self.ascend_910b_target, self.enable_allfinite = True, False


class NativeBefore27(nn.TrainOneStepWithLossScaleCell):
    """The same for 2.0.0, which knows no such mode."""

    def start_overflow_check(self, pre_cond, compute_input):
        return Tensor([0] * 8, ms.int32), compute_input

    def get_overflow_status(self, status, compute_output):
        finite = ops.isfinite(compute_output[0]).all()
        for grad in compute_output[1:]:
            finite = ops.logical_and(finite, ops.isfinite(grad).all())
        return ops.logical_not(finite)


BASES = {"ours": (ms_lossscale.TrainOneStepWithLossScaleCell, ms_lossscale.DynamicLossScaleUpdateCell),
         "native": (NativeBefore27 if V200 else Native, nn.DynamicLossScaleUpdateCell)}
STYLES = [wild.optional_sens, wild.scale_of_its_own, wild.optimizer_takes_overflow, wild.own_reducer,
          wild.reducer_where_there_are_ranks, wild.clips_before_the_check, wild.accumulates, wild.moving_average,
          more.five_outputs, more.two_losses, more.check_first, more.check_after_the_gradients, more.two_levels,
          more.loss_alone_by_super, more.own_attributes, more.counts_the_flag_itself]
# A case takes seconds: these stand for the others.
QUICK = {"graph": (wild.scale_of_its_own, more.two_levels),
         "pynative": (wild.optional_sens, wild.optimizer_takes_overflow, more.two_losses)}


def parts(style=None):
    """Return the network with its loss, and the optimizer, that a style needs."""
    ms.set_seed(1)
    network = with_loss()
    guarded = style is wild.optimizer_takes_overflow
    weights = network.trainable_params()
    optimizer = wild.GuardedDescent(weights, 0.1) if guarded else nn.Momentum(weights, 0.1, 0.9)
    return more.TwoLosses(network) if style is more.two_losses else network, optimizer


def seen(step, outputs):
    """Return all numbers after a step: the outputs, and the Parameters that both bases have."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    extra = ("applied_steps", "skipped_steps", "consecutive_overflows")
    parameters = {name.rpartition(".")[2] + name: parameter.asnumpy().copy()
                  for name, parameter in step.parameters_and_names()
                  if parameter.name.rpartition(".")[2] not in extra}
    return [output.asnumpy().copy() for output in outputs], parameters


def training(style, base, before=lambda cell: None):
    """Return what is seen after each step of a training."""
    step_class, cell_class = BASES[base]
    update_cell = cell_class(2**10, 2, 2)
    before(update_cell)
    step = style(step_class)(*parts(style), update_cell).set_train()
    return [seen(step, step(*data)) for data in BATCHES]


def assert_same(ours, native):
    assert len(ours) == len(native)
    for (outputs, parameters), (native_outputs, native_parameters) in zip(ours, native):
        assert parameters.keys() == native_parameters.keys()
        assert [output.dtype for output in outputs] == [output.dtype for output in native_outputs]
        for mine, theirs in zip(outputs, native_outputs):
            np.testing.assert_array_equal(mine, theirs)
        for name, mine in parameters.items():
            np.testing.assert_array_equal(mine, native_parameters[name], err_msg=name)


def in_both_modes(style):
    for mode in ("graph", "pynative"):
        marks = [] if style in QUICK[mode] else [pytest.mark.slow]
        yield pytest.param(style, mode, id=f"{style.__name__}-{mode}", marks=marks)


@pytest.fixture
def in_mode(request):
    def enter(mode):
        ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    before = ms.get_context("mode")
    yield enter
    ms.set_context(mode=before)


@pytest.mark.parametrize("style, mode", [case for style in STYLES for case in in_both_modes(style)])
def test_a_step_of_this_style_gives_the_numbers_that_it_gives_on_mindspores_own(style, mode, in_mode):
    in_mode(mode)
    ours = training(style, "ours")
    assert_same(ours, training(style, "native"))
    outputs = [each for each, _ in ours]
    if len(outputs[0]) > 1:
        assert [bool(each[1]) for each in outputs] == FLAGS
    before, after = ours[1][1], ours[2][1]
    trained = [name for name in before if name.endswith("weight") and "shadow" not in name and "total" not in name]
    assert trained and all(np.array_equal(before[name], after[name]) for name in trained)
    assert not all(np.array_equal(after[name], ours[4][1][name]) for name in trained)


@pytest.mark.slow
def test_a_tensor_as_the_scale_and_set_sense_scale_between_steps(mode):
    runs = {}
    for base, (step_class, _) in BASES.items():
        step = wild.optional_sens(step_class)(*parts(), Tensor(2.0**10, ms.float32)).set_train()
        runs[base] = []
        for number, data in enumerate(BATCHES):
            runs[base].append(seen(step, step(*data)))
            step.set_sense_scale(Tensor(2.0**(3 + number), ms.float32))
    assert_same(runs["ours"], runs["native"])
    assert [float(outputs[2]) for outputs, _ in runs["ours"]] == [2.0**10, 8, 16, 32, 64]


@pytest.mark.slow
def test_attributes_of_the_update_cell_assigned_before_building(mode):
    def resumed(cell):
        cell.loss_scale_value = 2.0**6
        cell.cur_iter = Parameter(Tensor(8, ms.int32), name="current_iterator_step")
        cell.last_overflow_iter = Parameter(Tensor(7, ms.int32), name="last_overflow_iterator_step")

    runs = {base: training(wild.optional_sens, base, before=resumed) for base in BASES}
    assert_same(runs["ours"], runs["native"])
    # Window 2, one clean step counted before: the second step completes it.
    assert [float(outputs[2]) for outputs, _ in runs["ours"]] == [2.0**6, 2.0**7, 2.0**6, 2.0**6, 2.0**7]


@pytest.mark.slow
def test_one_update_cell_shared_by_two_steps(mode):
    runs = {}
    for base, (step_class, cell_class) in BASES.items():
        cell = cell_class(2**10, 2, 3)
        assert cell
        first, second = (wild.scale_of_its_own(step_class)(*parts(), cell).set_train() for _ in range(2))
        runs[base] = []
        for data in BATCHES:
            runs[base] += [seen(first, first(*data)), seen(second, second(*data))]
    assert_same(runs["ours"], runs["native"])
