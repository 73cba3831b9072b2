"""load_checkpoint: resume a step, say what the checkpoint did not hold, and change nothing if it does not fit."""

from __future__ import annotations

import math
import warnings
from os import PathLike, fspath

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_lossscale._errors import INT32_MAX, SMALLEST_SCALE, CheckpointWarning, message
from ms_lossscale._versions import assign_now
from ms_lossscale.rule import MAX_LOSS_SCALE
from ms_lossscale.train_options import TrainStep
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell

COUNTERS = {
    TrainOneStepWithLossScaleCell: ("applied_steps", "skipped_steps", "consecutive_overflows"),
    DynamicLossScaleUpdateCell: ("cur_iter", "last_overflow_iter", "tolerated_overflows"),
}


def load_checkpoint(step: nn.Cell, path: str | PathLike) -> dict[str, float]:
    """
    Load what :func:`mindspore.save_checkpoint` or ModelCheckpoint wrote into a training step.

    A checkpoint of MindSpore's own step, or of an older version of this package, lacks some of the loss-scale state:
    what the step holds now is kept in its place. What the options of :class:`TrainStep` keep starts fresh if the
    checkpoint lacks it: an accumulation window at its first micro-step. A scale that no step can use, such as the
    infinity that MindSpore's rule can reach, is replaced by the nearest bound; a counter that is no count of steps by
    what the step holds now. All this is returned, and said in one :class:`CheckpointWarning`. Anything else that is
    missing or of another shape is an error.

    Args:
        step (Cell): A :class:`TrainOneStepWithLossScaleCell`, or a Cell that holds some.
        path (str): The checkpoint file.

    Returns:
        dict, of the parameter names that were not loaded as they were, and the numbers assumed for them.

    Raises:
        TypeError: If `step` is not a Cell that is or holds a TrainOneStepWithLossScaleCell, or `path` no path.
        ValueError: If the checkpoint lacks a parameter other than loss-scale state, or holds one of another shape
            or dtype. Nothing is loaded then.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import TrainOneStepWithLossScaleCell, load_checkpoint
        >>> network = nn.Dense(4, 2)
        >>> optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        >>> step = TrainOneStepWithLossScaleCell(network, optimizer, Tensor(1024.0))
        >>> ms.save_checkpoint(step, "step.ckpt")
        >>> step.set_sense_scale(Tensor(1.0))
        >>> print(load_checkpoint(step, "step.ckpt"), step.get_loss_scale())
        {} 1024.0
    """
    state = _loss_scale_state(step)
    if not isinstance(path, (str, PathLike)):
        raise TypeError(message("load_checkpoint", "path", "a str or a path", path))
    own = _parameters_by_name(step)
    saved = ms.load_checkpoint(fspath(path))
    fresh = _start_fresh(step, own, saved)
    _check_complete(own, saved, state)
    for name, parameter in own.items():
        if name in saved:
            _check_fits(name, parameter, saved[name], name in state)
    numbers, assumed = _usable_numbers(step, own, saved, state)
    assumed.update(fresh)
    for name, number in numbers.items():
        saved[name] = Parameter(Tensor(np.full(own[name].shape, number), own[name].dtype), name=name)
    for name, parameter in own.items():
        assign_now(parameter, saved[name].astype(parameter.dtype))
    if assumed:
        warnings.warn(f"The checkpoint {fspath(path)!r} did not hold the whole loss-scale state; assumed: "
                      + ", ".join(f"{name} = {value:g}" for name, value in assumed.items()) + ".",
                      CheckpointWarning, stacklevel=2)
    return assumed


def _usable_numbers(step, own, saved, state):
    """Return the numbers of the loss-scale state to go on from, and those of them that the checkpoint did not hold."""
    found = {name: _number(saved[name]) for name in state if name in saved}
    numbers = {}
    for name, bounds in state.items():
        present = own[name].asnumpy().item()
        numbers[name] = _usable(found.get(name, present), present, bounds)
    for cell in _cells(step):
        if isinstance(cell, DynamicLossScaleUpdateCell):
            last, current = (getattr(counter, "name", None) for counter in (cell.last_overflow_iter, cell.cur_iter))
            if last in numbers and current in numbers:  # else the user has put something else there
                # A negative count of clean steps would keep the scale from growing for as many steps.
                numbers[last] = min(numbers[last], max(numbers[current] - 1, 0))
    return numbers, {name: number for name, number in numbers.items() if number != found.get(name)}


def _start_fresh(step, own, saved):
    """Add to `saved` what it lacks of the options' state; return the numbers of it, without the copies of buffers."""
    assumed = {}
    for cell in _cells(step):
        for group in _state_of_options(cell) if isinstance(cell, TrainStep) else ():
            for name, copied in group.items() if not set(group) <= set(saved) else ():
                if copied is None:
                    saved[name] = Parameter(Tensor(np.zeros(own[name].shape), own[name].dtype), name=name)
                    assumed.update({name: 0} if own[name].shape == () else {})
                elif copied.name in saved:
                    saved[name] = saved[copied.name]
    return assumed


def _state_of_options(step):
    """
    Return groups of what the options of a step keep: {name: the Parameter it is a copy of, or None if it starts at 0}.

    A group is of use only as a whole.
    """
    window = {}
    if step.accumulates:
        numbers = (step.accumulate.micro_step, step.accumulate.kept_micro_steps, *step.accumulate.accumulated)
        window.update({number.name: None for number in numbers})
    for name in ("restore", "restore_micro_step"):
        restore = getattr(step, name, None)
        if restore is not None:
            window.update({copy.name: buffer for copy, buffer in zip(restore.kept, restore.buffers)})
    alone = [step.last_outcome, *([step.clip_by_norm.global_norm] if step.clips_norm else [])]
    return [window, *({number.name: None} for number in alone)]


def _cells(step):
    return [cell for _, cell in step.cells_and_names()] if isinstance(step, nn.Cell) else []


def _loss_scale_state(step):
    """Return the names of the loss-scale parameters in `step`: of a scale its bounds, of a counter None."""
    state = {}
    for cell in _cells(step):
        for kind, attributes in COUNTERS.items():
            found = [getattr(cell, attribute, None) for attribute in attributes if isinstance(cell, kind)]
            state.update({parameter.name: None for parameter in found if isinstance(parameter, Parameter)})
        if isinstance(cell, TrainOneStepWithLossScaleCell) and isinstance(cell.scale_sense, Parameter):
            state[cell.scale_sense.name] = _bounds(cell)
    if not state:
        raise TypeError(message("load_checkpoint", "step", "a Cell that is or holds a TrainOneStepWithLossScaleCell",
                                step))
    return state


def _bounds(step):
    update_cell = step.loss_scaling_manager
    if isinstance(step, TrainStep) and not step.scaling:
        return 1, 1
    if isinstance(update_cell, DynamicLossScaleUpdateCell):
        return update_cell.minimum_loss_scale.asnumpy().item(), update_cell.maximum_loss_scale.asnumpy().item()
    return SMALLEST_SCALE, MAX_LOSS_SCALE


def _usable(value, present, bounds):
    if bounds is None:
        return value if 0 <= value <= INT32_MAX else present
    least, most = bounds
    return min(max(value, least), most) if value > 0 else present  # NaN is not above 0


def _parameters_by_name(step):
    own = {}
    for parameter in step.get_parameters():
        if own.setdefault(parameter.name, parameter) is not parameter:
            raise ValueError(f"For 'load_checkpoint', 'step' holds two parameters of the name {parameter.name!r}, of "
                             "which a checkpoint keeps one. Hold the cells as attributes with auto_prefix=True.")
    return own


def _check_complete(own, saved, state):
    missing = sorted(name for name in own if name not in saved and name not in state)
    if missing:
        raise ValueError(message("load_checkpoint", "path", "a checkpoint of this step", sorted(saved),
                                 f"It lacks {', '.join(missing[:5])}{' ...' if len(missing) > 5 else ''}."))


def _check_fits(name, own, saved, is_state):
    convertible = saved.dtype == own.dtype or (saved.is_floating_point() and own.is_floating_point())
    if not (is_state and math.prod(saved.shape) == 1) and not (saved.shape == own.shape and convertible):
        raise ValueError(f"For 'load_checkpoint', 'path' must be a checkpoint with {name!r} of shape {own.shape} and "
                         f"dtype {own.dtype}, but got shape {saved.shape} and dtype {saved.dtype}.")


def _number(saved):
    """Return the one element of `saved`; NumPy knows no bfloat16."""
    return (saved.astype(ms.float32) if saved.is_floating_point() else saved).asnumpy().item()
