"""The managers that Model takes: MindSpore's documented API, with a scale that stays inside its bounds."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.amp import LossScaleManager as NativeLossScaleManager

from ms_lossscale._errors import check_bool, check_flag, check_number, check_positive_int
from ms_lossscale.manager_state import DeviceState, HostState
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, ScaleRule, reciprocal
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell, check_bounds


class LossScaleManager(NativeLossScaleManager):
    """
    Base class of the loss scale managers.

    A manager of your own overrides the first three methods; :class:`Model` and :func:`build_train_network` take it.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``
    """

    def get_loss_scale(self) -> float | None:
        """
        Get the loss scale, the number the loss is multiplied by.

        Returns:
            float. The base class returns None, which :class:`Model` refuses.
        """
        return None

    def update_loss_scale(self, overflow) -> None:
        """
        Update the scale that this manager holds on the host; :class:`Model` calls it after every step.

        Args:
            overflow (bool): Whether the step overflowed. The base class does nothing.
        """

    def get_update_cell(self) -> nn.Cell | None:
        """
        Get the cell that updates the loss scale on the device.

        Returns:
            Cell, called by the training step with (loss scale, overflow); or None, which the base class returns:
            the step then applies every update, overflow or not.
        """
        return None

    def get_drop_overflow_update(self) -> bool:
        """
        Whether a step that overflows skips its update.

        Returns:
            bool. The base class answers True if `get_update_cell` gives a cell, asked once.
        """
        if not hasattr(self, "_drops_overflow_update"):
            self._drops_overflow_update = self.get_update_cell() is not None
        return self._drops_overflow_update

    def follow(self, train_step: nn.Cell) -> None:
        """
        Take the state from `train_step` from now on; :class:`Model` calls it once the step is built.

        Args:
            train_step (TrainOneStepWithLossScaleCell): The step that owns the scale. The base class ignores it.
        """


class FixedLossScaleManager(LossScaleManager):
    """
    Manager of a loss scale that never changes.

    Args:
        loss_scale (float, optional): The loss scale, finite and at least 1. Default: ``128.0`` .
        drop_overflow_update (bool, optional): Whether a step that overflows skips its update. If False, every
            update is applied, non-finite gradients included, and nothing unscales the gradients but the optimizer:
            give it the same number as `loss_scale`. Default: ``True`` .

    Raises:
        TypeError: If `loss_scale` is not an int or a float, or `drop_overflow_update` not a bool.
        ValueError: If `loss_scale` is below 1, NaN or infinite in float32.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from ms_lossscale import FixedLossScaleManager
        >>> manager = FixedLossScaleManager(1024.0)
        >>> manager.get_loss_scale(), manager.get_drop_overflow_update()
        (1024.0, True)
        >>> print(FixedLossScaleManager(1024.0, drop_overflow_update=False).get_update_cell())
        None
    """

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        who = "FixedLossScaleManager"
        self._loss_scale = check_number(who, "loss_scale", loss_scale, 1, "a finite number >= 1")
        self._drop_overflow_update = check_bool(who, "drop_overflow_update", drop_overflow_update)

    def get_loss_scale(self) -> float:
        """
        Get the loss scale.

        Returns:
            The number given as `loss_scale`.
        """
        return self._loss_scale

    def get_drop_overflow_update(self) -> bool:
        """
        Whether a step that overflows skips its update.

        Returns:
            bool, `drop_overflow_update`.
        """
        return self._drop_overflow_update

    def update_loss_scale(self, overflow) -> None:
        """
        Do nothing: the scale is fixed.

        Args:
            overflow (bool): Whether the step overflowed.
        """

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """
        Get the cell that the training step calls with (loss scale, overflow).

        Returns:
            FixedLossScaleUpdateCell, or None if `drop_overflow_update` is False.
        """
        return FixedLossScaleUpdateCell(self._loss_scale) if self._drop_overflow_update else None


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

    Attributes:
        loss_scale (float): The present scale; the number as it was given until it first changes.
        scale_factor, increase_ratio, decrease_ratio (float): The factor, the ratio of growth, and of shrinkage.
        scale_window (int): As given.
        cur_iter (int): The number of the next step, from 1.
        last_overflow_iter (int): The step at which the scale last moved or met its bound; 0 before the first.
        bad_step (int): Overflows in a row.
        bad_step_max (int): More overflows in a row than these raise. 1000 unless assigned.

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

    def __init__(self, init_loss_scale: float = 2**24, scale_factor: float = 2, scale_window: int = 2000, *,
                 min_loss_scale: float = MIN_LOSS_SCALE, max_loss_scale: float = MAX_LOSS_SCALE) -> None:
        who = "DynamicLossScaleManager"
        check_bounds(who, "init_loss_scale", init_loss_scale, min_loss_scale, max_loss_scale)
        self.scale_factor = check_number(who, "scale_factor", scale_factor, 1, "a finite number >= 1")
        self.scale_window = check_positive_int(who, "scale_window", scale_window)
        self.increase_ratio = scale_factor
        self.decrease_ratio = 1 / scale_factor
        self.min_loss_scale = min_loss_scale
        self.max_loss_scale = max_loss_scale
        self.bad_step_max = 1000
        self._state = HostState(init_loss_scale)

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
        self._state.update(self._rule(), overflow)
        if self.bad_step > self.bad_step_max:
            at_minimum = "its minimum" if self.loss_scale <= self.min_loss_scale else "not its minimum"
            raise RuntimeError(
                f"{self.bad_step} steps in a row overflowed, more than 'bad_step_max' ({self.bad_step_max}). The loss "
                f"scale is {self.loss_scale:g}, {at_minimum} ({self.min_loss_scale:g}): the gradients are not finite "
                "at any scale tried. Look for NaN or Inf in the data, the loss and the learning rate.")

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """
        Get a new cell that goes on from this manager's present state on the device.

        Returns:
            DynamicLossScaleUpdateCell, called by the training step with (loss scale, overflow).
        """
        cell = DynamicLossScaleUpdateCell(self.loss_scale, self.scale_factor, self.scale_window,
                                          min_loss_scale=self.min_loss_scale, max_loss_scale=self.max_loss_scale)
        state = self._state.snapshot()
        cell.cur_iter.set_data(Tensor(state.cur_iter, ms.int32))
        cell.last_overflow_iter.set_data(Tensor(state.last_overflow_iter, ms.int32))
        return cell

    def follow(self, train_step: nn.Cell) -> None:
        """
        Read the state from `train_step` from now on; :class:`Model` calls it once the step is built.

        Args:
            train_step (TrainOneStepWithLossScaleCell): The step whose update cell this manager made.
        """
        if isinstance(train_step.loss_scaling_manager, DynamicLossScaleUpdateCell):
            self._state = DeviceState(train_step)

    def _rule(self) -> ScaleRule:
        as_given = self.decrease_ratio == 1 / self.scale_factor
        backoff = reciprocal(self.scale_factor) if as_given else self.decrease_ratio
        return ScaleRule(self.increase_ratio, backoff, self.scale_window, self.min_loss_scale, self.max_loss_scale)

    def __getstate__(self) -> dict:
        """A copy, or an unpickled manager, owns its state: the numbers at the time of copying."""
        return {**self.__dict__, "_state": self._state.snapshot()}


def _state_attribute(name: str) -> property:
    return property(lambda self: getattr(self._state, name), lambda self, value: setattr(self._state, name, value))


for _name in ("loss_scale", "cur_iter", "last_overflow_iter", "bad_step"):
    setattr(DynamicLossScaleManager, _name, _state_attribute(_name))
