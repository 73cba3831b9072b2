"""TensorFlow's DynamicLossScale: its rule, and its state on the host."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_lossscale._errors import check_int, check_number, check_state_names, message
from ms_lossscale._versions import BFLOAT16
from ms_lossscale.host_grads import grads_are_finite
from ms_lossscale.loss_scale import LossScale, float32_number
from ms_lossscale.rule import ScaleRule, ScaleState

SMALLEST_FLOAT32 = 2.0**-149


class DynamicLossScale(LossScale):
    r"""
    A loss scale that falls when a gradient is not finite, and grows after a run of steps in which all are.

    The arithmetic is float32: :math:`\max(s / m, 1)`, and :math:`s \cdot m` where that is finite, else :math:`s`.

    Args:
        initial_loss_scale (float, optional): The scale to start from, above 0; anything that `float` takes, a Tensor
            of one element too. Default: ``2**15`` .
        increment_period (int, optional): The number of good steps in a row after which the scale grows, at least 1;
            anything that `int` takes. Default: ``2000`` .
        multiplier (float, optional): The factor of growth and shrinkage; anything that `float` takes.
            Default: ``2.0`` .

    Attributes:
        initial_loss_scale (float): As given.
        multiplier (float): As given.
        increment_period (int): As given.

    Raises:
        TypeError: As `float` and `int` raise it.
        OverflowError: As `float` and `int` raise it.
        ValueError: As `float` and `int` raise it; or if a number is NaN, or infinite in float32 or too small for it,
            the scale is not above 0, or the period is below 1.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import Tensor
        >>> from ms_lossscale import DynamicLossScale
        >>> loss_scale = DynamicLossScale(initial_loss_scale=8, increment_period=2)
        >>> for grad in (float("inf"), 1.0, 1.0):
        ...     update_op, should_apply_gradients = loss_scale.update([Tensor(grad), None])
        ...     print(should_apply_gradients, loss_scale())
        False 4.0
        True 4.0
        True 8.0
    """

    def __init__(self, initial_loss_scale: float = 2**15, increment_period: int = 2000,
                 multiplier: float = 2.0) -> None:
        scale, period = float(_one_element(initial_loss_scale)), int(_one_element(increment_period))
        factor, who = float(_one_element(multiplier)), "DynamicLossScale"
        self._initial_loss_scale = float32_number(who, "initial_loss_scale", scale)
        self._increment_period = period
        self._multiplier = float32_number(who, "multiplier", factor)
        if scale <= 0:
            raise ValueError(message(who, "initial_loss_scale", "a number > 0", initial_loss_scale))
        if period < 1:
            raise ValueError(message(who, "increment_period", "an int >= 1", increment_period))
        self._state = ScaleState(float(np.float32(scale)))

    @property
    def initial_loss_scale(self) -> float:
        return self._initial_loss_scale

    @property
    def increment_period(self) -> int:
        return self._increment_period

    @property
    def multiplier(self) -> float:
        return self._multiplier

    def __call__(self) -> Tensor:
        return Tensor(self._state.loss_scale, ms.float32)

    def update(self, grads) -> tuple:
        """
        Count a step and move the loss scale by the rule.

        Args:
            grads (object): The gradients, divided by the loss scale already: Tensors, RowTensors, arrays and floats,
                nested in tuples, lists and dicts. None is ignored.

        Returns:
            Tuple of (update_op, should_apply_gradients): None, and a bool Tensor of shape :math:`()`, True if all
            gradients are finite.

        Raises:
            TypeError: If a gradient is of no float dtype.
            ValueError: If a gradient is nothing that has a dtype.
        """
        finite = grads_are_finite(grads)
        rule = _TensorFlowRule(self._multiplier, self._multiplier, self._increment_period, -math.inf, math.inf)
        rule.update(self._state, not finite)
        return None, Tensor(finite)

    def get_config(self) -> dict:
        """
        Get what `from_config` needs.

        Returns:
            dict, of `initial_loss_scale`, `increment_period` and `multiplier`; the present scale is not in it.
        """
        return {"initial_loss_scale": self._initial_loss_scale, "increment_period": self._increment_period,
                "multiplier": self._multiplier}

    def state_dict(self) -> dict:
        """
        Get what decides the next scale, as Python numbers.

        Returns:
            dict, of `current_loss_scale` and `num_good_steps`.
        """
        state = self._state
        return {"current_loss_scale": float(np.float32(state.loss_scale)),
                "num_good_steps": state.cur_iter - 1 - state.last_overflow_iter}

    def load_state_dict(self, state: dict) -> None:
        """
        Go on from what `state_dict` gave.

        Args:
            state (dict): What `state_dict` returned.

        Raises:
            TypeError: If `state` is not a dict, or a number in it has another type.
            ValueError: If a name is missing or unknown, or a number out of range. Nothing is changed then.
        """
        check_state_names("load_state_dict", state, self.state_dict())
        scale, good_steps = state["current_loss_scale"], state["num_good_steps"]
        check_number("load_state_dict", "current_loss_scale", scale, SMALLEST_FLOAT32, "a finite number > 0")
        check_int("load_state_dict", "num_good_steps", good_steps, 0)
        self._state.loss_scale, self._state.cur_iter, self._state.last_overflow_iter = scale, good_steps + 1, 0

    def __repr__(self) -> str:
        state = self.state_dict()
        return (f"DynamicLossScale(current_loss_scale={np.float32(state['current_loss_scale'])!s}, "
                f"num_good_steps={state['num_good_steps']}, initial_loss_scale={self._initial_loss_scale}, "
                f"increment_period={self._increment_period}, multiplier={self._multiplier})")


@dataclass(frozen=True)
class _TensorFlowRule(ScaleRule):
    """Divides by `backoff`, down to 1; a scale that is below 1 already may grow, and growth to infinity is left out."""

    def moved(self, scale: float, overflow: bool) -> float:
        scale = np.float32(scale)
        with np.errstate(all="ignore"):
            if overflow:
                return float(np.maximum(scale / np.float32(self.backoff), np.float32(1)))
            grown = scale * np.float32(self.growth)
        return float(grown if np.isfinite(grown) else scale)


def _one_element(value: object) -> object:
    """Return the element of a Tensor or array that has one; anything else as it is."""
    if isinstance(value, Tensor):
        value = (value.astype(ms.float32) if value.dtype in BFLOAT16 else value).asnumpy()
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
