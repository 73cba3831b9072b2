"""The manager of a dynamic loss scale: MindSpore's documented API over the rule, on the host or in a step."""

from __future__ import annotations

from dataclasses import asdict, fields

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_lossscale._errors import check_flag, check_int, check_state_names, message
from ms_lossscale.manager import LossScaleManager
from ms_lossscale.manager_state import DeviceState, snapshot
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, ScaleRule, ScaleState, check_inside, make_rule, reciprocal
from ms_lossscale.stuck import MAX_CONSECUTIVE_OVERFLOWS, StuckGuard
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell
from ms_lossscale.watch import check_watch_options


def _state_attribute(name: str) -> property:
    return property(lambda self: getattr(self._state, name), lambda self, value: setattr(self._state, name, value))


class DynamicLossScaleManager(LossScaleManager):
    """
    Manager of a loss scale that falls at every overflow and grows after a run of clean steps.

    Driven by hand with `update_loss_scale` it owns its state. In :class:`Model` the training step owns it: every
    number here is then read from the step. Both follow the rule of :class:`DynamicLossScaleUpdateCell`, in float32.

    Args:
        init_loss_scale (float, optional): The scale to start from, inside the bounds. Default: ``2**24`` .
        scale_factor (float, optional): The factor of growth and shrinkage, at least 1. Default: ``2`` .
        scale_window (int, optional): The number of clean steps in a row after which the scale grows.
            Default: ``2000`` .

    Keyword Args:
        min_loss_scale (float): The scale never falls below it; above 0. Default: ``1.0`` .
        max_loss_scale (float): The scale never grows beyond it. Default: ``2**126`` .
        growth_factor (float): What growth multiplies by, at least 1. Default: ``None`` , `scale_factor`.
        backoff_factor (float): What an overflow multiplies by, above 0 and at most 1. Default: ``None`` , the
            float32 reciprocal of `scale_factor`.
        hysteresis (int): How many overflows leave the scale as it is before one shrinks it. Default: ``0`` .
        consecutive_hysteresis (bool): If True, every clean step restores what `hysteresis` allows; if False, only a
            full window of them does. Default: ``False`` .
        max_consecutive_overflows (int): More overflows in a row than these raise; None for never.
            Default: ``1000`` .
        check_interval (int): In :class:`Model`, as :class:`TrainOneStepWithLossScaleCell` takes it.
            Default: ``100`` .
        fit_loss_dtype (bool): In :class:`Model`, as :class:`TrainOneStepWithLossScaleCell` takes it.
            Default: ``False`` .

    Attributes:
        loss_scale (float): The present scale; the number as it was given until it first changes. To assign it, or
            one of the three counts below, is to go on from there, in :class:`Model` too.
        increase_ratio (float): What growth multiplies by; an update cell takes it when it is made.
        decrease_ratio (float): What an overflow multiplies by; an update cell takes it when it is made.
        scale_factor (float): The factor; to assign it sets both ratios.
        scale_window (int): As given.
        cur_iter (int): The number of the next step, from 1.
        last_overflow_iter (int): The step that last restarted the count of clean steps; 0 before the first.
        bad_step (int): Overflows in a row.
        bad_step_max (int): `max_consecutive_overflows`, under MindSpore's name.

    Raises:
        TypeError: If a number has another type than stated.
        ValueError: If a number lies outside its range, is NaN or infinite.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from ms_lossscale import DynamicLossScaleManager
        >>> manager = DynamicLossScaleManager(init_loss_scale=2**16, scale_factor=2, scale_window=2)
        >>> for overflow in (True, False, False):
        ...     manager.update_loss_scale(overflow)
        ...     print(manager.get_loss_scale())
        32768.0
        32768.0
        65536.0
    """

    cur_iter = _state_attribute("cur_iter")
    last_overflow_iter = _state_attribute("last_overflow_iter")
    bad_step = _state_attribute("bad_step")

    def __init__(self, init_loss_scale: float = 2**24, scale_factor: float = 2, scale_window: int = 2000, *,
                 min_loss_scale: float = MIN_LOSS_SCALE, max_loss_scale: float = MAX_LOSS_SCALE,
                 growth_factor: float | None = None, backoff_factor: float | None = None,
                 hysteresis: int = 0, consecutive_hysteresis: bool = False,
                 max_consecutive_overflows: int | None = MAX_CONSECUTIVE_OVERFLOWS, check_interval: int = 100,
                 fit_loss_dtype: bool = False) -> None:
        rule = make_rule("DynamicLossScaleManager", "init_loss_scale", init_loss_scale, scale_factor, scale_window,
                         min_loss_scale, max_loss_scale, growth_factor, backoff_factor,
                         hysteresis, consecutive_hysteresis)
        self._step_options = check_watch_options(
            "DynamicLossScaleManager", max_consecutive_overflows=max_consecutive_overflows,
            check_interval=check_interval, fit_loss_dtype=fit_loss_dtype)
        self.scale_factor = scale_factor
        self.scale_window = scale_window
        self.increase_ratio = rule.growth
        self.decrease_ratio = rule.backoff
        self.min_loss_scale = min_loss_scale
        self.max_loss_scale = max_loss_scale
        self.hysteresis = hysteresis
        self.consecutive_hysteresis = rule.consecutive
        self._guard = StuckGuard(max_consecutive_overflows)
        self._state = ScaleState(init_loss_scale)

    @property
    def loss_scale(self):
        return self._state.loss_scale

    @loss_scale.setter
    def loss_scale(self, value):
        self._state.loss_scale = self._check_inside(value)

    @property
    def scale_factor(self):
        return self._scale_factor

    @scale_factor.setter
    def scale_factor(self, value):
        self._scale_factor, self.increase_ratio, self.decrease_ratio = value, value, reciprocal(value)

    @property
    def bad_step_max(self):
        return self._guard.limit

    @bad_step_max.setter
    def bad_step_max(self, value):
        self._guard.limit = value

    def get_loss_scale(self) -> float:
        """
        Get the present loss scale.

        Returns:
            The number given as `init_loss_scale` until it first changes, then a float; in :class:`Model` the
            training step's live scale.
        """
        return self.loss_scale

    def get_drop_overflow_update(self) -> bool:
        """
        Whether a step that overflows skips its update.

        Returns:
            bool, always True.
        """
        return True

    def update_loss_scale(self, overflow) -> None:
        """
        Count one step and move the scale by the rule; in :class:`Model` the step has done so already.

        Args:
            overflow (bool): Whether the step overflowed; a bool, or a Tensor of one bool element.

        Raises:
            TypeError: If `overflow` is not such a flag.
            RuntimeError: If more than `bad_step_max` steps in a row overflowed.
        """
        overflow = check_flag("update_loss_scale", "overflow", overflow)
        if isinstance(self._state, DeviceState):
            self._state.train_step.check_consecutive_overflows()
            return
        self._rule().update(self._state, overflow)
        self._guard.check(self.loss_scale, self.bad_step, self.cur_iter - self.bad_step, self.min_loss_scale)

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """
        Get a new cell that goes on from this manager's present state on the device.

        Returns:
            DynamicLossScaleUpdateCell, called by the training step with (loss scale, overflow).
        """
        state = snapshot(self._state)
        cell = DynamicLossScaleUpdateCell(
            state.loss_scale, self.scale_factor, self.scale_window, min_loss_scale=self.min_loss_scale,
            max_loss_scale=self.max_loss_scale, growth_factor=self.increase_ratio, backoff_factor=self.decrease_ratio,
            hysteresis=self.hysteresis, consecutive_hysteresis=self.consecutive_hysteresis)
        for name in ("cur_iter", "last_overflow_iter", "tolerated_overflows"):
            if hasattr(cell, name):
                getattr(cell, name).set_data(Tensor(getattr(state, name), ms.int32))
        return cell

    def follow(self, train_step: nn.Cell) -> None:
        """
        Read the state from `train_step` from now on; :class:`Model` calls it once the step is built.

        Args:
            train_step (TrainOneStepWithLossScaleCell): The step whose update cell this manager made.
        """
        if not isinstance(train_step, nn.Cell) or not hasattr(train_step, "consecutive_overflows"):
            raise TypeError(message("follow", "train_step", "a TrainOneStepWithLossScaleCell", train_step))
        if isinstance(train_step.loss_scaling_manager, DynamicLossScaleUpdateCell):
            bad_step, self._state = self.bad_step, DeviceState(train_step)
            self.bad_step = bad_step
            train_step.watch.guard = self._guard

    def step_options(self) -> dict:
        """
        Get the keyword arguments that :class:`Model` builds the training step with.

        Returns:
            dict, of `max_consecutive_overflows`, `check_interval` and `fit_loss_dtype`.
        """
        return {**self._step_options, "max_consecutive_overflows": self.bad_step_max}

    def state_dict(self) -> dict:
        """
        Get what decides the next scale, as Python numbers.

        Returns:
            dict, of `loss_scale`, `cur_iter`, `last_overflow_iter`, `bad_step` and `tolerated_overflows`.
        """
        return {name: np.asarray(value).item() for name, value in asdict(snapshot(self._state)).items()}

    def load_state_dict(self, state: dict) -> None:
        """
        Go on from what `state_dict` gave; in :class:`Model` the training step goes on from it.

        Args:
            state (dict): What `state_dict` returned.

        Raises:
            TypeError: If `state` is not a dict, or a number in it has another type.
            ValueError: If a name is missing or unknown, or a number out of range. Nothing is changed then.
        """
        who = "load_state_dict"
        check_state_names(who, state, [field.name for field in fields(ScaleState)])
        self._check_inside(state["loss_scale"], who)
        for name in ("cur_iter", "last_overflow_iter", "bad_step", "tolerated_overflows"):
            check_int(who, name, state[name], 1 if name == "cur_iter" else 0)
        for name, value in state.items():
            # A NumPy int would wrap when it is counted on.
            setattr(self._state, name, value if name == "loss_scale" else int(value))

    def _rule(self) -> ScaleRule:
        return ScaleRule(self.increase_ratio, self.decrease_ratio, self.scale_window, self.min_loss_scale,
                         self.max_loss_scale, self.hysteresis, self.consecutive_hysteresis)

    def _check_inside(self, loss_scale: float, who: str = "DynamicLossScaleManager") -> float:
        return check_inside(who, "loss_scale", loss_scale, self.min_loss_scale, self.max_loss_scale)

    def __getstate__(self) -> dict:
        """A copy, or an unpickled manager, owns its state: the numbers at the time of copying."""
        return {**self.__dict__, "_state": snapshot(self._state), "_guard": StuckGuard(self.bad_step_max)}
