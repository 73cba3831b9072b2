"""Refusals to scale the loss on CPU that other packages carry, for MindSpore's sake: under ``run`` they do not hold."""

from __future__ import annotations

import functools
import sys
import types
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder

from mindspore import context

# The module that refuses, and what it asks mindspore.context for before it does: an answer that lets it go on.
ANSWERS = {"mindcv.utils.trainer_factory": {"enable_ge": True}}


def answer_refusals() -> None:
    """Let the modules above, once they are imported, see a context in which they do not refuse."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in ANSWERS:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = functools.partial(_execute, spec.loader.exec_module)
        return spec


def _execute(native, module):
    native(module)
    if getattr(module, "context", None) is context:
        module.context = _answering(ANSWERS[module.__name__])


def _answering(answers):
    """Return a copy of mindspore.context that has `answers`."""
    copy = types.ModuleType(context.__name__)
    vars(copy).update(vars(context))
    copy.get_context = lambda key: answers[key] if key in answers else context.get_context(key)
    return copy
