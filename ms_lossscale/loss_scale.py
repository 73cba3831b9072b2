"""TensorFlow's loss-scale objects on the host: what they share, and the fixed one.

They behave as tf.compat.v1.mixed_precision of TensorFlow 2.9 to 2.21 does in eager mode; where they differ is said in
the documentation, page "Coming from TensorFlow".
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_lossscale._errors import message


class LossScale(ABC):
    """
    Base class of the TensorFlow-style loss scales.

    Calling one gives the loss scale; `update` moves it after a step.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import Tensor
        >>> from ms_lossscale import LossScale
        >>> class Constant(LossScale):
        ...     def __call__(self):
        ...         return Tensor(1024.0)
        ...     def update(self, grads):
        ...         return None, True
        ...     def get_config(self):
        ...         return {}
        >>> print(Constant.from_config({})())
        1024.0
    """

    @abstractmethod
    def __call__(self) -> Tensor:
        """Return the loss scale, a new float32 Tensor of shape ()."""

    @abstractmethod
    def update(self, grads):
        """
        Move the loss scale after a step.

        Args:
            grads (object): The gradients, divided by the loss scale already, nested as you like.

        Returns:
            Tuple of (update_op, should_apply_gradients): None, and whether the step is to be applied.
        """

    @abstractmethod
    def get_config(self) -> dict:
        """
        Get what `from_config` needs.

        Returns:
            dict, a new one at each call.
        """

    @classmethod
    def from_config(cls, config: dict) -> LossScale:
        """
        Make a loss scale from what `get_config` returned.

        Args:
            config (dict): The arguments of the class by name.

        Returns:
            LossScale, in its initial state.
        """
        return cls(**config)


class FixedLossScale(LossScale):
    """
    A loss scale that never changes.

    Args:
        loss_scale_value (float): The loss scale, a Python number of at least 1 that float32 can hold; kept as a
            float and given out in float32.

    Raises:
        ValueError: If `loss_scale_value` is no int or float, below 1, NaN, or infinite in float32.
        OverflowError: If `loss_scale_value` is an int beyond the range of a float.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import Tensor
        >>> from ms_lossscale import FixedLossScale
        >>> loss_scale = FixedLossScale(128)
        >>> print(loss_scale, loss_scale())
        FixedLossScale(128.0) 128.0
        >>> loss_scale.update([Tensor(float("nan"))])
        (None, True)
    """

    def __init__(self, loss_scale_value: float) -> None:
        rule = "a Python int or float >= 1 that float32 can hold"
        if not isinstance(loss_scale_value, (int, float)) or loss_scale_value < 1:
            raise ValueError(message("FixedLossScale", "loss_scale_value", rule, loss_scale_value))
        self._loss_scale_value = float32_number("FixedLossScale", "loss_scale_value", float(loss_scale_value))

    def __call__(self) -> Tensor:
        return Tensor(self._loss_scale_value, ms.float32)

    def update(self, grads) -> tuple:
        """
        Do nothing: the scale is fixed, and every step is to be applied.

        Args:
            grads (object): Ignored.

        Returns:
            Tuple, (None, True).
        """
        return None, True

    def get_config(self) -> dict:
        """
        Get what `from_config` needs.

        Returns:
            dict, of `loss_scale_value`.
        """
        return {"loss_scale_value": self._loss_scale_value}

    def __repr__(self) -> str:
        return f"FixedLossScale({self._loss_scale_value})"


def float32_number(owner: str, name: str, value: float) -> float:
    """Return `value`; raise unless float32 can hold it, be it rounded."""
    with np.errstate(over="ignore", under="ignore"):
        held = np.float32(value)
    if not np.isfinite(held) or (held == 0) != (value == 0):
        raise ValueError(message(owner, name, "a finite number that float32 can hold", value))
    return value
