"""``python -m ms_lossscale check``: its report, its exit status, and that each of its checks can fail."""

import json
import subprocess
import sys

import mindspore as ms
import pytest
from devices import DEVICES, machine, on
from mindspore import Tensor
from mindspore_version import V200
from simulated_device import SimulatedDevice, simulated
from test_device_mutants import mutation

from ms_lossscale import TrainOneStepWithLossScaleCell, _versions
from ms_lossscale.commands import check, trial
from ms_lossscale.compiled import library
from ms_lossscale.overflow import register

ALL_PASS = dict.fromkeys(trial.CHECKS, True)


@pytest.fixture
def quick(monkeypatch):
    """Let every check pass without training."""
    monkeypatch.setattr(check, "try_out", lambda mode: dict(ALL_PASS))


def test_everything_passes_here_in_both_modes_and_the_report_is_json(capsys):
    before = ms.get_context("mode")
    assert check.main(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["trial"] == {"GRAPH": ALL_PASS, "PYNATIVE": ALL_PASS}
    assert report["passed"] is True
    assert (report["device_target"], report["mindspore"]) == ("CPU", ms.__version__)
    assert (report["detector"], report["reason"]) == ("host", "device target CPU")
    assert ms.get_context("mode") == before


def test_the_text_names_version_target_detector_primitives_and_what_decided(quick, capsys):
    assert check.main([]) == 0
    text = capsys.readouterr().out
    for line in (f"MindSpore      {ms.__version__}", "device target  CPU", "on overflow    makes Inf and NaN",
                 f"primitives     Custom({'aot' if library() else 'pyfunc'})", "decided by     device target CPU",
                 "GRAPH     PYNATIVE",
                 "overflow skipped      pass      pass", "Loss scaling works on this device."):
        assert line in text


def test_a_failed_check_is_shown_and_gives_exit_status_1(monkeypatch, capsys):
    outcomes = {"GRAPH": {**ALL_PASS, "stale flag ignored": False}, "PYNATIVE": ALL_PASS}
    monkeypatch.setattr(check, "try_out", outcomes.__getitem__)
    assert check.main([]) == 1
    text = capsys.readouterr().out
    assert "stale flag ignored    FAIL      pass" in text
    assert "does NOT work" in text


def test_an_error_of_the_device_is_a_failure_with_its_first_line(monkeypatch, capsys):
    def broken(mode):
        raise RuntimeError("\n----\nkernel not found\nmore")

    monkeypatch.setattr(check, "try_out", broken)
    assert check.main([]) == 1
    assert "GRAPH: RuntimeError: kernel not found\n" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["Ascend", "GPU"])
def test_a_target_that_mindspore_cannot_load_gets_a_clear_message_and_exit_status_2(target, capsys):
    if target in _supported_targets():
        pytest.skip(f"this MindSpore runs on {target}")
    assert check.main(["--device-target", target]) == 2
    assert f"cannot use the device target {target}: Unsupported device target" in capsys.readouterr().err
    assert check.main(["--device-target", target, "--json"]) == 2
    report = json.loads(capsys.readouterr().out)
    assert report["passed"] is False
    assert f"device target {target}" in report["error"]
    assert ms.get_context("device_target") == "CPU"


def _supported_targets():
    return {"CPU"} if ms.get_context("device_target") == "CPU" else {"CPU", ms.get_context("device_target")}


def test_a_target_that_does_not_exist_is_refused_with_the_list(capsys):
    with pytest.raises(SystemExit) as stop:
        check.main(["--device-target", "TPU"])
    assert stop.value.code == 2
    assert "'CPU', 'GPU', 'Ascend'" in capsys.readouterr().err.replace("CPU, GPU, Ascend", "'CPU', 'GPU', 'Ascend'")


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_described(name):
    device = DEVICES[name]
    if device.detector == "all_finite" and _versions.AllFinite is None:
        pytest.skip("MindSpore 2.0.0 has no AllFinite")
    with on(name):
        report = check.describe()
    assert report["detector"] == device.detector
    assert set(report["primitives"]) == set(device.primitives)
    assert ("saturates" in report["overflow_mode"]) == (device.detector == "register")
    assert report["warnings"] == []
    asks_the_chip = device.target == "Ascend" and not V200
    assert bool(report["chip"]) == asks_the_chip


def test_an_unknown_ascend_chip_is_explained(quick):
    with machine("Ascend"):
        report = check.describe("Ascend")
    assert "MS_LOSSSCALE_DETECTOR" in report["warnings"][0]
    assert "its own choice" in report["reason"]
    assert "warning        This Ascend chip is neither" in check._text({**report, "trial": {}, "passed": True})


class Inverted(TrainOneStepWithLossScaleCell):
    """A step whose gate is inverted."""

    def process_loss_scale(self, overflow):
        super(Inverted, self).process_loss_scale(overflow)  # noqa: UP008
        return ~overflow


class Blind(TrainOneStepWithLossScaleCell):
    """A step that sees no overflow."""

    def get_overflow_status(self, status, compute_output):
        return Tensor(False)


@pytest.mark.parametrize("broken, failing", [
    (Inverted, {"clean step applied", "state untouched", "stale flag ignored", "scale sequence right"}),
    (Blind, {"overflow skipped", "state untouched", "scale sequence right"}),
])
def test_a_broken_step_fails_its_checks(broken, failing, monkeypatch):
    monkeypatch.setattr(trial, "TrainOneStepWithLossScaleCell", broken)
    outcomes = trial.try_out("PYNATIVE")
    assert {name for name, passed in outcomes.items() if not passed} == failing


def test_a_wrong_scale_rule_fails_the_scale_sequence(monkeypatch):
    monkeypatch.setattr(trial, "WINDOW", 3)
    outcomes = trial.try_out("PYNATIVE")
    assert [name for name, passed in outcomes.items() if not passed] == ["scale sequence right"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_stale_flag_that_skips_a_step_fails_its_check(broken, monkeypatch, tmp_path):
    device = SimulatedDevice(saturates=True)
    monkeypatch.setattr(trial, "overflow_elsewhere", lambda: setattr(device, "raised", True))
    first_clear = "cleared = self.clear_status(status)"
    with mutation(register, first_clear, "cleared = status" if broken else first_clear, tmp_path):
        monkeypatch.setattr(trial, "Trial", _built_for_a_910a(device))
        assert trial.try_out("PYNATIVE")["stale flag ignored"] is not broken


def _built_for_a_910a(device):
    original = trial.Trial

    def build():
        with simulated("910A", device):
            return original()

    return build


@pytest.mark.slow
def test_the_command_runs_as_a_user_runs_it():
    job = subprocess.run([sys.executable, "-m", "ms_lossscale", "check"], capture_output=True, text=True, timeout=200)
    assert job.returncode == 0
    assert "Loss scaling works on this device." in job.stdout
