"""
The compiled part, if this installation has one: fewer and faster operators for a graph on CPU, the same bits.

It is built from compiled.c when the package is installed on Linux and a C compiler is there.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import os
import warnings
from functools import cache
from pathlib import Path

import mindspore as ms
from mindspore import ops

# Set to 0, everything works without the compiled part.
SWITCH = "MS_LOSSSCALE_COMPILED"
REVISION = 1


class Operator(ops.Custom):
    """A compiled operator; it has no state, so copies of a cell share it. (MindSpore's cannot be copied.)"""

    def __deepcopy__(self, memo):
        return self


def operator(name: str, products: bool = False, writes: bool = False) -> Operator | None:
    """
    Return the operator `name` of compiled.c, for the device target CPU; None without a compiled part.

    Its last output is a flag, a bool of shape (1,).

    Args:
        name: The function.
        products: Whether an output like each input but the last comes before the flag.
        writes: Whether it writes into its inputs; MindSpore then orders it among what reads and writes them.
    """
    path = library()
    if path is None:
        return None
    if products:
        made = Operator(f"{path}:{name}", lambda *inputs: (*inputs[:-1], [1]),
                        lambda *inputs: (*inputs[:-1], ms.bool_), "aot")
    else:
        made = Operator(f"{path}:{name}", lambda *inputs: [1], lambda *inputs: ms.bool_, "aot")
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
