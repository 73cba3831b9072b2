"""What goes wrong without a word: found when a step or a Model is built, and said with the remedy."""

from __future__ import annotations

import gc
import inspect
import os
import sys
import warnings
import weakref
from collections.abc import Iterable

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_lossscale import _versions
from ms_lossscale._errors import (
    NoLossScaleWarning,
    OptimizerScaleWarning,
    ScaleMismatchWarning,
    SharedParametersWarning,
    UncheckedUpdateWarning,
)

# The state of this package's step and update cells and of MindSpore's; each Parameter holds one number.
STATE_NAMES = {"scale_sense", "applied_steps", "skipped_steps", "consecutive_overflows", "current_iterator_step",
               "last_overflow_iterator_step", "last_outcome"}
# As the file names of code begin: a Path would turn the slashes of Windows.
LIBRARIES = tuple(os.path.dirname(module.__file__) + os.sep for module in (ms, sys.modules["ms_lossscale"]))

# Live steps in the order they were built, and the scale of each then; None if it scales nothing.
_scales: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_said = set()
# Networks of which it was told that something in them is float16: their loss is not told of, too.
_told: weakref.WeakSet = weakref.WeakSet()


def check_step(step: nn.Cell) -> None:
    """Raise ValueError or warn if `step`, just built, trains what it should not, or divides twice."""
    who, scale = type(step).__name__, _number(step.scale_sense)
    check_parameters(who, step.optimizer)
    if scale == 1 and step.loss_scaling_manager is None:
        _scales[step] = None
        return
    own = getattr(step.optimizer, "loss_scale", None)
    if _is_number(own) and own != 1 and _unscales(step):
        _warn(f"For '{who}', the step divides the gradients by the loss scale, and so does the optimizer: its own "
              f"'loss_scale' is {own:g}, so every update is too small by that. Leave it at 1.0.",
              OptimizerScaleWarning)
    if _rival(step, scale):
        gc.collect()  # a step that nothing refers to any more trains nothing
        rival = _rival(step, scale)
        if rival:
            _warn(f"For '{who}', {rival} Train a network by one step, or give both steps one update cell. If the older "
                  "one is not called any more, all is well.", SharedParametersWarning)
    _scales[step] = scale


def check_parameters(who: str, optimizer: nn.Cell) -> None:
    """Raise ValueError if `optimizer` trains the state of a step or of an optimizer."""
    state = {id(parameter) for step in list(_scales) for parameter in _state(step)}
    for parameter in optimizer.parameters:
        if id(parameter) in state or _is_named_state(parameter):
            raise ValueError(f"For '{who}', 'optimizer' must train parameters of the network, but got "
                             f"'{parameter.name}', which belongs to a training step. Build it over "
                             "network.trainable_params(), not over the parameters of a step.")


def check_unscaled(who: str, optimizer: nn.Cell, network: nn.Cell, level: str = "O0") -> None:
    """Warn if something is trained in float16 though nothing scales the loss."""
    check_parameters(who, optimizer)
    what = f"amp level {level}" if level in ("O1", "auto") else _in_float16(optimizer.parameters, network)
    if what:
        _warn_of_float16(who, what, optimizer, network)


def check_unscaled_loss(who: str, optimizer: nn.Cell, network: nn.Cell, outputs: object) -> None:
    """The same of what the first call returned, unless it was said of the network already."""
    loss = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    if isinstance(loss, Tensor) and loss.dtype == ms.float16:
        _warn_of_float16(who, "the loss", optimizer, network)


def check_constant(who: str, optimizer: nn.Cell, scale: float) -> None:
    """Warn of a manager that drops no update: always once, and if the optimizer does not divide by `scale`."""
    check_parameters(who, optimizer)
    own = getattr(optimizer, "loss_scale", None)
    if _is_number(own) and np.float32(own) != np.float32(scale):
        _warn(f"For '{who}', the loss is multiplied by {scale:g}, but the optimizer divides the gradients by its own "
              f"'loss_scale', {own:g}, and nothing else does. Give the optimizer loss_scale={scale:g}, or the manager "
              "drop_overflow_update=True.", ScaleMismatchWarning)
    if UncheckedUpdateWarning not in _said:
        _said.add(UncheckedUpdateWarning)
        _warn(f"For '{who}', nothing checks the gradients: with drop_overflow_update=False, or a manager without an "
              "update cell, NaN and Inf go into the parameters. Use drop_overflow_update=True.",
              UncheckedUpdateWarning)


def _warn_of_float16(who, what, optimizer, network):
    own = getattr(optimizer, "loss_scale", 1)
    if network in _told or (_is_number(own) and own != 1):  # the latter is a loss scaled by hand
        return
    _told.add(network)
    by_manager = who in ("Model", "build_train_network")
    remedy = "Pass loss_scale_manager=DynamicLossScaleManager()" if by_manager else "Give it a 'scale_sense'"
    _warn(f"For '{who}', {what} is float16 and nothing scales the loss, so small gradients become 0. {remedy}.",
          NoLossScaleWarning)


def _rival(step, scale):
    """Return what an older step trains of the parameters of `step`, with another scale, for people to read."""
    mine = {id(parameter) for parameter in step.optimizer.parameters}
    cell = step.loss_scaling_manager
    for other, first in reversed(list(_scales.items())):
        shared = [parameter.name for parameter in _trained(other) if id(parameter) in mine]
        one_cell = cell is not None and other.loss_scaling_manager is cell
        if shared and first is not None and not one_cell and scale not in (first, _number(other.scale_sense)):
            return (f"'{shared[0]}' and what else its optimizer trains is trained by an older step with another loss "
                    f"scale, too: {scale:g}, and {first:g} there.")
    return ""


def _state(step: nn.Cell) -> Iterable[Parameter]:
    """Return the state of the optimizer of `step`: a subclass may hold networks of its own."""
    trained = {id(parameter) for parameter in _trained(step)}
    everything = step.optimizer.get_parameters() if trained else ()
    return [parameter for parameter in everything if id(parameter) not in trained]


def _trained(step: nn.Cell) -> Iterable[Parameter]:
    """Return what `step` trains; a subclass may have put anything into its place."""
    return getattr(step.optimizer, "parameters", ()) if isinstance(step.optimizer, nn.Cell) else ()


def _is_named_state(parameter):
    return parameter.name.rpartition(".")[2] in STATE_NAMES and parameter.size == 1


def _number(scale):
    return scale.asnumpy().item() if isinstance(scale, Tensor) and scale.size == 1 else None


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unscales(step):
    """Whether `construct` is known to divide: it names a way to, as this package's do."""
    names = getattr(getattr(inspect.unwrap(type(step).construct), "__code__", None), "co_names", ())
    return any("unscale" in name or "grad_scale" in name for name in names)


def _in_float16(trained, network):
    """Return what is computed in float16, for people to read; "" if nothing that has trained parameters is."""
    for parameter in trained:
        if parameter.dtype == ms.float16:
            return f"the parameter '{parameter.name}'"
    trained = {id(parameter) for parameter in trained}
    for name, cell in network.cells_and_names():
        own = (parameter for _, parameter in cell.parameters_and_names(expand=False))
        if _versions.computes_in_float16(cell) and any(id(parameter) in trained for parameter in own):
            return f"the layer '{name}'" if name else "the network"
    return ""


def _warn(text, category):
    """Warn at the line outside of this package and MindSpore that led here."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
