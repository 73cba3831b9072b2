"""Measures what loss scaling costs on this machine: prints tables, and with --json writes the numbers."""

import argparse
import json
import os
import platform
import warnings
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

import mindspore as ms
import numpy as np

import ms_lossscale
from benchmarks import gradient_pass, memory, ranks, step_tax
from benchmarks.timing import ratios
from ms_lossscale import compiled

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}


def machine():
    """Return what the numbers depend on."""
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "python": platform.python_version(),
            "mindspore": ms.__version__, "numpy": np.__version__, "ms_lossscale": ms_lossscale.__version__,
            "compiled": compiled.library() is not None}


PARTS = {
    # quantity: (reference or None for MiB above the plain step, measured also when quick, function of quick)
    "gradient pass": (gradient_pass.REFERENCE, True, lambda mode, quick: gradient_pass.measure(quick)),
    "growth of the gradient pass": (gradient_pass.REFERENCE, False, lambda mode, quick: gradient_pass.measure_growth()),
    "step": (step_tax.PLAIN, True, lambda mode, quick: step_tax.measure(quick)),
    "first call": ("MindSpore's", True, lambda mode, quick: step_tax.measure_first_calls(quick)),
    "two ranks": (step_tax.PLAIN, False, lambda mode, quick: {step_tax.TINY: ranks.measure(mode)}),
    "memory": (None, False, lambda mode, quick: {memory.WIDE: memory.measure(mode)}),
}


def table(title, modes, reference):
    """Return one quantity as text: times as ratios to a reference, or numbers as they are."""
    lines = [f"\n{title}, {f'over {reference!r}' if reference else 'MiB above the plain step'}"]
    for mode, cases in modes.items():
        for case, values in cases.items():
            shown = ratios(values, reference) if reference and values else values
            lines.append(f"  {mode}, {case}")
            lines += [f"    {name:<26}{value:>8.2f}" for name, value in shown.items()]
            if reference and values:
                lines.append(f"    ({reference}: {1000 * values[reference]:.3g} ms)")
    return "\n".join(lines)


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case of some, in seconds")
    parser.add_argument("--only", choices=PARTS, action="append", help="one quantity; may be given again")
    parser.add_argument("--json", metavar="FILE", help="write the numbers, times in seconds, after each quantity")
    arguments = parser.parse_args()
    # The same gradients come again and again here.
    warnings.simplefilter("ignore", ms_lossscale.LossScaleWarning)
    found = {"machine": machine(), "quick": arguments.quick}
    print(" ".join(f"{name} {value}" for name, value in found["machine"].items()))
    for title, (reference, also_quick, measure) in PARTS.items():
        if title not in (arguments.only or PARTS) or (arguments.quick and not also_quick):
            continue
        found[title] = {}
        for mode, value in MODES.items():
            ms.set_context(mode=value)
            found[title][mode] = measure(mode, arguments.quick)
        print(table(title, found[title], reference), flush=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
