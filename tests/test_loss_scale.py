"""FixedLossScale, DynamicLossScale, get_loss_scale: what TensorFlow's objects were seen to do, and more."""

import pytest
from tf_cases import CASES, expected, replay

# Where this package differs from TensorFlow, and why. Everything else is equal.
DIFFERENCES = {
    "refused: a scale that is not finite, or not in float32": [
        "fixed.construct.nan", "fixed.construct.inf", "fixed.construct.float_1e39", "fixed.construct.float_1e40",
        "fixed.construct.int_pow128", "fixed.call.inf", "fixed.config_roundtrip.nan", "fixed.config_roundtrip.inf",
        "get.train.nan", "get.keras.nan", "get.train.inf", "get.train.f32_max_half_ulp", "get.keras.f32_max_half_ulp",
        "get.keras.float_1e39", "get.train.float_1e40", "get.keras.float_1e308",
        "dynamic.construct.initial.nan", "dynamic.construct.initial.inf", "dynamic.construct.initial.f32_max_half_ulp",
        "dynamic.construct.initial.float_1e39", "dynamic.construct.initial.float_1e40",
        "dynamic.construct.initial.float_1e308", "dynamic.sequence.inf_initial", "dynamic.sequence.nan_initial",
        "dynamic.sequence.initial_1e40_is_inf"],
    "refused: a scale of 0 or less": [
        "dynamic.construct.initial.float_neg_0", "dynamic.construct.initial.float_neg_big",
        "dynamic.sequence.zero_initial", "dynamic.sequence.negative_initial"],
    "refused: a multiplier that is not finite, or not in float32": [
        "dynamic.construct.multiplier.nan", "dynamic.construct.multiplier.inf", "dynamic.sequence.multiplier_nan",
        "dynamic.sequence.multiplier_1e40"],
    "refused: a period below 1": [
        "dynamic.construct.period.int_0", "dynamic.construct.period.int_neg_1", "dynamic.construct.period.float_0_5",
        "dynamic.sequence.period_0_is_every_step"],
}
REFUSED = [name for names in DIFFERENCES.values() for name in names]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_a_recorded_case_of_tensorflow_ends_alike(case):
    if case["id"] in REFUSED:
        assert "raises" not in case["expect"]
        assert replay(case) == {"raises": "ValueError"}
    else:
        assert repr(replay(case)) == repr(expected(case))
