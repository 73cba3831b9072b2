"""The manager of a dynamic scale: driven by hand against the oracle, and in a step against the device."""

import copy
import json
import pickle

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn
from scale_oracle import POLICIES, oracle_of, random_trace
from test_update_cell import Loss, run_on_device

from ms_lossscale import (
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
    TrainOneStepWithLossScaleCell,
)

STATE = ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step", "tolerated_overflows")


def manager_of(name, **more):
    scale, (factor, window), options = POLICIES[name]
    return DynamicLossScaleManager(scale, factor, window, **options, **more)


def drive(manager, trace):
    scales = []
    for overflow in trace:
        manager.update_loss_scale(overflow)
        scales.append(manager.get_loss_scale())
    return np.array(scales, np.float32)


# By hand.

@pytest.mark.parametrize("steps", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", POLICIES)
def test_a_host_loop_is_the_oracles_bit_for_bit(name, steps):
    manager, oracle, trace = manager_of(name), oracle_of(POLICIES[name]), random_trace(steps, seed=7)
    assert drive(manager, trace).tobytes() == oracle.run(trace).tobytes()
    assert manager.state_dict() == {**oracle.numbers(), "loss_scale": float(oracle.scale)}


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array([True]), lambda: Tensor(True), lambda: Tensor([True])])
def test_a_flag_of_any_form_is_taken(flag):
    manager = DynamicLossScaleManager(64)
    manager.update_loss_scale(flag() if callable(flag) else flag)
    assert (manager.loss_scale, manager.bad_step) == (32, 1)


def test_the_public_attributes_start_as_documented():
    manager = DynamicLossScaleManager()
    assert (manager.loss_scale, manager.scale_factor, manager.scale_window) == (2**24, 2, 2000)
    assert (manager.increase_ratio, manager.decrease_ratio) == (2, 0.5)
    assert (manager.cur_iter, manager.last_overflow_iter, manager.bad_step, manager.bad_step_max) == (1, 0, 0, 1000)
    assert (manager.min_loss_scale, manager.max_loss_scale) == (1, 2**126)
    assert manager.get_drop_overflow_update() is True and type(manager.get_loss_scale()) is int


def test_four_and_three_thousand_by_position_are_the_scale_and_the_factor():
    manager = DynamicLossScaleManager(4, 3000)
    assert (manager.loss_scale, manager.scale_factor, manager.scale_window) == (4, 3000, 2000)
    assert list(drive(manager, [False] * 2000)[-2:]) == [4, 12000]
    assert list(drive(manager, [True, True])) == [4, 1]


@pytest.mark.parametrize("factor, window", [(2, 1), (2, 3), (4, 5), (1, 2)])
def test_from_a_fresh_start_it_moves_when_mindspores_manager_does(factor, window):
    ours, native = (kind(2**10, factor, window) for kind in (DynamicLossScaleManager, amp.DynamicLossScaleManager))
    for overflow in random_trace(120, seed=9):
        for manager in (ours, native):
            manager.update_loss_scale(overflow)
        assert (ours.loss_scale, ours.cur_iter, ours.bad_step) == (native.loss_scale, native.cur_iter, native.bad_step)


def test_a_number_that_is_assigned_is_gone_on_from():
    manager = DynamicLossScaleManager(64, 2, 100)
    manager.loss_scale, manager.cur_iter, manager.last_overflow_iter = 256, 250, 152
    assert list(drive(manager, [False, False, False])) == [256, 256, 512]
    manager.scale_window, manager.bad_step = 2, 999
    assert list(drive(manager, [False])) == [512] and manager.bad_step == 0
    assert list(drive(manager, [False])) == [1024]
    manager.increase_ratio, manager.decrease_ratio = 4, 0.25
    assert list(drive(manager, [False, False, True])) == [1024, 4096, 1024]


def test_assigning_the_factor_sets_both_ratios_and_reaches_the_update_cell(mode):
    manager = DynamicLossScaleManager(64, 2, 2, growth_factor=8)
    manager.scale_factor = 4
    assert (manager.scale_factor, manager.increase_ratio, manager.decrease_ratio) == (4, 4, 0.25)
    trace = [True, False, False]
    assert list(run_on_device(manager.get_update_cell(), trace)) == list(drive(manager, trace)) == [16, 16, 64]


@pytest.mark.parametrize("wrong, kind", [(np.inf, ValueError), (np.nan, ValueError), (0, ValueError),
                                         (0.5, ValueError), (2.0**127, ValueError), ("64", TypeError),
                                         (True, TypeError), (None, TypeError)])
def test_a_scale_that_no_step_can_use_is_not_assigned(wrong, kind):
    manager = DynamicLossScaleManager(64)
    with pytest.raises(kind, match=r"^For 'DynamicLossScaleManager', 'loss_scale' must be"):
        manager.loss_scale = wrong
    assert manager.loss_scale == 64


# State.

@pytest.mark.parametrize("name", POLICIES)
def test_saving_and_loading_at_any_step_continues_identically(name):
    trace, whole = random_trace(200, seed=11), manager_of(name)
    expected, cuts = drive(whole, trace), range(0, 200, 7)
    running = manager_of(name)
    for start, end in zip(cuts, [*cuts[1:], 200]):
        state = json.loads(json.dumps(running.state_dict()))
        running = manager_of(name)
        running.load_state_dict(state)
        assert running.state_dict() == state
        assert drive(running, trace[start:end]).tobytes() == expected[start:end].tobytes()


def test_the_state_is_of_python_numbers():
    for given in (64, 64.0, np.float32(64), np.int64(64), 2**100):
        state = DynamicLossScaleManager(given).state_dict()
        assert tuple(state) == STATE and {type(value) for value in state.values()} <= {int, float}


GOOD = {"loss_scale": 64.0, "cur_iter": 5, "last_overflow_iter": 3, "bad_step": 2, "tolerated_overflows": 0}


@pytest.mark.parametrize("change, kind", [
    ({"loss_scale": 0.5}, ValueError), ({"loss_scale": np.inf}, ValueError), ({"loss_scale": "64"}, TypeError),
    ({"cur_iter": 0}, ValueError), ({"cur_iter": 2.0}, TypeError), ({"last_overflow_iter": -1}, ValueError),
    ({"bad_step": True}, TypeError), ({"tolerated_overflows": None}, TypeError), ({"more": 1}, ValueError)])
def test_a_state_that_does_not_fit_changes_nothing(change, kind):
    manager = DynamicLossScaleManager(32)
    before = manager.state_dict()
    with pytest.raises(kind, match=r"^For 'load_state_dict'"):
        manager.load_state_dict({**GOOD, **change})
    assert manager.state_dict() == before
    with pytest.raises(ValueError, match="'state' must be a dict of"):
        manager.load_state_dict({"loss_scale": 64})
    with pytest.raises(TypeError, match="'state' must be a dict"):
        manager.load_state_dict([64])


def test_a_fixed_managers_state_is_its_scale():
    manager, other = FixedLossScaleManager(96), FixedLossScaleManager(2)
    other.load_state_dict(manager.state_dict())
    assert (manager.state_dict(), other.get_loss_scale()) == ({"loss_scale": 96}, 96)
    for wrong, kind in ({"loss_scale": 0}, ValueError), ({"loss_scale": "2"}, TypeError), ({}, ValueError):
        with pytest.raises(kind, match=r"^For 'load_state_dict'"):
            other.load_state_dict(wrong)
    assert other.get_loss_scale() == 96


def test_the_base_class_has_no_state():
    assert LossScaleManager().state_dict() == {}
    LossScaleManager().load_state_dict({})
    with pytest.raises(ValueError, match="'state' must be a dict of \\[\\]"):
        LossScaleManager().load_state_dict({"loss_scale": 2})


@pytest.mark.parametrize("twin_of", [copy.copy, copy.deepcopy, lambda manager: pickle.loads(pickle.dumps(manager))])
@pytest.mark.parametrize("name", ["factor 1.1", "hysteresis"])
def test_a_copy_goes_on_by_itself_from_the_same_state(twin_of, name):
    manager, trace = manager_of(name, max_consecutive_overflows=7), random_trace(60, seed=13)
    drive(manager, [flag and i % 4 > 0 for i, flag in enumerate(trace)])
    twin, before = twin_of(manager), manager.state_dict()
    assert type(twin) is type(manager) and twin.state_dict() == before and twin.bad_step_max == 7
    moved = drive(twin, [True, False, True])
    twin.bad_step_max = 3
    assert manager.state_dict() == before and manager.bad_step_max == 7
    assert drive(manager, [True, False, True]).tobytes() == moved.tobytes()


# On the device.

@pytest.mark.parametrize("name", ["factor 1.1", "narrow", "hysteresis in a row"])
def test_an_update_cell_goes_on_from_the_managers_present_state(name, mode):
    manager, oracle, trace = manager_of(name), oracle_of(POLICIES[name]), random_trace(120, seed=15)
    drive(manager, trace[:77])
    oracle.run(trace[:77])
    cell = manager.get_update_cell()
    assert cell.get_loss_scale() == manager.get_loss_scale()
    assert run_on_device(cell, trace[77:]).tobytes() == oracle.run(trace[77:]).tobytes()


def step_of(manager, **options):
    network = Loss()
    step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params()), manager.get_update_cell(),
                                         **options)
    manager.follow(step)
    return step


def play(step, trace):
    for overflow in trace:
        step(Tensor(np.inf if overflow else 1.0, ms.float32))


def test_in_a_step_every_number_of_the_manager_is_the_steps(mode):
    manager, oracle = manager_of("hysteresis"), oracle_of(POLICIES["hysteresis"])
    drive(manager, [True, True])
    step = step_of(manager)
    oracle.run([True, True])
    for overflow in (True, False, False, True):
        play(step, [overflow])
        oracle.step(overflow)
        before = manager.state_dict()
        manager.update_loss_scale(overflow)  # as Model does
        assert manager.state_dict() == before == {**oracle.numbers(), "loss_scale": float(oracle.scale)}
    assert manager.get_loss_scale() == step.get_loss_scale()


def test_what_is_assigned_or_loaded_in_a_step_is_the_steps(mode):
    manager = DynamicLossScaleManager(64, 2, 100, hysteresis=2)
    step = step_of(manager)
    manager.load_state_dict({**GOOD, "tolerated_overflows": 2})
    manager.loss_scale, manager.last_overflow_iter = 128, 4
    cell = step.loss_scaling_manager
    assert [parameter.asnumpy().item() for parameter in
            (step.scale_sense, cell.cur_iter, cell.last_overflow_iter, step.consecutive_overflows,
             cell.tolerated_overflows)] == [128, 5, 4, 2, 2]
    play(step, [True])
    assert manager.state_dict() == {"loss_scale": 64, "cur_iter": 6, "last_overflow_iter": 5, "bad_step": 3,
                                    "tolerated_overflows": 2}
    with pytest.raises(ValueError, match="'loss_scale' must be"):
        manager.loss_scale = 0.5
    assert step.get_loss_scale() == 64


def test_a_counter_of_the_cell_that_is_replaced_is_the_one_that_is_read():
    manager = DynamicLossScaleManager(64)
    step = step_of(manager)
    step.loss_scaling_manager.cur_iter = ms.Parameter(Tensor(9, ms.int32), name="theirs")
    assert manager.cur_iter == 9


def test_a_copy_of_a_manager_in_a_step_owns_the_numbers_it_had(mode):
    for manager in (DynamicLossScaleManager(64, 2, 3), FixedLossScaleManager(64)):
        step = step_of(manager)
        step.set_sense_scale(Tensor(32.0))
        twins = copy.copy(manager), copy.deepcopy(manager), pickle.loads(pickle.dumps(manager))
        step.set_sense_scale(Tensor(16.0))
        assert manager.get_loss_scale() == manager.get_update_cell().get_loss_scale() == 16
        assert [twin.get_loss_scale() for twin in twins] == [32, 32, 32]


def test_a_fixed_manager_reports_the_number_as_given_until_the_steps_scale_is_another(mode):
    manager = FixedLossScaleManager(0.1 + 1)
    step = step_of(manager)
    assert manager.get_loss_scale() == 1.1 and step.get_loss_scale() != 1.1
    step.set_sense_scale(Tensor(16.0))
    assert manager.get_loss_scale() == 16
    manager.load_state_dict({"loss_scale": 8})
    assert manager.get_loss_scale() == step.get_loss_scale() == 8


def test_a_scale_set_outside_the_bounds_is_used_once_and_then_back_inside(mode):
    manager = DynamicLossScaleManager(64, 2, 3)
    step = step_of(manager)
    step.set_sense_scale(Tensor(0.25))
    assert manager.get_loss_scale() == 0.25
    play(step, [False])
    assert manager.get_loss_scale() == 1
