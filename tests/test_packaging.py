"""What pip makes of the package's requirements: offline, with an index of empty wheels."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).parent.parent


def settings():
    """Return what setup.py tells setuptools; a virtual environment of Python 3.12 has none."""
    told = mock.Mock(**{"find_packages.return_value": []})
    with mock.patch.dict(sys.modules, setuptools=told):
        source = compile((ROOT / "setup.py").read_text(encoding="utf-8"), str(ROOT / "setup.py"), "exec")
        exec(source, {"__name__": "setup", "__file__": str(ROOT / "setup.py")})
    return told.setup.call_args.kwargs


def write_wheel(folder, name, version, requires=()):
    """Write a wheel with nothing but its metadata."""
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Provides-Extra: cpu",
             *(f"Requires-Dist: {each}" for each in requires)]
    path, info = folder / f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "\n".join(lines) + "\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def package_wheel(folder):
    """Write a wheel with this package's metadata, a version ahead of the one that may be installed."""
    told = settings()
    cpu = [f"{each}; extra == 'cpu'" for each in told["extras_require"]["cpu"]]
    return write_wheel(folder, told["name"], "99.0", [*told["install_requires"], *cpu])


def would_install(wanted, index, *options):
    """Return {name: version} of what pip would install from `index`."""
    command = [sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "install", "-q", "--dry-run",
               "--no-index", "--find-links", index, "--report", "-", *options, wanted]
    told = json.loads(subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout)
    return {each["metadata"]["name"]: each["metadata"]["version"] for each in told["install"]}


@pytest.fixture
def index(tmp_path):
    """MindSpore and NumPy of all ages, the newest newer than any that exists."""
    for version in ("2.0.0", "2.10.0", "3.0.0"):
        write_wheel(tmp_path, "mindspore", version, ["numpy>=1.20"])
    for version in ("1.20.0", "1.26.9", "2.9.0"):
        write_wheel(tmp_path, "numpy", version)
    return tmp_path


def test_numpy_of_any_version_is_all_that_it_requires():
    # A MindSpore that was built or copied into place is one that pip does not know of.
    assert settings()["install_requires"] == ["numpy"]


@pytest.mark.parametrize("options", [(), ("--upgrade",)], ids=["install", "upgrade"])
def test_next_to_an_installed_mindspore_pip_installs_this_package_and_nothing_else(options, index):
    assert would_install(package_wheel(index), index, *options) == {"ms_lossscale": "99.0"}


def test_the_cpu_extra_takes_a_mindspore_with_the_numpy_it_is_built_against(index):
    installed = would_install(f"{package_wheel(index)}[cpu]", index, "--ignore-installed")
    assert installed == {"ms_lossscale": "99.0", "mindspore": "3.0.0", "numpy": "1.26.9"}
