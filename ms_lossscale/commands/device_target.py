"""A device target that a script cannot change: what ``run --device-target`` does."""

from __future__ import annotations

import functools
import sys
import types
import warnings

import mindspore as ms
from mindspore import context

from ms_lossscale import _versions
from ms_lossscale._errors import LossScaleWarning

TARGETS = ("CPU", "GPU", "Ascend")


def hold_device_target(target: str) -> None:
    """Set the device target, or let MindSpore raise; whatever is asked for later gives this one, with a warning."""
    ms.set_context(device_target=target)
    # set_context calls the method, then the entry of the table.
    settings = type(context._context())
    native = settings.set_device_target
    settings.set_device_target = _context_setter(native, target, speaks=True)
    settings.setters = {**settings.setters, "device_target": _context_setter(native, target, speaks=False)}
    if _versions.set_device is not None:
        _replace(_versions.set_device, _device_setter(_versions.set_device, target))


def _context_setter(native, held, speaks):
    def set_device_target(self, target):
        if speaks and target != held:
            # The script called set_context, which is wrapped once by MindSpore.
            _warn(target, held, stacklevel=5)
        native(self, held)

    return set_device_target


def _device_setter(native, held):
    @functools.wraps(native)
    def set_device(device_target, device_id=None):
        if device_target != held:
            _warn(device_target, held, stacklevel=3)
        return native(held, None if device_target != held else device_id)

    return set_device


def _warn(asked, held, stacklevel):
    warnings.warn(f"The script asks for the device target {asked}; --device-target {held} overrides it.",
                  LossScaleWarning, stacklevel=stacklevel)


def _replace(old, new):
    """Put `new` wherever a loaded module holds `old`."""
    for module in list(sys.modules.values()):
        if type(module) is types.ModuleType:
            for name in [name for name, value in vars(module).items() if value is old]:
                setattr(module, name, new)
