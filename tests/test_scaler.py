"""StaticLossScaler and DynamicLossScaler, eagerly and in graphs: values, rule, state, and the same as mindspore.amp."""

import copy
import pickle
from collections import OrderedDict, namedtuple

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, amp, nn, ops
from numpy import float32
from scale_oracle import POLICIES, ScaleOracle, oracle_of, random_trace

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaler,
    DynamicLossScaleUpdateCell,
    LossScaler,
    StaticLossScaler,
    TrainOneStepWithLossScaleCell,
    all_finite,
)
from ms_lossscale._versions import BFLOAT16, FLOAT_DTYPES, HALF_DTYPES, RowTensor

Pair = namedtuple("Pair", "first second")
# Of a scaler that was made after another was deleted MindSpore may take the deleted one's scale.
KEPT = []
# Anything but a float Tensor, RowTensor, or nested None.
NO_GRADIENTS = [1.0, "grad", np.ones(2), (Tensor(1.0), 2), Tensor(1, ms.int32), {"a": Tensor([True])}]


class DividingOracle(ScaleOracle):
    """mindspore.amp's rule: it divides."""

    def step(self, overflow):
        if overflow and self.forgiven >= self.spare:
            self.scale = max(self.scale / self.divisor, float32(self.floor))
            self.steps, self.clean, self.bad = self.steps + 1, 0, self.bad + 1
            return self.scale
        return super().step(overflow)


def dividing(scale, factor, window, **bounds):
    oracle = DividingOracle(scale, grow=factor, window=window, **bounds)
    oracle.divisor = float32(factor)
    return oracle


def value_of(scaler):
    return scaler.scale_value.asnumpy().item()


def state_after(scaler, flags):
    """Return [(scale, counter)] after each flag."""
    states = []
    for finite in flags:
        scaler.adjust(finite)
        states.append((value_of(scaler), scaler.counter.asnumpy().item()))
    return states


# Scaling and unscaling.

def test_tensors_of_every_form_come_back_in_the_same_form(mode):
    scaler = StaticLossScaler(4.0)
    one = Tensor([1.0, 2.0])
    given_values = (one, [one, None], {"w": one, "b": {"c": (one,)}}, Pair(one, one), OrderedDict(x=one), (), [], {})
    scaled = scaler.scale(given_values)
    assert isinstance(scaled, tuple) and isinstance(scaled[1], list) and scaled[1][1] is None
    assert isinstance(scaled[3], Pair) and isinstance(scaled[4], OrderedDict) and scaled[5:] == ((), [], {})
    for tensor in (scaled[0], scaled[1][0], scaled[2]["w"], scaled[2]["b"]["c"][0], scaled[3].second, scaled[4]["x"]):
        assert tensor.asnumpy().tolist() == [4.0, 8.0]
    assert scaler.scale(None) is None and scaler.unscale(None) is None
    assert scaler.scale(one).asnumpy().tolist() == [4.0, 8.0]
    assert one.asnumpy().tolist() == [1.0, 2.0]


def test_the_given_containers_are_left_alone(mode):
    one = Tensor([1.0])
    given_dict, given_list = {"w": one}, [one]
    StaticLossScaler(4.0).unscale((given_dict, given_list))
    assert given_dict["w"] is one and given_list[0] is one


def test_a_graph_returns_the_form_it_was_given(mode):
    scaler = StaticLossScaler(4.0)

    @ms.jit
    def run(a, b):
        nested = scaler.unscale(scaler.scale((a, [b, a], (b, None))))
        named = scaler.scale({"w": a, "b": b})
        return nested[0], nested[1], nested[2][0], nested[2][1] is None, named["w"], named["b"], scaler.scale(a)

    a, b = Tensor([1.0, 3.0]), Tensor([[2.0]], ms.float16)
    first, second, third, is_none, w, bias, bare = run(a, b)
    assert is_none
    assert first.asnumpy().tolist() == [1.0, 3.0] and second[1].asnumpy().tolist() == [1.0, 3.0]
    assert third.dtype == ms.float16 and third.asnumpy().tolist() == [[2.0]]
    assert w.asnumpy().tolist() == bare.asnumpy().tolist() == [4.0, 12.0] and bias.asnumpy().tolist() == [[8.0]]


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_the_dtype_stays_and_half_precision_is_multiplied_in_float32(mode, dtype):
    scaler = StaticLossScaler(2.0**25)
    tiny, large = Tensor([2.0**-20, -(2.0**-12)]).astype(dtype), Tensor([2.0**10, -(2.0**15)]).astype(dtype)

    @ms.jit
    def compiled(a, b):
        return scaler.scale(a), scaler.unscale((b,))[0]

    for scaled, unscaled in ((scaler.scale(tiny), scaler.unscale((large,))[0]), compiled(tiny, large)):
        assert scaled.dtype == dtype and unscaled.dtype == dtype
        assert scaled.astype(ms.float32).asnumpy().tolist() == [2.0**5, -(2.0**13)]
        assert unscaled.astype(ms.float32).asnumpy().tolist() == [2.0**-15, -(2.0**-10)]


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_half_precision_is_rounded_once(dtype):
    scaler, random = StaticLossScaler(1000.7), np.random.default_rng(1)
    grad = Tensor(random.standard_normal(500).astype(np.float32)).astype(dtype)
    wide = grad.astype(ms.float32).asnumpy() * (float32(1) / float32(1000.7))
    expected = Tensor(wide).astype(dtype).astype(ms.float32).asnumpy()
    assert np.array_equal(scaler.unscale((grad,))[0].astype(ms.float32).asnumpy(), expected)


@pytest.mark.parametrize("scale", [1.0, 3.0, 1000.7, 2.0**20])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_wide_gradients_are_bit_for_bit_mindspores(mode, scale, dtype):
    grads = tuple(Tensor(np.random.default_rng(seed).standard_normal((7, 5)).astype(dtype)) for seed in range(3))
    ours, native = StaticLossScaler(scale), amp.StaticLossScaler(scale)
    KEPT.append(native)
    for left, right in zip(ours.unscale(grads) + ours.scale(grads), native.unscale(grads) + native.scale(grads)):
        assert np.array_equal(left.asnumpy(), right.asnumpy())


def test_a_scaler_never_takes_the_scale_of_one_that_is_gone(mode):
    one = Tensor([1.0])
    for scale in range(1, 200):
        assert StaticLossScaler(scale).scale(one).asnumpy() == scale


def test_rows_are_scaled_and_stay_rows(mode):
    scaler = StaticLossScaler(4.0)
    rows = RowTensor(Tensor([1], ms.int32), Tensor([[1.0, 2.0]]), (3, 2))
    unscaled = scaler.unscale((rows,))[0]
    assert isinstance(unscaled, RowTensor) and unscaled.dense_shape == (3, 2)
    assert unscaled.indices.asnumpy().tolist() == [1] and unscaled.values.asnumpy().tolist() == [[0.25, 0.5]]

    @ms.jit
    def compiled(indices, values):
        return scaler.unscale([RowTensor(indices, values, (3, 2))])[0].values

    assert compiled(Tensor([1], ms.int32), Tensor([[1.0, 2.0]])).asnumpy().tolist() == [[0.25, 0.5]]


@pytest.mark.parametrize("wrong", NO_GRADIENTS, ids=repr)
@pytest.mark.parametrize("method", ["scale", "unscale"])
def test_what_a_scale_cannot_multiply_is_refused(mode, method, wrong):
    with pytest.raises(TypeError, match="'inputs' must be float Tensors"):
        getattr(DynamicLossScaler(8.0, 2, 2), method)(wrong)


def test_an_integer_is_refused_in_a_graph_too(mode):
    scaler = StaticLossScaler(8.0)

    @ms.jit
    def run(a):
        return scaler.unscale((a,))

    with pytest.raises(TypeError, match="'inputs' must be float Tensors"):
        run(Tensor([1], ms.int32))
    assert scaler.unscale(Tensor([8.0])).asnumpy() == 1.0  # the process goes on


def test_a_gradient_passes_through_scale(mode):
    scaler, weight = StaticLossScaler(1024.0), Tensor(3.0)
    value, grad = ms.value_and_grad(lambda_free(scaler), 0)(weight)
    assert (value.asnumpy(), grad.asnumpy()) == (9 * 1024.0, 6 * 1024.0)


def lambda_free(scaler):
    def loss(weight):
        return scaler.scale(weight * weight)
    return loss


# Arguments.

@pytest.mark.parametrize("make", [StaticLossScaler, lambda value: DynamicLossScaler(value, 2, 2)])
def test_a_scale_is_a_finite_number_of_at_least_one(make):
    for good in (1, 1.0, 2**24, np.float32(8), np.int64(8), 2.0**126):
        assert value_of(make(good)) == good
    for wrong in (True, "8", None, Tensor(8.0), [8], 1j):
        with pytest.raises(TypeError):
            make(wrong)
    for wrong in (0.999, 0, -1, np.nan, np.inf, 2.0**127, 1e39, 10**400):
        with pytest.raises(ValueError):
            make(wrong)


@pytest.mark.parametrize("arguments, error", [
    ((8, True, 2), TypeError), ((8, "2", 2), TypeError), ((8, 0.5, 2), ValueError), ((8, np.nan, 2), ValueError),
    ((8, np.inf, 2), ValueError), ((8, 2, 0), ValueError), ((8, 2, 2.5), TypeError), ((8, 2, True), TypeError),
    ((8, 2, 2**31), ValueError)])
def test_factor_and_window_are_checked(arguments, error):
    with pytest.raises(error, match="DynamicLossScaler"):
        DynamicLossScaler(*arguments)


def test_bounds_hold_the_start_too():
    assert value_of(DynamicLossScaler(0.25, 2, 2, min_loss_scale=0.125)) == 0.25
    for bounds in ({"min_loss_scale": 16}, {"max_loss_scale": 4}, {"min_loss_scale": 0}, {"max_loss_scale": 2.0**127}):
        with pytest.raises(ValueError, match="loss_scale"):
            DynamicLossScaler(8, 2, 2, **bounds)


def test_a_fraction_and_numpys_numbers_are_factors(mode):
    scaler = DynamicLossScaler(8, np.float64(1.5), np.int64(1))
    adjust = compiled_adjust(scaler)
    adjust(Tensor(True))
    assert value_of(scaler) == 12.0
    scaler.adjust(False)
    assert value_of(scaler) == 8.0


def compiled_adjust(scaler):
    @ms.jit
    def adjust(finite):
        return scaler.adjust(finite)
    return adjust


# Moving.

@pytest.mark.parametrize("flag", [True, np.bool_(True), Tensor(True), Tensor([True]), 1, np.array([True])], ids=repr)
def test_adjust_takes_every_form_of_a_flag(mode, flag):
    scaler = DynamicLossScaler(8.0, 2, 1)
    assert scaler.adjust(flag) is True and value_of(scaler) == 16.0
    no = Tensor(~flag.asnumpy()) if isinstance(flag, Tensor) else (not flag)
    assert scaler.adjust(no) is True and value_of(scaler) == 8.0
    assert scaler.scale_value.shape == scaler.counter.shape == ()


def test_a_graph_takes_bool_and_tensor_flags(mode):
    scaler = DynamicLossScaler(8.0, 2, 1)
    adjust = compiled_adjust(scaler)
    for flag, scale in ((Tensor(True), 16.0), (Tensor([True]), 32.0), (True, 64.0), (Tensor(False), 32.0),
                        (Tensor([False]), 16.0), (False, 8.0)):
        adjust(flag)
        assert value_of(scaler) == scale


@pytest.mark.parametrize("wrong, error", [(Tensor([True, True]), ValueError), (Tensor(1.0), TypeError),
                                          (None, TypeError), ("yes", TypeError), (2, ValueError), (1.0, TypeError),
                                          (Tensor(1, ms.int32), TypeError), ([True, False], TypeError)], ids=repr)
def test_anything_else_is_no_flag_and_moves_nothing(mode, wrong, error):
    scaler = DynamicLossScaler(8.0, 2, 1)
    with pytest.raises(error, match="grads_finite"):
        scaler.adjust(wrong)
    assert value_of(scaler) == 8.0


def test_a_wrong_flag_in_a_graph_is_refused_while_it_is_compiled(mode):
    scaler = DynamicLossScaler(8.0, 2, 1)
    adjust = compiled_adjust(scaler)
    with pytest.raises(TypeError, match="grads_finite"):
        adjust(Tensor(1.0))
    adjust(Tensor(True))
    assert value_of(scaler) == 16.0


def test_a_static_scale_does_not_move(mode):
    scaler = StaticLossScaler(8.0)
    assert scaler.adjust(False) is False and scaler.adjust(Tensor(True)) is False
    assert compiled_adjust(scaler)(Tensor(False)) is False
    assert value_of(scaler) == 8.0


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([2, 3, 1.1, 10, 1.0, 3000]), st.integers(1, 5), st.sampled_from([1.0, 8.0, 1000.7, 1e38 / 2]),
       st.lists(st.booleans(), min_size=1, max_size=25))
def test_any_trace_moves_it_as_the_oracle_says_bit_for_bit(factor, window, scale, flags):
    oracle = dividing(scale, factor, window)
    states = state_after(DynamicLossScaler(scale, factor, window), flags)
    for (value, counter), finite in zip(states, flags):
        assert value == oracle.step(not finite)
        assert counter == oracle.clean


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([2, 3, 10]), st.integers(1, 4), st.sampled_from([1.0, 8.0, 1000.7, 2.0**60]),
       st.lists(st.booleans(), min_size=1, max_size=20))
def test_any_trace_moves_it_as_mindspores_own_does(factor, window, scale, flags):
    native = amp.DynamicLossScaler(scale, factor, window)
    ours = state_after(DynamicLossScaler(scale, factor, window), flags)
    assert ours == state_after(native, [Tensor(flag) for flag in flags])


@pytest.mark.parametrize("factor, window", [(3, 2), (1.1, 1)])
def test_a_graph_moves_it_bit_for_bit_alike(mode, factor, window):
    scaler, oracle = DynamicLossScaler(1000.7, factor, window), dividing(1000.7, factor, window)
    adjust = compiled_adjust(scaler)
    for overflow in random_trace(150, seed=window):
        adjust(Tensor(not overflow))
        assert value_of(scaler) == oracle.step(overflow)
        assert scaler.counter.asnumpy() == oracle.clean


def test_growth_stops_at_the_cap_and_the_counter_restarts(mode):
    scaler = DynamicLossScaler(2.0**125, 2, 2)
    assert state_after(scaler, [True] * 6) == [(2.0**125, 1), (2.0**126, 0), (2.0**126, 1), (2.0**126, 0),
                                               (2.0**126, 1), (2.0**126, 0)]


def test_it_never_falls_below_its_floor(mode):
    scaler = DynamicLossScaler(1.0, 2, 2, min_loss_scale=0.3)
    assert [scale for scale, _ in state_after(scaler, [False] * 3)] == [0.5, float32(0.3), float32(0.3)]


def test_host_manager_update_cell_and_scaler_agree_where_division_is_exact(mode):
    flags = random_trace(60, seed=5)
    manager = DynamicLossScaleManager(2**10, 2, 3)
    scaler = DynamicLossScaler(2**10, 2, 3)
    cell, scale = DynamicLossScaleUpdateCell(2**10, 2, 3), Parameter(Tensor(2.0**10), name="scale")
    for overflow in flags:
        manager.update_loss_scale(overflow)
        scaler.adjust(not overflow)
        cell(scale, Tensor(overflow))
        assert manager.get_loss_scale() == value_of(scaler) == scale.asnumpy().item()


def test_dividing_and_multiplying_by_the_reciprocal_differ_by_one_ulp_at_most():
    scales = np.random.default_rng(0).uniform(4, 1e6, 100).astype(np.float32)
    ulps = set()
    for scale in scales.tolist():
        scaler, manager = DynamicLossScaler(scale, 3, 2), DynamicLossScaleManager(scale, 3, 2)
        scaler.adjust(False)
        manager.update_loss_scale(True)
        difference = abs(value_of(scaler) - manager.get_loss_scale())
        ulps.add(difference / np.spacing(float32(manager.get_loss_scale())).item())
    assert ulps == {0.0, 1.0}


@pytest.mark.slow
@pytest.mark.parametrize("mode, name", [
    *[(ms.GRAPH_MODE, name) for name in POLICIES], (ms.PYNATIVE_MODE, "narrow"), (ms.PYNATIVE_MODE, "hysteresis")],
    indirect=["mode"])
def test_every_policy_holds_over_ten_thousand_steps(mode, name):
    scale, (factor, window), options = POLICIES[name]
    if "backoff_factor" not in options:
        options = {**options, "backoff_factor": float(float32(1) / float32(factor))}
    scaler, oracle = DynamicLossScaler(scale, factor, window, **options), oracle_of(POLICIES[name])
    adjust = compiled_adjust(scaler) if mode == ms.GRAPH_MODE else scaler.adjust
    for overflow in random_trace(10_000, seed=11):
        adjust(Tensor(not overflow))
        assert value_of(scaler) == oracle.step(overflow)
    assert scaler.counter.asnumpy() == oracle.clean


@pytest.mark.parametrize("name", ["narrow", "growth and backoff", "hysteresis", "hysteresis in a row"])
def test_a_policy_holds(mode, name):
    scale, (factor, window), options = POLICIES[name]
    options = {"backoff_factor": float(float32(1) / float32(factor)), **options}
    scaler, oracle = DynamicLossScaler(scale, factor, window, **options), oracle_of(POLICIES[name])
    adjust = compiled_adjust(scaler) if mode == ms.GRAPH_MODE else scaler.adjust
    for overflow in random_trace(80, seed=7):
        adjust(Tensor(not overflow))
        assert value_of(scaler) == oracle.step(overflow)
        assert scaler.counter.asnumpy() == oracle.clean
        if "hysteresis" in options:
            assert scaler.tolerated_overflows.asnumpy() == oracle.forgiven


# State.

@settings(max_examples=15, deadline=None)
@given(st.lists(st.booleans(), max_size=8), st.lists(st.booleans(), min_size=1, max_size=8), st.sampled_from([0, 2]))
def test_a_restored_scaler_goes_on_as_the_first_would(before, after, hysteresis):
    def make(scale):
        return DynamicLossScaler(scale, 3, 3, hysteresis=hysteresis)
    first, second = make(100.0), make(7.0)
    state_after(first, before)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert state_after(first, after) == state_after(second, after)


def test_a_checkpoint_holds_the_state_of_two_scalers(mode, tmp_path):
    path = str(tmp_path / "scalers.ckpt")
    one, two = DynamicLossScaler(8.0, 2, 5), StaticLossScaler(4.0)
    one.adjust(True)
    state = {f"{name}.{key}": value for name, scaler in (("one", one), ("two", two))
             for key, value in scaler.state_dict().items()}
    ms.save_checkpoint(nn.Dense(1, 1), path, append_dict=state)
    loaded = ms.load_checkpoint(path)
    fresh_one, fresh_two = DynamicLossScaler(1.0, 2, 5), StaticLossScaler(1.0)
    fresh_one.load_state_dict({key: loaded[f"one.{key}"] for key in fresh_one.state_dict()})
    fresh_two.load_state_dict({key: loaded[f"two.{key}"] for key in fresh_two.state_dict()})
    assert fresh_one.state_dict() == {"scale_value": 8.0, "counter": 1}
    assert fresh_two.state_dict() == {"scale_value": 4.0}


def test_a_compiled_function_goes_on_from_the_state_that_was_loaded(mode):
    scaler = DynamicLossScaler(8.0, 2, 2)
    adjust = compiled_adjust(scaler)
    adjust(Tensor(True))
    scaler.load_state_dict({"scale_value": 64.0, "counter": 1})
    adjust(Tensor(True))
    assert scaler.state_dict() == {"scale_value": 128.0, "counter": 0}
    scaler.adjust(False)
    adjust(Tensor(False))
    assert scaler.state_dict() == {"scale_value": 32.0, "counter": 0}


@pytest.mark.parametrize("state, error", [
    ([], TypeError), ({}, ValueError), ({"scale_value": 8.0}, ValueError),
    ({"scale_value": 8.0, "count": 1}, ValueError),
    ({"scale_value": "8", "counter": 1}, TypeError), ({"scale_value": 0.5, "counter": 1}, ValueError),
    ({"scale_value": np.nan, "counter": 1}, ValueError), ({"scale_value": 8.0, "counter": -1}, ValueError),
    ({"scale_value": 8.0, "counter": 1.5}, TypeError), ({"scale_value": 8.0, "counter": 1, "more": 2}, ValueError)])
def test_a_state_that_does_not_fit_changes_nothing(state, error):
    scaler = DynamicLossScaler(16.0, 2, 5)
    scaler.adjust(True)
    with pytest.raises(error):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == {"scale_value": 16.0, "counter": 1}


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_a_copy_has_the_numbers_and_a_state_of_its_own(mode, duplicate):
    scaler = DynamicLossScaler(8.0, 2, 2, max_loss_scale=64.0)
    scaler.adjust(True)
    twin = duplicate(scaler)
    assert type(twin) is DynamicLossScaler and twin.state_dict() == scaler.state_dict()
    assert (twin.scale_factor, twin.scale_window, twin.max_loss_scale) == (2, 2, 64.0)
    scaler.adjust(False)
    assert twin.state_dict() == {"scale_value": 8.0, "counter": 1}
    assert twin.scale_value.name != scaler.scale_value.name
    assert duplicate(StaticLossScaler(4.0)).state_dict() == {"scale_value": 4.0}


def test_two_scalers_have_four_names_and_work_in_one_graph(mode):
    first, second = DynamicLossScaler(8.0, 2, 1), DynamicLossScaler(32.0, 2, 1)
    parameters = [scaler.scale_value for scaler in (first, second)] + [scaler.counter for scaler in (first, second)]
    assert len({parameter.name for parameter in parameters}) == 4
    assert not any(parameter.requires_grad for parameter in parameters)

    @ms.jit
    def step(finite):
        first.adjust(finite)
        second.adjust(ops.logical_not(finite))
        return first.scale_value + 0.0, second.scale_value + 0.0

    assert [float(scale.asnumpy()) for scale in step(Tensor(True))] == [16.0, 16.0]
    assert (value_of(first), value_of(second)) == (16.0, 16.0)


def test_it_shows_its_numbers_and_is_true():
    scaler = DynamicLossScaler(8, 2, 2)
    assert repr(scaler) == "DynamicLossScaler(scale_value=8.0, counter=0)" and scaler
    assert repr(StaticLossScaler(8)) == "StaticLossScaler(scale_value=8.0)"


# Accepted where mindspore.amp's are.

def test_scalers_are_mindspores_scalers_but_not_each_other():
    static, dynamic = StaticLossScaler(8.0), DynamicLossScaler(8.0, 2, 2)
    assert isinstance(static, amp.LossScaler) and isinstance(dynamic, amp.LossScaler)
    assert isinstance(static, LossScaler) and isinstance(dynamic, LossScaler)
    assert not isinstance(dynamic, StaticLossScaler)


def test_the_signatures_are_mindspores():
    import inspect
    for ours, native in ((StaticLossScaler, amp.StaticLossScaler), (DynamicLossScaler, amp.DynamicLossScaler)):
        for method in ("__init__", "scale", "unscale", "adjust"):
            names = list(inspect.signature(getattr(native, method)).parameters)
            assert list(inspect.signature(getattr(ours, method)).parameters)[:len(names)] == names
    assert list(inspect.signature(all_finite).parameters) == list(inspect.signature(amp.all_finite).parameters)


def test_the_base_class_wants_three_methods():
    class Half(LossScaler):
        def scale(self, inputs):
            return inputs

    for incomplete in (LossScaler, Half):
        with pytest.raises(TypeError, match="abstract"):
            incomplete()


class Halving(LossScaler):
    """A scaler of a user, written as MindSpore's documentation shows."""

    def __init__(self, scale_value):
        self.scale_value = Parameter(Tensor(scale_value, ms.float32), name="halving_scale")

    def scale(self, inputs):
        return inputs * self.scale_value

    def unscale(self, inputs):
        return inputs / self.scale_value

    def adjust(self, grads_finite):
        ops.assign(self.scale_value, ops.select(grads_finite, self.scale_value + 0.0, self.scale_value / 2.0))
        return True


def test_a_scaler_of_ones_own_works_eagerly_and_in_a_graph(mode):
    scaler = Halving(8.0)

    @ms.jit
    def step(loss, finite):
        loss = scaler.unscale(scaler.scale(loss))
        scaler.adjust(finite)
        return loss

    assert step(Tensor(3.0), Tensor(False)).asnumpy() == 3.0
    scaler.adjust(Tensor(False))
    assert value_of(scaler) == 2.0


# Training.

class Loss(nn.Cell):
    """A network with its loss times a factor that can be Inf."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.loss = nn.MSELoss()

    def construct(self, x, y, factor):
        return self.loss(self.network(x), y) * factor


class OwnStep(nn.Cell):
    """A training step of a user, in a Cell."""

    def __init__(self, loss, optimizer, scaler):
        super().__init__()
        self.optimizer = optimizer
        self.scaler = scaler
        self.loss = loss
        self.grad = ms.value_and_grad(self.forward, None, optimizer.parameters)

    def forward(self, x, y, factor):
        return self.scaler.scale(self.loss(x, y, factor))

    def construct(self, x, y, factor):
        loss, grads = self.grad(x, y, factor)
        loss = self.scaler.unscale(loss)
        grads = self.scaler.unscale(grads)
        finite = all_finite(grads)
        if finite:
            loss = ops.depend(loss, self.optimizer(grads))
        self.scaler.adjust(finite)
        return loss, finite


def network_and_optimizer():
    ms.set_seed(4)
    network = nn.Dense(3, 2)
    network.weight.set_data(Tensor(np.linspace(-1, 1, 6).reshape(2, 3), ms.float32))
    network.bias.set_data(Tensor([0.1, -0.2], ms.float32))
    return network, nn.Momentum(network.trainable_params(), 0.05, 0.9)


def batches(count):
    random = np.random.default_rng(9)
    for step in range(count):
        yield (Tensor(random.standard_normal((4, 3)), ms.float32), Tensor(random.standard_normal((4, 2)), ms.float32),
               Tensor(np.inf if step % 4 == 2 else 1.0, ms.float32))


def own_step(way, loss, optimizer, scaler):
    """Return the same step in a Cell, in a jitted function, or as plain Python."""
    if way == "cell":
        return OwnStep(loss, optimizer, scaler)

    def forward(x, y, factor):
        return scaler.scale(loss(x, y, factor))

    grad = ms.value_and_grad(forward, None, optimizer.parameters)

    def step(x, y, factor):
        loss_value, grads = grad(x, y, factor)
        loss_value = scaler.unscale(loss_value)
        grads = scaler.unscale(grads)
        finite = all_finite(grads)
        if finite:
            loss_value = ops.depend(loss_value, optimizer(grads))
        scaler.adjust(finite)
        return loss_value, finite

    return ms.jit(step) if way == "jit" else step


@pytest.mark.parametrize("way", [pytest.param("cell", marks=pytest.mark.slow), "jit", "python"])
def test_a_loop_of_ones_own_trains_bit_for_bit_as_the_step_does(mode, way):
    network, optimizer = network_and_optimizer()
    scaler = DynamicLossScaler(2**10, 2, 3)
    step = own_step(way, Loss(network), optimizer, scaler)
    other, other_optimizer = network_and_optimizer()
    reference = TrainOneStepWithLossScaleCell(Loss(other), other_optimizer, DynamicLossScaleUpdateCell(2**10, 2, 3))
    for batch in batches(8):
        loss, finite = step(*batch)
        expected_loss, overflow, scale = reference(*batch)
        assert bool(finite) is not bool(overflow)
        assert value_of(scaler) == scale.asnumpy()
        assert np.array_equal(loss.asnumpy(), expected_loss.asnumpy())
        for parameter, expected in zip(optimizer.parameters, other_optimizer.parameters):
            assert np.array_equal(parameter.asnumpy(), expected.asnumpy())


def test_bfloat16_gradients_unscale_on_cpu(mode):
    for dtype in BFLOAT16:
        grads = StaticLossScaler(2.0**10).unscale([Tensor([1024.0, 3072.0]).astype(dtype)])
        assert grads[0].dtype == dtype and grads[0].astype(ms.float32).asnumpy().tolist() == [1.0, 3.0]
