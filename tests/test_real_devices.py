"""On a real Ascend or GPU: the check passes in every overflow mode, and a float16 training finds its scale."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DEVICE_FILES = {"Ascend": "davinci[0-9]*", "GPU": "nvidia[0-9]*"}
WAYS = {
    "Ascend": ("Ascend", {}),
    "Ascend, saturation mode": ("Ascend", {"MS_ASCEND_CHECK_OVERFLOW_MODE": "SATURATION_MODE"}),
    "Ascend, without AllFinite": ("Ascend", {"MS_DEV_RUNTIME_CONF": "all_finite:false"}),
    "GPU": ("GPU", {}),
}


def marks(target):
    """Return the marker, and a skip on a machine without such a device."""
    found = list(Path("/dev").glob(DEVICE_FILES[target]))
    return [pytest.mark.device, pytest.mark.skipif(not found, reason=f"this machine has no {target}")]


every_way = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(target))
                                             for name, (target, _) in WAYS.items()])


def run(name, *command):
    target, variables = WAYS[name]
    environment = {**os.environ, **variables, "PYTHONPATH": str(HERE.parent)}
    job = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=600)
    if "cannot use the device target" in job.stderr or "Unsupported device target" in job.stderr:
        pytest.skip(f"this MindSpore cannot use the {target} of this machine")
    return job


@every_way
def test_the_check_passes(name):
    job = run(name, "-m", "ms_lossscale", "check", "--device-target", WAYS[name][0])
    assert job.returncode == 0, job.stdout + job.stderr


@every_way
@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_a_float16_training_finds_its_scale_and_then_learns(name, mode):
    job = run(name, str(HERE / "real_device_training.py"), WAYS[name][0], mode)
    result = json.loads(job.stdout.splitlines()[-1])
    first_applied = result["overflows"].index(False)
    assert 0 < first_applied < 20
    assert not any(result["overflows"][first_applied:-1])
    assert result["losses"][-2] < result["losses"][0]
    assert result["finite"]
    # Only a register sees the overflow of the last step, which neither loss nor gradients show.
    assert result["overflows"][-1] == (result["detector"] == "FloatStatusRegister")
