"""``python -m ms_lossscale run``: unmodified MindSpore scripts run as Python runs them, on CPU, with this package."""

import importlib.util
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from mindspore_version import V200

from ms_lossscale.commands import run

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(__file__).parent / "scripts"
ON_CPU = ("--device-target", "CPU")
OVERRIDDEN = "LossScaleWarning: The script asks for the device target Ascend; --device-target CPU overrides it."


def python(*arguments, timeout=200, **options):
    """Run Python on `arguments` as a user does."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          env=env, **options)


def run_script(*arguments, **options):
    return python("-m", "ms_lossscale", "run", *arguments, **options)


def test_a_script_with_a_step_of_its_own_gets_its_arguments_and_gives_its_exit_status():
    job = run_script(*ON_CPU, SCRIPTS / "custom_step.py", "a", "--b", "--device-target")
    # .value() of a Parameter in a graph is what it was before the update on 2.0.0; MindSpore's own step gives the same.
    scales = (64, 64, 128, 64) if V200 else (64, 128, 64, 64)
    told = [f"{overflow} {scale}" for overflow, scale in zip((False, False, True, False), scales)]
    assert job.stdout.splitlines() == [*told, "True ['a', '--b', '--device-target']"], job.stderr
    assert job.returncode == 7
    assert OVERRIDDEN in job.stderr and "custom_step.py:" in job.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script, arguments, lines", [
    ("fixed_manager", (), ["False 1024", "False 1024", "True 1024", "False 1024", "True True"]),
    ("fixed_manager", ("--mode", "PYNATIVE"), ["False 1024", "False 1024", "True 1024", "False 1024", "True True"]),
    ("dynamic_manager", (), ["True True True"]),
    ("functional_loop", (), ["True 1024", "True 2048", "False 1024", "True 1024"]),
])
def test_a_script_in_the_style_of_the_tutorials_trains(script, arguments, lines):
    job = run_script(*ON_CPU, SCRIPTS / f"{script}.py", *arguments)
    assert job.stdout.splitlines() == lines, job.stderr
    assert job.returncode == 0 and job.stderr.count(OVERRIDDEN) == 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mindcv") is None, reason="mindcv is not installed: pip install mindcv")
@pytest.mark.parametrize("mode, count", [("GRAPH", 30), ("PYNATIVE", 18)])
def test_mindcvs_trainer_trains_with_every_way_of_scaling(mode, count):
    job = run_script(*ON_CPU, SCRIPTS / "mindcv_trainer.py", mode, timeout=900)
    lines = job.stdout.splitlines()
    assert len(lines) == count and job.returncode == 0, job.stderr
    assert all(line.endswith(" falls") for line in lines)
    # Fixed, nothing dropped, no option: the one case without a step of ours, in MindSpore, too.
    assert [line for line in lines if " ours " not in line] == ["O0 fixed False plain falls",
                                                                "O2 fixed False plain falls"]


MAIN = """
import inspect, json, pickle, sys
from multiprocessing import get_context
from mindspore import Model, context

class Mine:
    'a class of the main module'

def who(number):
    return Model.__module__, context.get_context("device_target"), number

context.set_context(device_target="GPU")
if __name__ == "__main__":
    with get_context("spawn").Pool(1) as pool:
        workers = pool.map(who, [3])
    print(json.dumps({
        "argv": sys.argv, "path": sys.path[0], "file": __file__, "package": __package__,
        "spec": __spec__ and __spec__.name, "main": sys.modules["__main__"].__dict__ is globals(),
        "here": who(0), "workers": workers, "source": "a class of the main module" in inspect.getsource(Mine),
        "pickled": type(pickle.loads(pickle.dumps(Mine()))) is Mine, "doc": __doc__, "name": __name__}))
    def deeper():
        raise KeyError("mine")
    deeper()
"""


def check_main(job, file, argv):
    facts = json.loads(job.stdout)
    assert facts["argv"] == argv and facts["file"] == str(file)
    assert facts["here"] == ["ms_lossscale.model", "CPU", 0] and facts["workers"] == [["ms_lossscale.model", "CPU", 3]]
    assert facts["main"] and facts["source"] and facts["pickled"] and facts["name"] == "__main__"
    shown = job.stderr[job.stderr.index("Traceback"):].splitlines()
    assert job.returncode == 1 and shown[-1] == "KeyError: 'mine'"
    assert [line for line in shown if line.startswith("  File")] == [
        f'  File "{file}", line {number}, in {name}' for number, name in ((23, "<module>"), (22, "deeper"))]
    return facts


def test_a_script_sees_what_python_shows_it_and_so_do_its_workers_and_its_traceback_is_its_own(tmp_path):
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "script.py"
    script.write_text(MAIN, encoding="utf-8")
    job = run_script(*ON_CPU, "folder/script.py", "-m", "x", cwd=tmp_path)
    facts = check_main(job, script, ["folder/script.py", "-m", "x"])
    assert (facts["path"], facts["spec"], facts["package"]) == (str(tmp_path / "folder"), None, None)


@pytest.mark.slow
def test_a_module_of_a_package_sees_what_python_shows_it(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "tool.py").write_text(MAIN, encoding="utf-8")
    job = run_script(*ON_CPU, "-m", "package.tool", "--x", cwd=tmp_path)
    facts = check_main(job, package / "tool.py", [str(package / "tool.py"), "--x"])
    assert (facts["path"], facts["spec"], facts["package"]) == (str(tmp_path), "package.tool", "package")


@pytest.mark.parametrize("argv, ours, theirs", [
    (["a.py", "--x", "-m"], ["a.py"], ["--x", "-m"]),
    (["--device-target", "CPU", "a.py", "--device-target", "GPU"], ["--device-target", "CPU", "a.py"],
     ["--device-target", "GPU"]),
    (["--device-target=CPU", "-m", "mod", "-m", "y"], ["--device-target=CPU", "-m", "mod"], ["-m", "y"]),
    (["-mmod", "x"], ["-mmod"], ["x"]),
    ([], [], []),
])
def test_what_follows_the_script_is_the_scripts_own(argv, ours, theirs):
    assert run._split(argv) == (ours, theirs)


@pytest.fixture
def in_process(monkeypatch):
    """Let run.main leave this process as it was, and redirect nothing."""
    monkeypatch.setattr(run, "begin", lambda device_target: None)
    for owner, name in ((sys, "argv"), (sys, "path")):
        monkeypatch.setattr(owner, name, list(getattr(owner, name)))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return run.main


@pytest.mark.parametrize("argv, status, text", [
    (["nothing.py"], 2, "can't open file 'nothing.py': [Errno 2] No such file or directory"),
    (["-m", "no_such_module"], 1, "No module named no_such_module"),
    (["-m", "no_such_package.part"], 1, "No module named 'no_such_package'"),
    (["."], 1, "can't find '__main__' module in '.'"),
])
def test_what_does_not_exist_is_said_with_pythons_own_exit_status(argv, status, text, in_process, capsys):
    assert in_process(argv) == status
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["--device-target", "TPU", "a.py"], ["--unknown", "a.py"]])
def test_a_wrong_command_line_is_refused(argv, in_process, capsys):
    with pytest.raises(SystemExit) as stop:
        in_process(argv)
    assert stop.value.code == 2 and "usage: python -m ms_lossscale run" in capsys.readouterr().err


def test_folders_and_archives_with_a_main_run(in_process, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys; print(sys.argv, sys.path[0])", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "archive.pyz", "w") as archive:
        archive.write(tmp_path / "folder" / "__main__.py", "__main__.py")
    for name in ("folder", "archive.pyz"):
        path = str(tmp_path / name)
        assert in_process([path, "x"]) == 0
        argv, _, first = capsys.readouterr().out.rpartition(" ")
        assert first.strip() == path and "'x'" in argv and path in argv


def test_a_syntax_error_shows_the_script_alone(in_process, tmp_path, capsys):
    (tmp_path / "wrong.py").write_text("x = (\n", encoding="utf-8")
    with pytest.raises(SyntaxError) as caught:
        in_process([str(tmp_path / "wrong.py")])
    sys.excepthook(caught.type, caught.value, caught.tb)
    shown = capsys.readouterr().err
    assert "wrong.py" in shown and "SyntaxError" in shown and "run.py" not in shown


@pytest.mark.parametrize("value", ["3", "None", "'text'"])
def test_the_exit_of_a_script_passes_through(value, in_process, tmp_path):
    (tmp_path / "leave.py").write_text(f"import sys\nsys.exit({value})\n", encoding="utf-8")
    with pytest.raises(SystemExit) as stop:
        in_process([str(tmp_path / "leave.py")])
    assert repr(stop.value.code) == value


def test_a_device_that_mindspore_cannot_use_is_said(monkeypatch, capsys):
    def refuse(device_target):
        raise RuntimeError("Unsupported device target GPU.\nmore")

    monkeypatch.setattr(run, "begin", refuse)
    assert run.main(["--device-target", "GPU", "a.py"]) == 2
    assert "cannot use the device target GPU: Unsupported device target GPU.\n" in capsys.readouterr().err
