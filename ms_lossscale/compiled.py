"""
The compiled part, if this installation has one: fewer and faster operators for a graph on CPU, the same bits.

It is built from compiled.c when the package is installed on Linux and a C compiler is there.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import mindspore as ms
from mindspore import ops

# Set to 0, everything works without the compiled part.
SWITCH = "MS_LOSSSCALE_COMPILED"
REVISION = 2

Outputs = tuple[Callable, Callable]
# A bool of shape (1,).
FLAG = (lambda *shapes: [1], lambda *dtypes: ms.bool_)


class Operator(ops.Custom):
    """A compiled operator; it has no state, so copies of a cell share it. (MindSpore's cannot be copied.)"""

    def __deepcopy__(self, memo):
        return self


def operator(name: str, outputs: Outputs = FLAG, writes: bool = False) -> Operator | None:
    """
    Return the operator `name` of compiled.c, for the device target CPU; None without a compiled part.

    Args:
        name: The function.
        outputs: What gives the shapes and the dtypes of the outputs, from those of the inputs.
        writes: Whether it writes into its inputs; MindSpore then orders it among what reads and writes them.
    """
    path = library()
    if path is None:
        return None
    made = Operator(f"{path}:{name}", *outputs, "aot")
    if writes:
        made.add_prim_attr("side_effect_mem", True)
    return made


def library() -> str | None:
    """Return the path of the compiled part; None if there is none, or the environment switches it off."""
    return None if os.environ.get(SWITCH) == "0" else _usable(Path(__file__).parent)


@cache
def _usable(folder: Path) -> str | None:
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = folder / f"_compiled{suffix}"
        if path.exists():
            return str(path) if _works(path) else None
    return None


def _works(path):
    try:
        found = ctypes.CDLL(str(path)).revision()
    except (OSError, AttributeError) as error:
        found = error
    if found != REVISION:
        warnings.warn(f"The compiled part of ms_lossscale, {path}, is not used: {found}. Install the package anew, or "
                      f"set {SWITCH}=0.", RuntimeWarning, stacklevel=2)
    return found == REVISION
