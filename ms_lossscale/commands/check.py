"""``python -m ms_lossscale check``: what decides loss scaling on this machine, and whether it works here."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import warnings

import mindspore as ms
from mindspore import context

import ms_lossscale
from ms_lossscale import _versions
from ms_lossscale.commands.trial import CHECKS, MODES, try_out
from ms_lossscale.compiled import library
from ms_lossscale.overflow.table import build, choose

TARGETS = ("CPU", "GPU", "Ascend")
LABELS = {"ms_lossscale": "ms_lossscale", "mindspore": "MindSpore", "python": "Python",
          "device_target": "device target", "chip": "chip", "overflow_mode": "on overflow", "detector": "detector",
          "primitives": "primitives", "reason": "decided by", "compiled": "compiled part"}


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0 if everything passed, 1 if a check failed, 2 if there is no such device here."""
    options = _parser().parse_args(argv)
    try:
        report = describe(options.device_target)
    except (RuntimeError, ValueError) as error:
        return _fail(options, error)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said once already, in the report
        report["trial"] = {mode: _try_out(mode) for mode in MODES}
    report["passed"] = all(outcome is True for outcomes in report["trial"].values() for outcome in outcomes.values())
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0 if report["passed"] else 1


def describe(target: str | None = None) -> dict:
    """Return the facts about this machine; a `target` becomes the current device target, or MindSpore raises."""
    if target is not None and target != context.get_context("device_target"):
        ms.set_context(device_target=target)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        choice = choose()
    target = context.get_context("device_target")
    detector = build(choice, distributed=False, count=1)
    return {
        "ms_lossscale": ms_lossscale.__version__, "mindspore": ms.__version__, "python": platform.python_version(),
        "device_target": target, "chip": _versions.chip_facts() if target == "Ascend" else {},
        "overflow_mode": "saturates, and raises a register" if choice.name == "register" else "makes Inf and NaN",
        "detector": choice.name, "primitives": list(detector.primitives), "reason": choice.reason,
        "compiled": library(),
        "warnings": [str(warning.message) for warning in caught],
    }


def _try_out(mode):
    try:
        return try_out(mode)
    except Exception as error:  # whatever the device says is what the user must see
        return dict.fromkeys(CHECKS, f"{type(error).__name__}: {_first_line(error)}")


def _first_line(error):
    return next((line.strip() for line in str(error).splitlines() if line.strip(" -")), "no message")


def _fail(options, error):
    target = options.device_target or context.get_context("device_target")
    text = f"This MindSpore ({ms.__version__}) cannot use the device target {target}: {_first_line(error)}"
    if options.json:
        print(json.dumps({"device_target": target, "error": text, "passed": False}, indent=2))
    else:
        print(text, file=sys.stderr)
    return 2


def _text(report):
    shown = {**report, "chip": ", ".join(f"{name}: {fact}" for name, fact in report["chip"].items()),
             "primitives": ", ".join(report["primitives"]),
             "compiled": report["compiled"] or "none: NumPy does its work, and MindSpore's own operators"}
    lines = [f"{label:<15}{shown[name]}" for name, label in LABELS.items() if shown[name]]
    lines += [f"{'warning':<15}{text}" for text in report["warnings"]]
    lines += ["", _row("", report["trial"])]
    for check in CHECKS:
        lines.append(_row(check, ["pass" if each[check] is True else "FAIL" for each in report["trial"].values()]))
    for mode, outcomes in report["trial"].items():
        errors = {outcome for outcome in outcomes.values() if not isinstance(outcome, bool)}
        lines += [f"{mode}: {error}" for error in sorted(errors)]
    verdict = "works" if report["passed"] else "does NOT work"
    return "\n".join([*lines, "", f"Loss scaling {verdict} on this device."])


def _row(name, words):
    return f"{name:<22}{''.join(f'{word:<10}' for word in words)}".rstrip()


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m ms_lossscale check",
        description="Tell how overflow is found on this machine and why, then train a few steps in both modes. "
                    "Exit status: 0 all passed, 1 a check failed, 2 the device target cannot be used.")
    parser.add_argument("--device-target", choices=TARGETS, help="the device to check; default: MindSpore's own choice")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    return parser
