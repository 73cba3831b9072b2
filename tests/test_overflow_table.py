"""Which overflow detector a step gets: MindSpore's own rules, an override, and errors that say what to do."""

import itertools
import warnings
from types import SimpleNamespace

import mindspore as ms
import mindspore.nn.wrap.loss_scale as native_module
import pytest
from devices import DEVICES, SATURATION, machine, on
from mindspore import context, nn
from mindspore.run_check import _check_version

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell, _versions
from ms_lossscale.compiled import library
from ms_lossscale.overflow.table import DETECTORS, OVERRIDE, build, choose

NEEDS_ALL_FINITE = pytest.mark.skipif(_versions.AllFinite is None, reason="MindSpore 2.0.0 has no AllFinite")


def build_step():
    network = nn.Dense(2, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    return TrainOneStepWithLossScaleCell(network, optimizer, DynamicLossScaleUpdateCell(2.0, 2, 2))


def native_choice(network, optimizer):
    """Build MindSpore's own step and tell which of its branches it would take."""
    step = nn.TrainOneStepWithLossScaleCell(network, optimizer, ms.Tensor(2.0))
    if step.gpu_target:
        return "float_status"
    if not getattr(step, "ascend_910b_target", False) or step._ascend_check_overflow_mode == "SATURATION_MODE":
        return "register"
    return "all_finite" if step.enable_allfinite else "is_finite"


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_gets_its_detector_and_says_what_decided(name):
    device = DEVICES[name]
    if device.detector == "all_finite" and _versions.AllFinite is None:
        pytest.skip("MindSpore 2.0.0 has no AllFinite")
    with on(name):
        detector = build_step().detector
        assert type(detector) is DETECTORS[device.detector]
        assert set(detector.primitives) == set(device.primitives)
        assert detector.reason == choose().reason
    assert (device.chip or device.target) in detector.reason


def test_the_cpu_looks_on_the_host():
    assert choose() == ("host", "device target CPU")


@pytest.mark.parametrize("target, chip", [("Ascend", "910A"), ("Ascend", "910B"), ("GPU", "")])
def test_the_choice_is_that_of_mindspores_own_step_in_every_environment(target, chip, monkeypatch):
    jit_levels = [{}, {"jit_level": "O1"}, {"jit_level": "O2"}]
    runtimes = [None, "all_finite:True", "all_finite:true", "all_finite:False", "a,all_finite:false", "ALL_FINITE:TRUE"]
    overflow_modes = [None, "SATURATION_MODE", "saturation_mode"]
    others = itertools.product([None, "/hccl.json"], [True, False])
    network = nn.Dense(2, 1)
    optimizer = nn.SGD(network.trainable_params(), 0.1)
    disagreements = []
    for jit, runtime, overflow_mode, (table, fits) in itertools.product(jit_levels, runtimes, overflow_modes,
                                                                      list(others)):
        monkeypatch.setattr(context, "get_jit_config", lambda jit=jit: jit, raising=False)
        checker = SimpleNamespace(check_custom_version=lambda fits=fits: fits)
        for module in (_check_version, native_module):
            monkeypatch.setattr(module, "AscendEnvChecker", lambda path, checker=checker: checker, raising=False)
        wanted = {"MS_DEV_RUNTIME_CONF": runtime, "MS_ASCEND_CHECK_OVERFLOW_MODE": overflow_mode,
                  "RANK_TABLE_FILE": table}
        variables = {name: value for name, value in wanted.items() if value is not None}
        with machine(target, chip, variables):
            ours, theirs = choose().name, native_choice(network, optimizer)
        if ours != theirs and _versions.AllFinite is not None:
            disagreements.append((jit, variables, fits, ours, theirs))
    assert disagreements == []


@pytest.mark.parametrize("name, chip", [("ascend910", "910A"), ("ascend910b", "910B"), ("ascend910_93", "910B"),
                                        ("ascend950", "910B"), ("ascend310p", ""), ("", "")])
def test_mindspore_2_7_to_2_9_name_the_chip(name, chip, monkeypatch):
    native = SimpleNamespace(get_instance=lambda: SimpleNamespace(get_ascend_soc_version=lambda: name))
    monkeypatch.setattr(_versions.ms, "_c_expression", SimpleNamespace(MSContext=native))
    assert _versions.ascend_chip() == chip


@pytest.mark.parametrize("features, chip", [(["amp_loss_scale_train_classic_target"], "910A"),
                                            (["train_hq_dtype_line"], "910B"), ([], "")])
def test_mindspore_2_10_names_what_the_chip_can_do(features, chip, monkeypatch):
    native = SimpleNamespace(get_instance=lambda: SimpleNamespace(ascend_soc_supports_feature=features.__contains__))
    monkeypatch.setattr(_versions.ms, "_c_expression", SimpleNamespace(MSContext=native))
    assert _versions.ascend_chip() == chip


def test_mindspore_2_0_takes_every_ascend_for_a_910a(monkeypatch):
    native = SimpleNamespace(get_instance=lambda: SimpleNamespace())
    monkeypatch.setattr(_versions.ms, "_c_expression", SimpleNamespace(MSContext=native))
    assert _versions.ascend_chip() == "910A"


def test_an_unknown_ascend_chip_reads_the_register_with_one_warning():
    with machine("Ascend"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        steps = [build_step() for _ in range(3)]
    assert [type(step.detector) for step in steps] == [DETECTORS["register"]] * 3
    assert len(caught) == 1
    assert OVERRIDE in str(caught[0].message)


def test_the_warning_about_an_unknown_chip_points_at_the_line_that_builds_the_step():
    with machine("Ascend"), pytest.warns(RuntimeWarning, match="neither a 910A nor a 910B") as caught:
        build_step()
    assert caught[0].filename == __file__


@pytest.mark.parametrize("chip", ["", "910A", "910B"])
@pytest.mark.parametrize("name", ["register", "is_finite", pytest.param("all_finite", marks=NEEDS_ALL_FINITE)])
def test_the_environment_variable_decides_on_ascend(chip, name):
    with machine("Ascend", chip, {OVERRIDE: name}):
        assert choose() == (name, f"{OVERRIDE}={name}")


def test_an_override_that_ascend_does_not_have_is_refused_with_the_list():
    with machine("Ascend", "910B", {OVERRIDE: "float_status"}), pytest.raises(ValueError) as error:
        choose()
    assert f"'{OVERRIDE}' must be one of register," in str(error.value)
    assert "float_status" in str(error.value)


@pytest.mark.parametrize("target, name", [("CPU", "host"), ("GPU", "float_status")])
def test_the_override_is_for_ascend_alone(target, name):
    with machine(target, variables={OVERRIDE: "register"}):
        assert choose().name == name


def test_an_unknown_device_target_is_an_error_that_lists_the_known_ones():
    with machine("TPU"), pytest.raises(ValueError, match="must be CPU, GPU or Ascend, but got 'TPU'"):
        build_step()


def test_saturation_mode_is_read_when_the_step_is_built(monkeypatch):
    with machine("Ascend", "910B", SATURATION):
        step = build_step()
    assert type(step.detector) is DETECTORS["register"]


@NEEDS_ALL_FINITE
@pytest.mark.parametrize("variables, jit, fits, why", [
    ({}, {}, True, "on by default"),
    ({}, {"jit_level": "O2"}, True, "off at jit_level O2"),
    ({"MS_DEV_RUNTIME_CONF": "all_finite:false"}, {}, True, "off by MS_DEV_RUNTIME_CONF"),
    ({"RANK_TABLE_FILE": "x"}, {}, True, "RANK_TABLE_FILE"),
    ({}, {}, False, "custom operators do not fit"),
])
def test_the_reason_names_what_decided_between_allfinite_and_isfinite(variables, jit, fits, why, monkeypatch):
    monkeypatch.setattr(context, "get_jit_config", lambda: jit)
    monkeypatch.setattr(_check_version, "AscendEnvChecker",
                        lambda path: SimpleNamespace(check_custom_version=lambda: fits))
    with machine("Ascend", "910B", variables):
        assert why in choose().reason


def test_a_detector_says_why_it_was_picked():
    detector = build(choose(), distributed=False, count=2)
    assert detector.reason == "device target CPU"
    assert detector.primitives == ("Custom(aot)" if library() else "Custom(pyfunc)",)
