"""The functional loss scalers, for training loops of one's own: mindspore.amp's API."""

from __future__ import annotations

from abc import abstractmethod

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.amp import LossScaler as NativeLossScaler
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import check_flag, check_int, check_number, message
from ms_lossscale.held_scale import HeldScale
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, check_inside, make_rule


class LossScaler(NativeLossScaler):
    """
    Base class of the functional loss scalers, as :class:`mindspore.amp.LossScaler` is.

    A scaler of your own overrides the three methods. MindSpore compiles them where they are called in a graph.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import Tensor
        >>> from ms_lossscale import LossScaler
        >>> class Constant(LossScaler):
        ...     def scale(self, inputs):
        ...         return inputs * 1024
        ...     def unscale(self, inputs):
        ...         return inputs / 1024
        ...     def adjust(self, grads_finite):
        ...         return False
        >>> print(Constant().scale(Tensor(2.0)))
        2048.0
    """

    @abstractmethod
    def scale(self, inputs):
        """
        Multiply a loss by the loss scale.

        Args:
            inputs (Union[Tensor, tuple, list, dict]): The loss, or several.

        Returns:
            What `inputs` is, multiplied.
        """

    @abstractmethod
    def unscale(self, inputs):
        """
        Divide gradients by the loss scale.

        Args:
            inputs (Union[Tensor, RowTensor, tuple, list, dict]): The gradients, or a loss.

        Returns:
            What `inputs` is, divided.
        """

    @abstractmethod
    def adjust(self, grads_finite):
        """
        Move the loss scale after a step.

        Args:
            grads_finite (Union[bool, Tensor]): Whether all gradients of the step were finite.

        Returns:
            bool, whether the loss scale is one that moves.
        """


class StaticLossScaler(HeldScale, LossScaler):
    """
    A loss scale that does not move, for a training loop of one's own.

    Signature and results are those of :class:`mindspore.amp.StaticLossScaler`. It may be used in PYNATIVE mode, in a
    function under :func:`mindspore.jit`, and in a Cell in GRAPH mode.

    Args:
        scale_value (float): The loss scale, finite and at least 1.

    Attributes:
        scale_value (Parameter): The loss scale, a float32 of shape :math:`()`.

    Raises:
        TypeError: If `scale_value` is not an int or a float.
        ValueError: If `scale_value` is below 1, NaN or infinite in float32.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor
        >>> from ms_lossscale import StaticLossScaler
        >>> scaler = StaticLossScaler(2**10)
        >>> print(scaler.scale(Tensor(0.5, ms.float32)))
        512.0
        >>> grads = {"weight": Tensor([512.0, 1024.0], ms.float16), "bias": None}
        >>> print(scaler.unscale(grads)["weight"])
        [0.5 1. ]
    """

    def __init__(self, scale_value):
        check_number("StaticLossScaler", "scale_value", scale_value, 1, "a finite number >= 1")
        super().__init__(scale_value=float(scale_value))

    def adjust(self, grads_finite):
        """
        End a step; the loss scale stays.

        Args:
            grads_finite (Union[bool, Tensor]): Whether all gradients of the step were finite; ignored.

        Returns:
            bool, always False.
        """
        self.watch("adjusting", None)
        return False

    def _check_state(self, scale_value):
        """Raise unless this is a scale that the scaler can have."""
        check_number("load_state_dict", "scale_value", scale_value, 1, "a finite number >= 1")


class DynamicLossScaler(HeldScale, LossScaler):
    r"""
    A loss scale that falls at every overflow and grows after a run of clean steps, for a training loop of one's own.

    Signature and results are those of :class:`mindspore.amp.DynamicLossScaler`, which divides where
    :class:`DynamicLossScaleManager` multiplies by a reciprocal: :math:`\max(s / f, min)`. For a factor that is no
    power of two the two may differ in the last place. Growth is :math:`\min(s \cdot f, max)`. Both are float32. It may
    be used in PYNATIVE mode, in a function under :func:`mindspore.jit`, and in a Cell in GRAPH mode.

    Args:
        scale_value (float): The scale to start from, inside the bounds.
        scale_factor (float): The factor of growth and shrinkage, at least 1.
        scale_window (int): The number of clean steps in a row after which the scale grows.

    Keyword Args:
        min_loss_scale (float): The scale never falls below it; above 0. Default: ``1.0`` .
        max_loss_scale (float): The scale never grows beyond it. Default: ``2**126`` .

    Attributes:
        scale_value (Parameter): The present scale, a float32 of shape :math:`()`.
        counter (Parameter): The clean steps since the scale last moved, an int32 of shape :math:`()`.
        scale_factor (float): As given.
        scale_window (int): As given.
        min_loss_scale (float): As given.
        max_loss_scale (float): As given.

    Raises:
        TypeError: If a number has another type than stated.
        ValueError: If a number lies outside its range, is NaN or infinite.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor
        >>> from ms_lossscale import DynamicLossScaler, all_finite
        >>> scaler = DynamicLossScaler(scale_value=2**10, scale_factor=2, scale_window=1)
        >>> grads = (Tensor([512.0, float("inf")], ms.float16), Tensor([1.0], ms.float16))
        >>> scaler.adjust(all_finite(scaler.unscale(grads)))
        True
        >>> print(scaler.scale_value.asnumpy())
        512.0
    """

    state_names = ("scale_value", "counter")

    def __init__(self, scale_value, scale_factor, scale_window, *,
                 min_loss_scale=MIN_LOSS_SCALE, max_loss_scale=MAX_LOSS_SCALE):
        make_rule("DynamicLossScaler", "scale_value", scale_value, scale_factor, scale_window,
                  min_loss_scale, max_loss_scale, None, None, 0, False)
        # Python's numbers: a graph takes no other.
        self.scale_factor = np.asarray(scale_factor).item()
        self.scale_window = int(scale_window)
        self.min_loss_scale = float(min_loss_scale)
        self.max_loss_scale = float(max_loss_scale)
        super().__init__(scale_value=float(scale_value), counter=0)

    def adjust(self, grads_finite):
        """
        End a step: count it, and move the loss scale by the rule.

        Args:
            grads_finite (Union[bool, Tensor]): Whether all gradients of the step were finite: what
                :func:`all_finite` returns, or a bool, or a bool Tensor of one element.

        Returns:
            bool, always True.

        Raises:
            TypeError: If `grads_finite` is not such a flag.
            ValueError: If `grads_finite` has more or fewer elements than one.
        """
        self.watch("adjusting", None)
        finite = as_flag(grads_finite)
        clean_steps = self.counter + 1
        grow = ops.logical_and(finite, clean_steps >= self.scale_window)
        grown = ops.minimum(self.scale_value * self.scale_factor, self.max_loss_scale)
        shrunk = ops.maximum(self.scale_value / self.scale_factor, self.min_loss_scale)
        scale_value = ops.select(finite, ops.select(grow, grown, self.scale_value), shrunk)
        counter = ops.select(ops.logical_or(grow, ops.logical_not(finite)), ops.zeros_like(self.counter), clean_steps)
        ops.assign(self.scale_value, scale_value)
        ops.assign(self.counter, counter)
        return True

    def _check_state(self, scale_value, counter):
        """Raise unless this is a state that the scaler can be in."""
        check_inside("load_state_dict", "scale_value", scale_value, self.min_loss_scale, self.max_loss_scale)
        check_int("load_state_dict", "counter", counter, 0)


def as_flag(value):
    """Return `value` as a bool Tensor of shape ()."""
    if isinstance(value, Tensor):
        check_flag_tensor(ops.dtype(value), ops.shape(value))
        return ops.reshape(value, ())
    return Tensor(True) if bool_of(value) else Tensor(False)


@constexpr
def bool_of(value):
    """Return a flag that is no Tensor as a bool."""
    return check_flag("adjust", "grads_finite", value)


@constexpr
def check_flag_tensor(dtype, shape):
    """Raise, while a graph is compiled or outside one, unless this is a bool Tensor of one element."""
    rule = "a bool, or a bool Tensor of one element"
    if dtype != ms.bool_:
        raise TypeError(message("adjust", "grads_finite", rule, dtype))
    if shape not in ((), (1,)):
        raise ValueError(message("adjust", "grads_finite", rule, shape))
