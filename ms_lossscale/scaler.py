"""The functional loss scalers, for training loops of one's own: mindspore.amp's base class, and the fixed scale."""

from __future__ import annotations

from abc import abstractmethod

from mindspore.amp import LossScaler as NativeLossScaler

from ms_lossscale._errors import check_scale
from ms_lossscale.held_scale import HeldScale


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
        scale_value (float): The loss scale, from 1 to 2**126.

    Attributes:
        scale_value (Parameter): The loss scale, a float32 of shape :math:`()`.

    Raises:
        TypeError: If `scale_value` is not an int or a float.
        ValueError: If `scale_value` is NaN, below 1 or above 2**126.

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
        check_scale("StaticLossScaler", "scale_value", scale_value, minimum=1)
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
        check_scale("load_state_dict", "scale_value", scale_value, minimum=1)
