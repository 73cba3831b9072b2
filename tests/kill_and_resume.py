"""
Kills a training with SIGKILL again and again, resumes it each time, and compares it with one that ran through.

    python tests/kill_and_resume.py [--kills 100] [--mode graph|pynative] [--seed 0]

Every step's loss, flag and scale, and at the end every parameter, counter and the manager's state, must be the same bit
for bit, overflow steps included. Exit status 0 says so. A worker is a fork of a process that has imported MindSpore and
run nothing; it starts from the checkpoint alone.
"""

import argparse
import os
import random
import signal
import tempfile
import time
import traceback
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_lossscale import DynamicLossScaleManager, TrainOneStepWithLossScaleCell, load_checkpoint

SAVE_EVERY = 2  # so that a resumed training does some steps again
OVERFLOWS = 0.25


class Network(nn.Cell):
    """Two layers and their loss; a `factor` of infinity makes every gradient overflow."""

    def __init__(self):
        super().__init__()
        random_weights = np.random.default_rng(1)
        self.first = nn.Dense(6, 8, weight_init=Tensor(random_weights.normal(size=(8, 6)).astype(np.float32)))
        self.second = nn.Dense(8, 1, weight_init=Tensor(random_weights.normal(size=(1, 8)).astype(np.float32)))
        self.first.bias.set_data(Tensor(np.zeros(8, np.float32)))
        self.second.bias.set_data(Tensor(np.zeros(1, np.float32)))
        self.tanh = nn.Tanh()

    def construct(self, x, label, factor):
        return ((self.second(self.tanh(self.first(x))) - label) ** 2).mean() * factor


def batch(number):
    """The same batch for the same number, whoever asks."""
    draw = np.random.default_rng((7, number))
    x = draw.normal(size=(4, 6)).astype(np.float32)
    factor = np.float32(np.inf if draw.random() < OVERFLOWS else 1)
    return Tensor(x), Tensor(x[:, :1]), Tensor(factor)


def build():
    network = Network()
    rate = nn.ExponentialDecayLR(0.05, 0.9, 3, is_stair=True)
    optimizer = nn.Adam(network.trainable_params(), learning_rate=rate)
    manager = DynamicLossScaleManager(3.0**9, 3, 3, hysteresis=1, backoff_factor=0.7)
    step = TrainOneStepWithLossScaleCell(network, optimizer, manager.get_update_cell())
    manager.follow(step)
    return step, manager


def work(folder, steps):
    """Train to the end from the last checkpoint in `folder`, one line of the log a step."""
    step, manager = build()
    saved, unfinished = folder / "step.ckpt", folder / "unfinished.ckpt"
    if saved.exists():
        assert load_checkpoint(step, saved) == {}
    done = step.applied_steps.asnumpy().item() + step.skipped_steps.asnumpy().item()
    assert manager.cur_iter == done + 1
    with open(folder / "log", "ab", buffering=0) as log:
        for number in range(done, steps):
            loss, overflow, scale = (output.asnumpy() for output in step(*batch(number)))
            log.write(f"{number} {loss.tobytes().hex()} {overflow} {scale.tobytes().hex()}\n".encode())
            if (number + 1) % SAVE_EVERY == 0:
                ms.save_checkpoint(step, str(unfinished))
                os.replace(unfinished, saved)
    numbers = {parameter.name: parameter.asnumpy() for parameter in step.get_parameters()}
    numbers.update({f"manager.{name}": value for name, value in manager.state_dict().items()})
    np.savez(folder / "end.npz", **numbers)


def start(folder, steps, mode):
    """Fork a worker and return its process id."""
    child = os.fork()
    if child == 0:
        try:
            ms.set_context(mode=mode)
            work(folder, steps)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def lines(folder):
    """Return the log, without a line that a kill cut off."""
    path = folder / "log"
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def kill_at_random(folder, steps, mode, draw):
    """Start a worker, let it do a few steps, and kill it, at any point of a step or of a save."""
    child = start(folder, steps, mode)
    wanted = len(lines(folder)) + draw.randint(1, 4)
    while len(lines(folder)) < wanted:
        if os.waitpid(child, os.WNOHANG)[0]:
            raise SystemExit("a worker ended before it was killed: it failed, or --steps is too small")
        time.sleep(0.001)
    time.sleep(draw.random() * 0.004)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def finish(folder, steps, mode):
    _, status = os.waitpid(start(folder, steps, mode), 0)
    if status:
        raise SystemExit("a worker failed")
    return dict(np.load(folder / "end.npz"))


def check_same(whole, broken, ends):
    """Raise unless what the broken training did is what the whole one did."""
    expected = {line.split()[0]: line for line in lines(whole)}
    for line in lines(broken):
        assert line == expected[line.split()[0]], f"step {line} should be {expected[line.split()[0]]}"
    assert {line.split()[0] for line in lines(broken)} == set(expected)
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        assert value.tobytes() == ends[1][name].tobytes(), f"{name}: {value} should be {ends[1][name]}"


def prove(mode, kills, seed):
    draw, steps = random.Random(seed), 12 * kills
    with tempfile.TemporaryDirectory() as scratch:
        whole, broken = Path(scratch, "whole"), Path(scratch, "broken")
        whole.mkdir()
        broken.mkdir()
        os.chdir(scratch)  # MindSpore leaves files behind where it runs
        expected = finish(whole, steps, mode)
        for _ in range(kills):
            kill_at_random(broken, steps, mode, draw)
        check_same(whole, broken, (finish(broken, steps, mode), expected))
        again = len(lines(broken)) - steps
        os.chdir("/")
    print(f"{'GRAPH' if mode == ms.GRAPH_MODE else 'PYNATIVE'}: killed {kills} times in {steps} steps, "
          f"{again} of them done again; applied {expected['applied_steps']}, skipped {expected['skipped_steps']}, "
          f"scale {expected['scale_sense']}: bit for bit the same", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--mode", choices=("graph", "pynative"), help="one mode alone")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, mode in (("graph", ms.GRAPH_MODE), ("pynative", ms.PYNATIVE_MODE)):
        if options.mode in (None, name):
            prove(mode, options.kills, options.seed)


if __name__ == "__main__":
    main()
