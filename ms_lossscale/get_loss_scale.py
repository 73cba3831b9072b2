"""What turns a number, "dynamic", a config or an object into a loss scale, as TensorFlow's `get` does."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from ms_lossscale._errors import message
from ms_lossscale.dynamic_loss_scale import DynamicLossScale
from ms_lossscale.loss_scale import FixedLossScale, LossScale

CLASSES = {"FixedLossScale": FixedLossScale, "DynamicLossScale": DynamicLossScale}
WHO, RULE = "get_loss_scale", "a number >= 1, 'dynamic', a config dict, a LossScale or None"


def get_loss_scale(identifier):
    """
    Get a loss scale for what describes one.

    Args:
        identifier (Union[float, str, dict, LossScale, None]): A Python number of at least 1 for a
            :class:`FixedLossScale`; "dynamic" for a :class:`DynamicLossScale` with its defaults; a dict of
            `class_name` and `config`, as Keras serializes one; a loss scale; or None. An object of TensorFlow's own
            classes is taken by its config, and the scale it has now.

    Returns:
        LossScale; of a LossScale itself, of None None.

    Raises:
        ValueError: If `identifier` is nothing of these, or what it describes is refused.
        TypeError: If `identifier` is a Tensor, or the names in `config` are not those of the class.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from ms_lossscale import get_loss_scale
        >>> get_loss_scale(128)
        FixedLossScale(128.0)
        >>> get_loss_scale("dynamic").get_config()
        {'initial_loss_scale': 32768.0, 'increment_period': 2000, 'multiplier': 2.0}
        >>> get_loss_scale({"class_name": "FixedLossScale", "config": {"loss_scale_value": 8}})
        FixedLossScale(8.0)
    """
    if isinstance(identifier, dict):
        return _from_serialized(identifier)
    if isinstance(identifier, (int, float)):
        return FixedLossScale(identifier)
    if isinstance(identifier, Tensor):
        raise TypeError(message(WHO, "identifier", RULE, identifier))
    if _is_dynamic(identifier):
        return DynamicLossScale()
    if identifier is None or isinstance(identifier, LossScale):
        return identifier
    if hasattr(identifier, "get_config") and not isinstance(identifier, type):
        return _from_object(identifier)
    # TensorFlow puts the identifier into its message by %, where a tuple of another length is a TypeError.
    error = TypeError if isinstance(identifier, tuple) and len(identifier) != 1 else ValueError
    raise error(message(WHO, "identifier", RULE, identifier))


def loss_scale_from_config(config: dict) -> LossScale:
    """Return a loss scale for what its get_config returned: the names tell which."""
    cls = FixedLossScale if "loss_scale_value" in config else DynamicLossScale
    return cls.from_config(config)


def _is_dynamic(identifier: object) -> bool:
    if isinstance(identifier, np.ndarray) and identifier.dtype.kind != "U":
        return False
    return bool(identifier == "dynamic")


def _from_serialized(identifier: dict) -> LossScale:
    if "class_name" not in identifier or "config" not in identifier:
        raise ValueError(message(WHO, "identifier", "a dict of 'class_name' and 'config'", identifier))
    if identifier["class_name"] not in CLASSES:
        raise ValueError(message(WHO, "class_name", f"one of {', '.join(CLASSES)}", identifier["class_name"]))
    config = identifier["config"]
    if not hasattr(config, "items") and not isinstance(config, list):
        raise AttributeError(message(WHO, "config", "a dict", config))
    return CLASSES[identifier["class_name"]].from_config(config)


def _from_object(foreign: object) -> LossScale:
    """TensorFlow is not imported: the names in the config tell the class."""
    config = foreign.get_config()
    if set(config) == {"loss_scale_value"}:
        return FixedLossScale(**config)
    if set(config) != set(DynamicLossScale().get_config()):
        raise ValueError(message(WHO, "identifier", RULE, foreign))
    loss_scale = DynamicLossScale(**config)
    if callable(foreign):
        loss_scale.load_state_dict({"current_loss_scale": float(foreign()), "num_good_steps": 0})
    return loss_scale
