"""The way from a TensorFlow-style loss scale to a manager and back, as methods of every manager."""

from __future__ import annotations

# conversion.py puts both in: it knows all the classes, and they must not know it.
CONVERSIONS = {}


class Convertible:
    """What a manager inherits."""

    @staticmethod
    def from_loss_scale(loss_scale):
        """
        Get a manager for a TensorFlow-style loss scale.

        The manager of a :class:`FixedLossScale` skips a step that overflows; in TensorFlow it would be applied. The
        manager of a :class:`DynamicLossScale` goes on from its present state. Its scale does not grow beyond 2**126,
        and shrinks by multiplication: for a multiplier that is no power of two it may differ in the last place.

        Args:
            loss_scale (object): What :func:`get_loss_scale` takes, an object of TensorFlow's own classes too; or a
                dict that `get_config` returned.

        Returns:
            LossScaleManager: a :class:`FixedLossScaleManager` or a :class:`DynamicLossScaleManager`; of None None.

        Raises:
            TypeError: If `loss_scale` is a LossScale of another class.
            ValueError: If `loss_scale` is nothing that describes one, or a manager cannot have its numbers: a
                multiplier below 1, a scale above 2**126, a period beyond int32.
        """
        return CONVERSIONS["manager"](loss_scale)

    def to_loss_scale(self):
        """
        Get a TensorFlow-style loss scale that goes on from the present state of this manager.

        Returns:
            DynamicLossScale of a :class:`DynamicLossScaleManager`; of any other manager a FixedLossScale, its present
            scale. A :class:`LossScaleWarning` names bounds and hysteresis, which a DynamicLossScale has not.

        Raises:
            ValueError: If growth and backoff are not one factor and its reciprocal, or the scale is below 1 and fixed.
        """
        return CONVERSIONS["loss_scale"](self)
