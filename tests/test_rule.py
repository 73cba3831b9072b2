"""The rule on the host, against an oracle and against what every such rule must keep."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scale_oracle import POLICIES, ScaleOracle, oracle_of, random_trace

from ms_lossscale.rule import ScaleRule, ScaleState, make_rule, reciprocal

traces = st.lists(st.booleans(), max_size=60)
factors = st.floats(1, 1e4) | st.sampled_from([1.0, 2.0, 3.0, 1e38])
windows = st.integers(1, 6)


@st.composite
def policies(draw):
    """Return the arguments of an oracle, any of those that the package accepts."""
    floor, cap = sorted(draw(st.lists(st.floats(2.0**-126, 2.0**126, width=32), min_size=2, max_size=2)))
    return {"scale": draw(st.floats(floor, cap, width=32)), "grow": draw(factors), "window": draw(windows),
            "shrink": draw(st.floats(2.0**-126, 1) | st.sampled_from([0.5, 1.0])), "floor": floor, "cap": cap,
            "spare": draw(st.integers(0, 3)), "every_clean_step_restores": draw(st.booleans())}


def rule_and_state(policy):
    rule = ScaleRule(growth=policy["grow"], backoff=policy["shrink"], window=policy["window"], minimum=policy["floor"],
                     maximum=policy["cap"], hysteresis=policy["spare"],
                     consecutive=policy["every_clean_step_restores"])
    return rule, ScaleState(policy["scale"])


def run(rule, state, trace):
    scales = []
    for overflow in trace:
        rule.update(state, overflow)
        scales.append(np.float32(state.loss_scale))
    return np.array(scales, np.float32)


def same(state, oracle):
    return vars(state) == {**oracle.numbers(), "loss_scale": float(oracle.scale)}


@settings(deadline=None, max_examples=200)
@given(policies(), traces)
def test_any_policy_on_any_trace_is_the_oracles_bit_for_bit(policy, trace):
    rule, state = rule_and_state(policy)
    oracle = ScaleOracle(**policy)
    for overflow in trace:
        rule.update(state, overflow)
        oracle.step(overflow)
        assert same(state, oracle)


@pytest.mark.parametrize("name", POLICIES)
def test_ten_thousand_steps_are_the_oracles_bit_for_bit(name):
    scale, (factor, window), options = POLICIES[name]
    full = {"min_loss_scale": 1.0, "max_loss_scale": 2.0**126, "growth_factor": None, "backoff_factor": None,
            "hysteresis": 0, "consecutive_hysteresis": False, **options}
    rule, state, oracle = make_rule("Who", "scale", scale, factor, window, **full), ScaleState(scale), None
    oracle, trace = oracle_of(POLICIES[name]), random_trace(10_000, seed=len(name))
    assert run(rule, state, trace).tobytes() == oracle.run(trace).tobytes()
    assert same(state, oracle)


@settings(deadline=None)
@given(policies(), traces)
def test_the_scale_is_finite_and_inside_its_bounds_at_every_step(policy, trace):
    scales = run(*rule_and_state(policy), trace)
    assert np.isfinite(scales).all()
    assert ((scales >= policy["floor"]) & (scales <= policy["cap"])).all()


@settings(deadline=None)
@given(policies(), st.sampled_from([np.inf, 3e38, 0.0, 1e-45, 2.0**127]), st.booleans())
def test_a_scale_from_outside_is_back_inside_its_bounds_after_one_step(policy, scale, overflow):
    rule, state = rule_and_state(policy)
    state.loss_scale = scale
    rule.update(state, overflow)
    assert policy["floor"] <= state.loss_scale <= policy["cap"]


@settings(deadline=None)
@given(traces, windows)
def test_a_factor_of_one_never_moves_the_scale(trace, window):
    rule, state = ScaleRule(1.0, 1.0, window), ScaleState(96)
    assert set(run(rule, state, trace)) <= {np.float32(96)}


@settings(deadline=None)
@given(traces, st.integers(1, 9))
def test_after_an_overflow_the_scale_grows_at_exactly_the_last_of_window_clean_steps(trace, window):
    rule, state = ScaleRule(2.0, 0.5, window), ScaleState(2.0**20)
    run(rule, state, [*trace, True])
    low = state.loss_scale
    assert list(run(rule, state, [False] * (2 * window))) == [
        *[low] * (window - 1), *[2 * low] * window, 4 * low]


@settings(deadline=None)
@given(st.integers(1, 9))
def test_an_overflow_on_the_step_of_growth_shrinks_and_restarts_the_count(window):
    rule, state = ScaleRule(2.0, 0.5, window), ScaleState(1024.0)
    assert run(rule, state, [False] * (window - 1) + [True])[-1] == 512
    assert list(run(rule, state, [False] * window)) == [*[512] * (window - 1), 1024]


def test_growth_at_the_cap_leaves_the_scale_and_restarts_the_count():
    rule, state = ScaleRule(2.0, 0.5, 3, maximum=16.0), ScaleState(16.0)
    run(rule, state, [False] * 3)
    assert (state.loss_scale, state.cur_iter - state.last_overflow_iter) == (16, 1)
    assert list(run(rule, state, [True, False, False, False])) == [8, 8, 8, 16]


@settings(deadline=None)
@given(policies(), traces, st.integers(0, 60))
def test_saving_and_going_on_at_any_step_changes_nothing(policy, trace, cut):
    rule, whole = rule_and_state(policy)
    first = ScaleState(policy["scale"])
    expected = run(rule, whole, trace)
    before = run(rule, first, trace[:cut])
    after = run(rule, ScaleState(**vars(first)), trace[cut:])
    assert np.concatenate([before, after]).tobytes() == expected.tobytes()


@settings(deadline=None)
@given(traces, windows, st.integers(1, 7))
def test_factors_that_are_powers_of_two_keep_a_power_of_two_exact(trace, window, power):
    scales = run(ScaleRule(2.0**power, reciprocal(2.0**power), window), ScaleState(2.0**24), trace)
    assert not np.modf(np.log2(scales.astype(np.float64)))[0].any()


def test_hysteresis_tolerates_so_many_overflows_before_the_scale_shrinks():
    trace = [True, True, False, True, True]
    for hysteresis, expected in ((0, [32, 16, 16, 8, 4]), (1, [64, 32, 32, 16, 8]), (2, [64, 64, 64, 32, 16]),
                                 (9, [64] * 5)):
        rule, state = ScaleRule(2.0, 0.5, 100, hysteresis=hysteresis), ScaleState(64.0)
        assert list(run(rule, state, trace)) == expected


def test_what_hysteresis_spent_comes_back_with_growth():
    rule, state = ScaleRule(2.0, 0.5, 2, hysteresis=1), ScaleState(64.0)
    assert list(run(rule, state, [True, True, False, False, True, True])) == [64, 32, 32, 64, 64, 32]


def test_what_hysteresis_spent_comes_back_at_the_cap_too():
    rule, state = ScaleRule(2.0, 0.5, 2, maximum=64.0, hysteresis=1), ScaleState(64.0)
    assert list(run(rule, state, [True, False, False, True, True])) == [64, 64, 64, 64, 32]


def test_consecutive_hysteresis_starts_anew_after_every_clean_step():
    rule, state = ScaleRule(2.0, 0.5, 100, hysteresis=1, consecutive=True), ScaleState(64.0)
    assert list(run(rule, state, [True, False, True, False, True, True, True, False, True])) == [
        64, 64, 64, 64, 64, 32, 16, 16, 16]


def test_a_tolerated_overflow_restarts_the_count_of_clean_steps():
    rule, state = ScaleRule(2.0, 0.5, 3, hysteresis=1), ScaleState(64.0)
    assert list(run(rule, state, [False, False, True, False, False, False])) == [64, 64, 64, 64, 64, 128]


def test_the_number_stays_as_it_was_given_until_its_float32_changes():
    rule, state = ScaleRule(2.0, 0.5, 2, maximum=2**20), ScaleState(2**20)
    run(rule, state, [False, False])
    assert type(state.loss_scale) is int
    run(rule, state, [True])
    assert (type(state.loss_scale), state.loss_scale) == (float, 2.0**19)


def test_bounds_that_float32_rounds_inwards_accept_the_scales_they_lead_to():
    rule = make_rule("Who", "scale", 0.7, 2, 2, 0.7, 1e9 / 3, None, None, 0, False)
    state = ScaleState(0.7)
    for overflow in (True, False):
        run(rule, state, [overflow] * 80)
        make_rule("Who", "scale", state.loss_scale, 2, 2, 0.7, 1e9 / 3, None, None, 0, False)


GOOD = {"loss_scale": 64, "scale_factor": 2, "scale_window": 2, "min_loss_scale": 1, "max_loss_scale": 2**126,
            "growth_factor": None, "backoff_factor": None, "hysteresis": 0, "consecutive_hysteresis": False}


@pytest.mark.parametrize("name, wrong, blamed", [
    ("min_loss_scale", 0, None), ("min_loss_scale", -1, None), ("min_loss_scale", 2.0**-127, None),
    ("min_loss_scale", 65, "loss_scale"), ("min_loss_scale", 2.0**126 * 1.1, None), ("min_loss_scale", np.inf, None),
    ("min_loss_scale", np.nan, None), ("max_loss_scale", 63, "loss_scale"), ("max_loss_scale", 0.5, None),
    ("max_loss_scale", 2**127, None), ("max_loss_scale", np.inf, None), ("max_loss_scale", np.nan, None),
    ("loss_scale", 0.5, None), ("loss_scale", 2**127, None), ("growth_factor", 0.99, None),
    ("growth_factor", np.inf, None), ("growth_factor", np.nan, None), ("growth_factor", 1e39, None),
    ("backoff_factor", 0, None), ("backoff_factor", 1.01, None), ("backoff_factor", -1, None),
    ("backoff_factor", np.nan, None), ("hysteresis", -1, None), ("hysteresis", 2**31, None),
    ("scale_factor", 0.5, None), ("scale_window", 0, None), ("scale_window", 2**31, None)])
def test_a_number_out_of_range_is_refused(name, wrong, blamed):
    with pytest.raises(ValueError, match=f"^For 'Who', '{blamed or name}' must be"):
        make_rule("Who", "loss_scale", **{**GOOD, name: wrong})


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("wrong", [True, "2", [2], 2j])
def test_what_is_no_number_is_refused(name, wrong):
    if name == "consecutive_hysteresis" and wrong is True:
        wrong = 1
    with pytest.raises(TypeError, match=f"^For 'Who', '{name}' must be"):
        make_rule("Who", "loss_scale", **{**GOOD, name: wrong})
