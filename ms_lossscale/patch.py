"""patch(): let code that imports MindSpore's names get this package's, until it is undone."""

from __future__ import annotations

import sys
import threading
import types
import warnings

import mindspore.nn.wrap.loss_scale as native_step_module
from mindspore import Model as NativeModel
from mindspore import amp, nn
from mindspore.train.amp import build_train_network as native_build_train_network

from ms_lossscale import manager, model, train_step, update_cell

NATIVE_STEP = nn.TrainOneStepWithLossScaleCell

# What MindSpore exports, and what it becomes.
REPLACEMENTS = (
    (amp.LossScaleManager, manager.LossScaleManager),
    (amp.FixedLossScaleManager, manager.FixedLossScaleManager),
    (amp.DynamicLossScaleManager, manager.DynamicLossScaleManager),
    (nn.FixedLossScaleUpdateCell, update_cell.FixedLossScaleUpdateCell),
    (nn.DynamicLossScaleUpdateCell, update_cell.DynamicLossScaleUpdateCell),
    (NATIVE_STEP, train_step.TrainOneStepWithLossScaleCell),
    (NativeModel, model.Model),
    (native_build_train_network, model.build_train_network),
)


class patch:
    """
    Redirect MindSpore's loss-scale names to this package, for code whose imports cannot be changed.

    As a call it holds until `undo`; as a context manager until the block ends. Calls nest: the last to end restores
    MindSpore's names. Every module attribute that is bound to one of MindSpore's names is redirected, and so are
    imports made meanwhile: Model, build_train_network, the three managers, the two update cells and the step.
    A class that was derived from MindSpore's step before stays what it is, and a warning names it.

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
        self._active = True
        _redirect.enter()

    def undo(self) -> None:
        """End this redirection; a second call does nothing."""
        if self._active:
            self._active = False
            _redirect.leave()

    def __enter__(self) -> patch:
        return self

    def __exit__(self, *exc_info) -> None:
        self.undo()


class _Redirection:
    """The one redirection of this process, counted."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._changed: list[tuple[types.ModuleType, str, object, object]] = []

    def enter(self) -> None:
        with self._lock:
            if self._depth == 0:
                self._redirect()
            self._depth += 1

    def leave(self) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth == 0:
                self._restore()

    def _redirect(self) -> None:
        # The module that defines the cells says `super(FixedLossScaleUpdateCell, self)` in some versions, so its own
        # names must stay; who imports from it meanwhile gets a stand-in.
        stand_in = _stand_in(native_step_module)
        ours = {id(native): (native, our) for native, our in (*REPLACEMENTS, (native_step_module, stand_in))}
        for module in _other_modules():
            for name, value in list(vars(module).items()):
                if id(value) in ours:
                    self._set(module, name, *ours[id(value)])
        sys.modules[native_step_module.__name__] = stand_in
        _warn_of_subclasses()

    def _set(self, module: types.ModuleType, name: str, native: object, our: object) -> None:
        setattr(module, name, our)
        self._changed.append((module, name, native, our))

    def _restore(self) -> None:
        sys.modules[native_step_module.__name__] = native_step_module
        for module, name, native, our in self._changed:
            if vars(module).get(name) is our:
                setattr(module, name, native)
        self._changed.clear()
        # Parts of MindSpore that were first imported meanwhile took our names.
        natives = {id(our): native for native, our in REPLACEMENTS}
        for module in _other_modules():
            if module.__name__.split(".")[0] == "mindspore":
                for name, value in list(vars(module).items()):
                    if id(value) in natives:
                        setattr(module, name, natives[id(value)])


_redirect = _Redirection()


def _other_modules() -> list[types.ModuleType]:
    """Return the loaded modules whose names may be redirected: all but this package's and the cells' own."""
    package = __name__.split(".")[0]
    return [module for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType) and name.split(".")[0] != package
            and module is not native_step_module]


def _stand_in(native: types.ModuleType) -> types.ModuleType:
    """Return a module that offers our names, and the native module's for the rest."""
    module = types.ModuleType(native.__name__, native.__doc__)
    module.__spec__, module.__file__ = native.__spec__, native.__file__
    module.__getattr__ = lambda name: getattr(native, name)
    for value, our in REPLACEMENTS:
        if hasattr(native, value.__name__):
            setattr(module, value.__name__, our)
    return module


def _warn_of_subclasses() -> None:
    found, pending = [], NATIVE_STEP.__subclasses__()
    while pending:
        cls = pending.pop()
        pending += cls.__subclasses__()
        if cls.__module__.split(".")[0] not in ("mindspore", __name__.split(".")[0]):
            found.append(f"{cls.__module__}.{cls.__qualname__}")
    if found:
        warnings.warn(f"Derived from MindSpore's TrainOneStepWithLossScaleCell before patch(), so not redirected: "
                      f"{', '.join(sorted(set(found)))}. Call patch() before the import.", RuntimeWarning, stacklevel=5)
