"""patch(): let code that imports MindSpore's names get this package's, until it is undone."""

from __future__ import annotations

import importlib
import sys
import threading
import types
import warnings
from collections.abc import Iterable

import mindspore.nn.wrap.loss_scale as native_step_module
from mindspore import Model as NativeModel
from mindspore import amp, nn
from mindspore.train.amp import build_train_network as native_build_train_network

from ms_lossscale import dynamic_manager, dynamic_scaler, finite, manager, model, scaler, train_step, update_cell

NATIVE_STEP = nn.TrainOneStepWithLossScaleCell
STEP_MODULE = native_step_module.__name__

# What MindSpore exports, and what it becomes.
REPLACEMENTS = (
    (amp.LossScaleManager, manager.LossScaleManager),
    (amp.FixedLossScaleManager, manager.FixedLossScaleManager),
    (amp.DynamicLossScaleManager, dynamic_manager.DynamicLossScaleManager),
    (nn.FixedLossScaleUpdateCell, update_cell.FixedLossScaleUpdateCell),
    (nn.DynamicLossScaleUpdateCell, update_cell.DynamicLossScaleUpdateCell),
    (NATIVE_STEP, train_step.TrainOneStepWithLossScaleCell),
    (NativeModel, model.Model),
    (native_build_train_network, model.build_train_network),
    (amp.LossScaler, scaler.LossScaler),
    (amp.StaticLossScaler, scaler.StaticLossScaler),
    (amp.DynamicLossScaler, dynamic_scaler.DynamicLossScaler),
    (amp.all_finite, finite.all_finite),
)


class patch:
    """
    Redirect MindSpore's loss-scale names to this package, for code whose imports cannot be changed.

    As a call it holds until `undo`; as a context manager until the block ends. Calls nest: the last to end restores
    MindSpore's names. Every module attribute that is bound to one of MindSpore's names is redirected, and so are
    imports made meanwhile: Model, build_train_network, the three managers, the two update cells, the step, the three
    functional scalers and all_finite. A class that was derived from MindSpore's step before stays what it is, and a
    warning names it. What a module of yours imported meanwhile, it keeps. The redirection holds for all threads.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore
        >>> import ms_lossscale
        >>> with ms_lossscale.patch():
        ...     print(mindspore.amp.FixedLossScaleManager is ms_lossscale.FixedLossScaleManager)
        True
        >>> print(mindspore.amp.FixedLossScaleManager is ms_lossscale.FixedLossScaleManager)
        False
    """

    def __init__(self) -> None:
        self._active = False
        self._begin()

    def undo(self) -> None:
        """End this redirection; a second call does nothing."""
        with _lock:
            if self._active:
                self._active = False
                _redirection.leave()

    def __enter__(self) -> patch:
        self._begin()
        return self

    def __exit__(self, *exc_info) -> None:
        self.undo()

    def _begin(self) -> None:
        with _lock:
            if not self._active:
                _redirection.enter()
                self._active = True


class _Redirection:
    """The one redirection of this process, counted."""

    def __init__(self) -> None:
        self._depth = 0
        self._changes: list[tuple[dict, str, object, object]] = []

    def enter(self) -> None:
        if self._depth == 0:
            _warn_of_subclasses()
            self._redirect()
        self._depth += 1

    def leave(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._restore()

    def _redirect(self) -> None:
        # It derives a class from Model: first imported meanwhile, it would derive from ours for good.
        importlib.import_module("mindspore.train.train_thor.model_thor")
        self._loaded = set(sys.modules)
        self._pairs = (*REPLACEMENTS, (native_step_module, _stand_in(native_step_module)))
        sys.modules[STEP_MODULE] = self._pairs[-1][1]
        for _, namespace in _namespaces():
            self._changes += _swap(namespace, self._pairs)

    def _restore(self) -> None:
        sys.modules[STEP_MODULE] = native_step_module
        for namespace, name, native, our in self._changes:
            if namespace.get(name) is our:
                namespace[name] = native
        self._changes.clear()
        # Parts of MindSpore that were first imported meanwhile took our names.
        for module, namespace in _namespaces():
            if module not in self._loaded and _top(module) == "mindspore":
                _swap(namespace, [(our, native) for native, our in self._pairs])


_lock = threading.RLock()
_redirection = _Redirection()


def _swap(namespace: dict, pairs: Iterable[tuple[object, object]]) -> list[tuple[dict, str, object, object]]:
    """Put the second of a pair wherever `namespace` holds the first; return the changes."""
    swaps = {id(old): (old, new) for old, new in pairs}
    changes = [(namespace, name, *swaps[id(value)]) for name, value in list(namespace.items()) if id(value) in swaps]
    namespace.update((name, new) for _, name, _, new in changes)
    return changes


def _namespaces() -> list[tuple[str, dict]]:
    """Return the loaded modules whose names may be redirected, and their names: all but this package's."""
    # A module with a __getattribute__ or __dict__ of its own may be a lazy one: do not wake it.
    namespace = vars(types.ModuleType)["__dict__"].__get__
    return [(name, namespace(module) or {}) for name, module in list(sys.modules.items())
            if issubclass(type(module), types.ModuleType) and _top(name) != _top(__name__)
            and module is not native_step_module]


def _top(module: str) -> str:
    return module.partition(".")[0]


def _stand_in(native: types.ModuleType) -> types.ModuleType:
    """
    Return a copy of the module that defines the cells, with our names in it.

    The module itself keeps its names: in some versions it says ``super(FixedLossScaleUpdateCell, self)``. The copy
    is complete because graph mode looks the globals of a function up in the module that an import gives.
    """
    module = types.ModuleType(native.__name__)
    vars(module).update(vars(native))
    _swap(vars(module), REPLACEMENTS)
    return module


def _warn_of_subclasses() -> None:
    found, pending = [], NATIVE_STEP.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if _top(cls.__module__) not in ("mindspore", _top(__name__)):
            found.append(f"{cls.__module__}.{cls.__qualname__}")
    if found:
        warnings.warn(f"Derived from MindSpore's TrainOneStepWithLossScaleCell before patch(), so not redirected: "
                      f"{', '.join(sorted(set(found)))}. Call patch() before the import.", RuntimeWarning, stacklevel=5)
