"""The peak memory of a process that trains, read by a process of its own for each step."""

import subprocess
import sys
from pathlib import Path

import mindspore as ms

from benchmarks.step_tax import NETWORKS, PLAIN, build
from benchmarks.timing import once

WIDE = "wide: 4 x 2048, batch 8"
MEASURED = (PLAIN, "ours", "MindSpore's")


def measure(mode):
    """Return {step: MiB above the plain step} of the wide network in `mode`, "graph" or "pynative"."""
    peaks = {step: _peak_of(step, mode) for step in MEASURED}
    return {step: round(peak - peaks[PLAIN], 1) for step, peak in peaks.items() if step != PLAIN}


def _peak_of(step, mode):
    command = [sys.executable, "-m", "benchmarks.memory", step, mode]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(step, mode):
    """
    Train 10 steps and print the peak in MiB.

    Linux counts it in KiB, from the start of the program: `ru_maxrss` would begin with the parent's peak.
    """
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    call = build(step, *NETWORKS[WIDE])
    for _ in range(10):
        once(call)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) / 1024)


if __name__ == "__main__":
    main(*sys.argv[1:])
