"""Processes that a script spawns import it anew: the redirection must be there before."""

from __future__ import annotations

import functools
import multiprocessing.spawn
from typing import Callable


class _Begin:
    """What calls `begin` where it is unpickled."""

    def __init__(self, begin: Callable, *arguments: object) -> None:
        self._call = begin, arguments

    def __reduce__(self) -> tuple:
        return self._call


def begin_in_workers(begin: Callable, *arguments: object) -> None:
    """Let every process that multiprocessing spawns call ``begin(*arguments)`` before it imports the main module."""
    native = multiprocessing.spawn.get_preparation_data

    @functools.wraps(native)
    def get_preparation_data(name):
        # A key that multiprocessing does not look at; unpickled with the others, before they are used.
        return {**native(name), "ms_lossscale": _Begin(begin, *arguments)}

    multiprocessing.spawn.get_preparation_data = get_preparation_data
