"""``python -m ms_lossscale run``: a script or module as Python runs it, with MindSpore's names redirected to ours."""

from __future__ import annotations

import argparse
import builtins
import importlib.util
import io
import os
import sys
import types
import zipfile
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

import ms_lossscale
from ms_lossscale.commands.device_target import TARGETS, hold_device_target
from ms_lossscale.commands.refusals import answer_refusals
from ms_lossscale.commands.workers import begin_in_workers


class CannotRun(Exception):
    """There is nothing to run: the text for the user, and Python's own exit status."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def main(argv: list[str] | None = None) -> int:
    """Run what the command line names; return 0 if it came to its end, or what Python returns if it cannot start."""
    ours, theirs = _split(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    options = parser.parse_args(ours)
    if (options.module is None) == (options.script is None):
        parser.error("give a SCRIPT or -m MODULE")
    try:
        begin(options.device_target)
    except (RuntimeError, ValueError) as error:
        return _fail(f"cannot use the device target {options.device_target}: {str(error).strip().splitlines()[0]}", 2)
    _hide_our_frames()
    try:
        code, module = _find_module(options.module) if options.module else _find_script(options.script)
    except CannotRun as error:
        return _fail(str(error), error.status)
    sys.argv[:] = [module.__file__ if options.module else options.script, *theirs]
    # For good: what is left running at the end, and multiprocessing, look up this name.
    sys.modules["__main__"] = module
    exec(code, vars(module))
    return 0


def begin(device_target: str | None) -> None:
    """Make of this process, and of those that it spawns, one in which unmodified scripts run."""
    if device_target is not None:
        hold_device_target(device_target)
    ms_lossscale.patch()
    answer_refusals()
    begin_in_workers(begin, device_target)


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Return this command's arguments, and those of what it runs: all that follow SCRIPT or MODULE."""
    at = 0
    while at < len(argv) and argv[at].startswith("-"):
        if argv[at].startswith("-m"):
            at += argv[at] == "-m"
            break
        at += 2 if argv[at] == "--device-target" else 1
    return argv[:at + 1], argv[at + 1:]


def _find_script(path: str) -> tuple[types.CodeType, types.ModuleType]:
    if os.path.isdir(path) or zipfile.is_zipfile(path):
        _set_first_path(path)
        spec = PathFinder.find_spec("__main__", [path])
        if spec is None:
            raise CannotRun(f"can't find '__main__' module in {path!r}", 1)
        return _load(spec)
    try:
        with io.open_code(os.path.abspath(path)) as file:
            source = file.read()
    except OSError as error:
        raise CannotRun(f"can't open file {path!r}: [Errno {error.errno}] {error.strerror}", 2) from None
    _set_first_path(os.path.dirname(os.path.realpath(path)))
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = os.path.abspath(path), builtins
    module.__loader__ = SourceFileLoader("__main__", module.__file__)
    return compile(source, module.__file__, "exec", dont_inherit=True), module


def _find_module(name: str) -> tuple[types.CodeType, types.ModuleType]:
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise CannotRun(f"Error while finding module specification for {name!r} ({error})", 1) from None
    if spec is None:
        raise CannotRun(f"No module named {name}", 1)
    return _load(spec)


def _load(spec: ModuleSpec) -> tuple[types.CodeType, types.ModuleType]:
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__, module.__loader__ = spec.origin, builtins, spec.loader
    module.__spec__, module.__package__, module.__cached__ = spec, spec.parent, spec.cached
    return spec.loader.get_code(spec.name), module


def _set_first_path(directory: str) -> None:
    """Put `directory` in the place of the working directory, which ``python -m`` put first; not in safe modes."""
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        sys.path[0] = directory


def _hide_our_frames() -> None:
    """Let the traceback of an exception that nobody caught begin where the script does."""
    show = sys.excepthook

    def hook(kind, error, traceback):
        inside = traceback
        while inside is not None and inside.tb_frame.f_code.co_filename != __file__:
            inside = inside.tb_next
        while inside is not None and inside.tb_frame.f_code.co_filename == __file__:
            traceback = inside = inside.tb_next
        show(kind, error.with_traceback(traceback), traceback)

    sys.excepthook = hook


def _fail(text: str, status: int) -> int:
    print(f"{sys.executable}: {text}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ms_lossscale run", usage="%(prog)s [--device-target TARGET] (SCRIPT | -m MODULE) [ARGS...]",
        description="Run an unmodified MindSpore script or module with this package in the place of MindSpore's loss "
                    "scaling, as ms_lossscale.patch() does. Its arguments, exit status and traceback are its own.",
        allow_abbrev=False)
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a Python file, or a folder with a __main__.py")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module, as python -m takes it")
    parser.add_argument("--device-target", choices=TARGETS, metavar="TARGET",
                        help="CPU, GPU or Ascend: whatever device target the script asks for, it gets this one")
    return parser
