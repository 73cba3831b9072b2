"""load_checkpoint: resume a step, say what the checkpoint did not hold, and change nothing if it does not fit."""

from __future__ import annotations

import math
import warnings
from os import PathLike, fspath

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_lossscale._errors import SMALLEST_SCALE, CheckpointWarning, message
from ms_lossscale.rule import MAX_LOSS_SCALE
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell

STATE_ATTRIBUTES = {
    TrainOneStepWithLossScaleCell: ("scale_sense", "applied_steps", "skipped_steps", "consecutive_overflows"),
    DynamicLossScaleUpdateCell: ("cur_iter", "last_overflow_iter", "tolerated_overflows"),
}


def load_checkpoint(step: nn.Cell, path: str | PathLike) -> dict[str, float]:
    """
    Load what :func:`mindspore.save_checkpoint` or ModelCheckpoint wrote into a training step.

    A checkpoint of MindSpore's own step, or of an older version of this package, lacks some of the loss-scale state:
    it is taken for granted as the step holds it now. A scale that no step can use, such as the infinity that
    MindSpore's rule can reach, is replaced by the nearest bound. Either is returned, and said in one
    :class:`CheckpointWarning`. Anything else that is missing or of another shape is an error.

    Args:
        step (Cell): A :class:`TrainOneStepWithLossScaleCell`, or a Cell that holds some.
        path (str): The checkpoint file.

    Returns:
        dict, of the parameter names that were not loaded as they were, and the numbers assumed for them.

    Raises:
        TypeError: If `step` is not a Cell that is or holds a TrainOneStepWithLossScaleCell.
        ValueError: If the checkpoint lacks a parameter other than loss-scale state, or holds one of another shape.
            Nothing is loaded then.

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
    own = {parameter.name: parameter for parameter in step.get_parameters()}
    saved = ms.load_checkpoint(fspath(path))
    _check_fits(own, saved, state)
    assumed = {name: own[name].asnumpy().item() for name in state if name not in saved}
    for name, (least, most) in state.items():
        if name in saved and least is not None:
            value = saved[name].asnumpy().item()
            usable = _usable(value, least, most, own[name].asnumpy().item())
            if usable != value:
                assumed[name] = usable
            saved[name] = Parameter(Tensor(np.full(own[name].shape, usable, np.float32)), name=name)
    ms.load_param_into_net(step, {name: saved[name] for name in own if name in saved})
    if assumed:
        warnings.warn(f"The checkpoint {fspath(path)!r} did not hold the whole loss-scale state; assumed: "
                      + ", ".join(f"{name} = {value:g}" for name, value in assumed.items()) + ".",
                      CheckpointWarning, stacklevel=2)
    return assumed


def _loss_scale_state(step):
    """Return the names of the loss-scale parameters in `step`; with each scale its bounds, with a counter None."""
    state = {}
    cells = [cell for _, cell in step.cells_and_names()] if isinstance(step, nn.Cell) else []
    for cell in cells:
        for kind, attributes in STATE_ATTRIBUTES.items():
            if isinstance(cell, kind):
                names = [getattr(cell, attribute).name for attribute in attributes if hasattr(cell, attribute)]
                state.update(dict.fromkeys(names, (None, None)))
        if isinstance(cell, TrainOneStepWithLossScaleCell):
            state[cell.scale_sense.name] = _bounds(cell.loss_scaling_manager)
    if not state:
        raise TypeError(message("load_checkpoint", "step", "a Cell that is or holds a TrainOneStepWithLossScaleCell",
                                step))
    return state


def _bounds(update_cell):
    if isinstance(update_cell, DynamicLossScaleUpdateCell):
        return update_cell.minimum_loss_scale.asnumpy().item(), update_cell.maximum_loss_scale.asnumpy().item()
    return SMALLEST_SCALE, MAX_LOSS_SCALE


def _usable(value, least, most, present):
    return min(max(value, least), most) if value > 0 and not math.isnan(value) else present


def _check_fits(own, saved, state):
    missing = [name for name in own if name not in saved and name not in state]
    if missing:
        raise ValueError(message("load_checkpoint", "path", "a checkpoint of this step", sorted(saved),
                                 f"It lacks {', '.join(sorted(missing)[:5])}{' ...' if len(missing) > 5 else ''}."))
    for name, parameter in own.items():
        if name in saved and name not in state and saved[name].shape != parameter.shape:
            raise ValueError(message("load_checkpoint", "path", f"a checkpoint with '{name}' of shape "
                                     f"{parameter.shape}", saved[name].shape))
