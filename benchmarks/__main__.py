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
from benchmarks import gradient_pass, memory, step_tax
from benchmarks.timing import ratios

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}


def machine():
    """Return what the numbers depend on."""
    return {"cores": os.cpu_count(), "architecture": platform.machine(), "python": platform.python_version(),
            "mindspore": ms.__version__, "numpy": np.__version__, "ms_lossscale": ms_lossscale.__version__}


def measure(quick):
    """Return {quantity: {mode: {case: {variant: number}}}}."""
    found = {"gradient pass": {}, "step": {}, "first call": {}, "memory": {}}
    for mode, value in MODES.items():
        ms.set_context(mode=value)
        found["gradient pass"][mode] = gradient_pass.measure(quick)
        found["step"][mode], found["first call"][mode] = step_tax.measure(quick)
        if not quick:
            found["memory"][mode] = {memory.WIDE: memory.measure(mode)}
    return found


REFERENCES = {"gradient pass": gradient_pass.REFERENCE, "step": step_tax.PLAIN, "first call": "MindSpore's"}


def report(found):
    """Return the numbers as tables: times as ratios to a reference, memory in MiB above the plain step."""
    lines = []
    for quantity, modes in found.items():
        if not any(modes.values()):
            continue
        reference = REFERENCES.get(quantity)
        lines.append(f"\n{quantity}, {f'over {reference!r}' if reference else 'MiB above the plain step'}")
        columns = {f"{mode}, {case}": ratios(values, reference) if reference else values
                   for mode, cases in modes.items() for case, values in cases.items()}
        for title, values in columns.items():
            lines.append(f"  {title}")
            lines += [f"    {name:<26}{value:>8.2f}" for name, value in values.items()]
            if reference:
                milliseconds = 1000 * modes[title.split(", ")[0]][title.split(", ", 1)[1]][reference]
                lines.append(f"    ({reference}: {milliseconds:.3g} ms)")
    return "\n".join(lines)


def main():
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small case of each, without memory, in seconds")
    parser.add_argument("--json", metavar="FILE", help="write the numbers, times in seconds")
    arguments = parser.parse_args()
    # The same gradients come again and again here.
    warnings.simplefilter("ignore", ms_lossscale.LossScaleWarning)
    found = measure(arguments.quick)
    print(" ".join(f"{name} {value}" for name, value in machine().items()))
    print(report(found))
    if arguments.json:
        text = json.dumps({"machine": machine(), "quick": arguments.quick, **found}, indent=1)
        Path(arguments.json).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
