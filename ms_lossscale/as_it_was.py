"""Runs something in PYNATIVE mode and leaves parameters, random state and mode as they were."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, context, nn, ops

from ms_lossscale._versions import BFLOAT16, assign_now, random_state, set_random_state

SEEDS = {"seed", "Seed0", "seed0"}


@contextlib.contextmanager
def as_it_was(cell: nn.Cell) -> Iterator[Callable[[], None]]:
    """Yield a function that sets the random state back to what it was; on leaving, everything is set back."""
    mode, kernel_state = context.get_context("mode"), random_state()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    operators = [(vars(inner), name, held) for _, inner in cell.cells_and_names() for name, held in vars(inner).items()
                 if isinstance(held, ops.Primitive) and SEEDS & held.attrs.keys()]
    saved = [(parameter, _host_copy(parameter)) for parameter in cell.get_parameters()]

    def reset_random():
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        set_random_state(kernel_state)
        for owner, name, held in operators:
            # A random operator draws on from where it was, and nothing sets it back; a copy starts anew.
            owner[name] = copy.deepcopy(held)

    try:
        context.set_context(mode=ms.PYNATIVE_MODE)
        yield reset_random
    finally:
        for parameter, before in saved:
            if _host_copy(parameter).tobytes() != before.tobytes():
                assign_now(parameter, Tensor(before).astype(parameter.dtype))
        reset_random()
        for owner, name, held in operators:
            owner[name] = held
        context.set_context(mode=mode)


def _host_copy(parameter: Parameter) -> np.ndarray:
    # NumPy has no bfloat16; widening is exact.
    return (parameter.astype(ms.float32) if parameter.dtype in BFLOAT16 else parameter).asnumpy().copy()
