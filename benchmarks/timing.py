"""Times variants against each other: in turn, in an order drawn anew each round, medians."""

import statistics
import time

import numpy as np
from mindspore import Tensor
from mindspore.common.api import _pynative_executor


def wait(outputs):
    """Return when what was started is done; PYNATIVE mode runs on in the background."""
    _pynative_executor.sync()
    last = outputs
    while isinstance(last, (tuple, list)):
        last = last[-1]
    if isinstance(last, Tensor):
        last.asnumpy()


def once(call):
    """Return the seconds of one call."""
    start = time.perf_counter()
    wait(call())
    return time.perf_counter() - start


def medians(calls, rounds, repeats=1):
    """
    Return {name: median seconds of one call}.

    Args:
        calls (dict): A function by name; each ran once before.
        rounds (int): How often each is timed.
        repeats (int): The calls in one timing.
    """
    names, seconds = list(calls), {name: [] for name in calls}
    order = np.random.default_rng(0)
    for _ in range(rounds):
        # Not rotated: then each variant would always run after the same one, and pay for what that one left behind.
        for name in order.permutation(names):
            start = time.perf_counter()
            for _ in range(repeats):
                outputs = calls[name]()
            wait(outputs)
            seconds[name].append((time.perf_counter() - start) / repeats)
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratios(seconds, reference):
    """Return each time over that of `reference`."""
    return {name: float(np.round(value / seconds[reference], 3)) for name, value in seconds.items()}
