"""The step of two data-parallel ranks on this machine, with the reduction of the flag and without it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.communication import get_rank, init

import ms_lossscale
from benchmarks.step_tax import NETWORKS, PLAIN, STEPS, TINY, build, our_step
from benchmarks.timing import medians, once

MSRUN = Path(sys.executable).with_name("msrun")


class NoFlagReduction(ms_lossscale.TrainOneStepWithLossScaleCell):
    """A step whose ranks do not tell each other of an overflow; right only where gradients are reduced first."""

    def __init__(self, network, optimizer, scale_sense):
        super().__init__(network, optimizer, scale_sense)
        self.detector.distributed = False


STEPS_OF_RANKS = {PLAIN: nn.TrainOneStepCell, "ours": our_step,
                  "ours, flag not reduced": lambda *parts: our_step(*parts, NoFlagReduction)}


def measure(mode):
    """Return {step: seconds} of the tiny network in `mode`; empty where there is no msrun (MindSpore 2.0.0)."""
    if not MSRUN.exists():
        return {}
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        written = Path(folder, "seconds.json")
        command = [MSRUN, "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True",
                   f"--log_dir={folder}", __file__, mode, written]
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent),
                   "PATH": os.pathsep.join([str(MSRUN.parent), os.environ["PATH"]])}
        subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=600, env=environ)
        return json.loads(written.read_text(encoding="utf-8"))


def main(mode, written):
    """One rank of the job; the first writes what it measured."""
    ms.set_context(device_target="CPU", mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=2)
    STEPS.update(STEPS_OF_RANKS)
    calls = {step: build(step, *NETWORKS[TINY]) for step in STEPS_OF_RANKS}
    for call in calls.values():
        for _ in range(3):
            once(call)
    # The order is drawn from one seed: both ranks run the same step at the same time.
    seconds = medians(calls, rounds=18, repeats=3)
    if get_rank() == 0:
        Path(written).write_text(json.dumps(seconds), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
