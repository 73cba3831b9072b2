"""TensorFlow-style loss scales into managers, and managers into loss scales."""

from __future__ import annotations

import warnings

import numpy as np

from ms_lossscale._errors import LossScaleWarning, message
from ms_lossscale.convertible import CONVERSIONS
from ms_lossscale.dynamic_loss_scale import DynamicLossScale
from ms_lossscale.dynamic_manager import DynamicLossScaleManager
from ms_lossscale.get_loss_scale import get_loss_scale, loss_scale_from_config
from ms_lossscale.loss_scale import FixedLossScale, LossScale
from ms_lossscale.manager import FixedLossScaleManager, LossScaleManager
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, reciprocal


def manager_of(loss_scale: object) -> LossScaleManager | None:
    """Return a manager for what describes a loss scale."""
    if isinstance(loss_scale, dict) and "class_name" not in loss_scale:
        loss_scale = loss_scale_from_config(loss_scale)
    loss_scale = get_loss_scale(loss_scale)
    if loss_scale is None:
        return None
    if isinstance(loss_scale, FixedLossScale):
        return FixedLossScaleManager(loss_scale.get_config()["loss_scale_value"])
    if isinstance(loss_scale, DynamicLossScale):
        return _dynamic_manager_of(loss_scale)
    raise TypeError(message("from_loss_scale", "loss_scale", "a FixedLossScale or a DynamicLossScale", loss_scale))


def _dynamic_manager_of(loss_scale: DynamicLossScale) -> DynamicLossScaleManager:
    state = loss_scale.state_dict()
    scale = state["current_loss_scale"]
    manager = DynamicLossScaleManager(scale, loss_scale.multiplier, loss_scale.increment_period,
                                      min_loss_scale=min(scale, MIN_LOSS_SCALE))
    manager.load_state_dict({**manager.state_dict(), "cur_iter": state["num_good_steps"] + 1})
    return manager


def loss_scale_of(manager: LossScaleManager) -> LossScale:
    """Return a loss scale that goes on from the manager's state."""
    if not isinstance(manager, DynamicLossScaleManager):
        return FixedLossScale(_python_number(manager.get_loss_scale()))
    if np.float32(manager.decrease_ratio) != np.float32(reciprocal(manager.increase_ratio)):
        raise ValueError(message("to_loss_scale", "backoff_factor", "the reciprocal of the growth factor, "
                                 f"{manager.increase_ratio}", manager.decrease_ratio))
    _warn_of_loss(manager)
    state = manager.state_dict()
    scale = _python_number(state["loss_scale"])
    loss_scale = DynamicLossScale(scale, manager.scale_window, manager.increase_ratio)
    loss_scale.load_state_dict({"current_loss_scale": scale,
                                "num_good_steps": state["cur_iter"] - 1 - state["last_overflow_iter"]})
    return loss_scale


def _warn_of_loss(manager: DynamicLossScaleManager) -> None:
    kept = {"min_loss_scale": MIN_LOSS_SCALE, "max_loss_scale": MAX_LOSS_SCALE, "hysteresis": 0}
    lost = [f"'{name}'" for name, default in kept.items() if getattr(manager, name) != default]
    if lost:
        warnings.warn(f"A DynamicLossScale has no {', '.join(lost)}: its scale shrinks at every overflow, down to 1, "
                      "and grows to the largest float32.", LossScaleWarning, stacklevel=4)


def _python_number(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


CONVERSIONS.update(manager=manager_of, loss_scale=loss_scale_of)
