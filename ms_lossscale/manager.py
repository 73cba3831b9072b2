"""What Model takes for a loss scale: the base of all managers, and the manager of a fixed scale."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.amp import LossScaleManager as NativeLossScaleManager

from ms_lossscale._errors import check_bool, check_scale, check_state_names
from ms_lossscale.convertible import Convertible
from ms_lossscale.stuck import MAX_CONSECUTIVE_OVERFLOWS
from ms_lossscale.update_cell import FixedLossScaleUpdateCell
from ms_lossscale.watch import check_watch_options


class LossScaleManager(Convertible, NativeLossScaleManager):
    """
    Base class of the loss scale managers.

    A manager of your own overrides `get_loss_scale`, `update_loss_scale` and `get_update_cell`; :class:`Model` and
    :func:`build_train_network` take it.

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

    def step_options(self) -> dict:
        """
        Get the keyword arguments that :class:`Model` builds the training step with.

        Returns:
            dict, empty in the base class.
        """
        return {}

    def state_dict(self) -> dict:
        """
        Get what decides the next scale, as Python numbers.

        Returns:
            dict, which `load_state_dict` takes; empty in the base class.
        """
        return {}

    def load_state_dict(self, state: dict) -> None:
        """
        Go on from what `state_dict` gave.

        Args:
            state (dict): What `state_dict` of the same class returned.

        Raises:
            TypeError: If `state` is not a dict.
            ValueError: If a name is missing, unknown, or its number out of range. Nothing is changed then.
        """
        check_state_names("load_state_dict", state, ())


class FixedLossScaleManager(LossScaleManager):
    """
    Manager of a loss scale that does not change by itself.

    Args:
        loss_scale (float, optional): The loss scale, from 1 to 2**126. Default: ``128.0`` .
        drop_overflow_update (bool, optional): Whether a step that overflows skips its update. If False, every
            update is applied, non-finite gradients included, and nothing unscales the gradients but the optimizer:
            give it the same number as `loss_scale`. Default: ``True`` .

    Keyword Args:
        max_consecutive_overflows (int): In :class:`Model`, more overflows in a row than these raise; None for never.
            Default: ``1000`` .
        check_interval (int): In :class:`Model`, as :class:`TrainOneStepWithLossScaleCell` takes it.
            Default: ``100`` .
        fit_loss_dtype (bool): In :class:`Model`, as :class:`TrainOneStepWithLossScaleCell` takes it.
            Default: ``False`` .

    Raises:
        TypeError: If a number has another type than stated, or a flag is not a bool.
        ValueError: If a number lies outside its range, is NaN or infinite in float32.

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

    _train_step = None

    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True, *,
                 max_consecutive_overflows: int | None = MAX_CONSECUTIVE_OVERFLOWS, check_interval: int = 100,
                 fit_loss_dtype: bool = False) -> None:
        who = "FixedLossScaleManager"
        self._loss_scale = check_scale(who, "loss_scale", loss_scale, minimum=1)
        self._drop_overflow_update = check_bool(who, "drop_overflow_update", drop_overflow_update)
        self._step_options = check_watch_options(who, max_consecutive_overflows=max_consecutive_overflows,
                                                 check_interval=check_interval, fit_loss_dtype=fit_loss_dtype)

    def get_loss_scale(self) -> float:
        """
        Get the loss scale.

        Returns:
            The number given as `loss_scale`; in :class:`Model`, once it was set there to another, the training step's
            live scale.
        """
        live = None if self._train_step is None else self._train_step.get_loss_scale()
        return self._loss_scale if live in (None, np.float32(self._loss_scale)) else live

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
        return FixedLossScaleUpdateCell(self.get_loss_scale()) if self._drop_overflow_update else None

    def follow(self, train_step: nn.Cell) -> None:
        """
        Read the scale from `train_step` from now on; :class:`Model` calls it once the step is built.

        Args:
            train_step (TrainOneStepWithLossScaleCell): The step whose update cell this manager made.
        """
        self._train_step = train_step

    def step_options(self) -> dict:
        """
        Get the keyword arguments that :class:`Model` builds the training step with.

        Returns:
            dict, of `max_consecutive_overflows`, `check_interval` and `fit_loss_dtype`.
        """
        return dict(self._step_options)

    def state_dict(self) -> dict:
        """
        Get what decides the next scale, as Python numbers.

        Returns:
            dict, of `loss_scale`.
        """
        return {"loss_scale": np.asarray(self.get_loss_scale()).item()}

    def load_state_dict(self, state: dict) -> None:
        """
        Go on from what `state_dict` gave; in :class:`Model` the training step goes on from it.

        Args:
            state (dict): What `state_dict` returned.

        Raises:
            TypeError: If `state` is not a dict, or the number in it has another type.
            ValueError: If a name is missing or unknown, or the number out of range. Nothing is changed then.
        """
        check_state_names("load_state_dict", state, ["loss_scale"])
        self._loss_scale = check_scale("load_state_dict", "loss_scale", state["loss_scale"])
        if self._train_step is not None:
            self._train_step.set_sense_scale(Tensor(self._loss_scale, ms.float32))

    def __getstate__(self) -> dict:
        """A copy, or an unpickled manager, owns its number: the one at the time of copying."""
        return {**self.__dict__, "_loss_scale": self.get_loss_scale(), "_train_step": None}
