"""Argument checks, the one form of the package's error messages, and its warning categories."""

import math
from numbers import Integral, Real

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)
INT32_MAX = 2**31 - 1
# The smallest float32 whose reciprocal is still a finite float32.
SMALLEST_SCALE = 2.0**-126


class LossScaleWarning(UserWarning):
    """The base of this package's warnings."""


class SeedOverflowWarning(LossScaleWarning):
    """The loss's dtype cannot carry the loss scale."""


class CheckpointWarning(LossScaleWarning):
    """A checkpoint held less than a step needs to go on."""


def message(owner, name, rule, value, remedy=""):
    """Return ``For 'owner', 'name' must be rule, but got value. remedy``."""
    text = f"For '{owner}', '{name}' must be {rule}, but got {_show(value)}."
    return f"{text} {remedy}" if remedy else text


def check_number(owner, name, value, minimum, rule, maximum=FLOAT32_MAX, remedy=""):
    """Raise unless `value` is a Python or NumPy real number in ``[minimum, maximum]``; bool is not a number."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise TypeError(message(owner, name, rule, value, remedy))
    if not _finite(value) or not minimum <= value <= maximum:
        raise ValueError(message(owner, name, rule, value, remedy))
    return value


def check_scale(owner, name, value, minimum=SMALLEST_SCALE, maximum=FLOAT32_MAX, remedy=""):
    """Raise unless `value` is a usable loss scale: finite in float32, with a finite float32 reciprocal."""
    if minimum == SMALLEST_SCALE and maximum == FLOAT32_MAX:
        rule = "a finite float32 number > 0 (from 2**-126 on)"
    else:
        rule = f"a finite number in [{minimum:g}, {maximum:g}]"
    return check_number(owner, name, value, minimum, rule, maximum, remedy)


def check_int(owner, name, value, minimum):
    """Raise unless `value` is a Python or NumPy integer from `minimum` to the largest int32; bool is not one."""
    rule = f"an int in [{minimum}, {INT32_MAX}]"
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise TypeError(message(owner, name, rule, value))
    if not minimum <= value <= INT32_MAX:
        raise ValueError(message(owner, name, rule, value))
    return value


def check_positive_int(owner, name, value):
    """Raise unless `value` is an integer from 1 to the largest int32."""
    return check_int(owner, name, value, 1)


def check_bool(owner, name, value):
    """Return `value` as a bool; raise unless it is a Python or NumPy bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(message(owner, name, "a bool", value))
    return bool(value)


def check_flag(owner, name, value):
    """Return an overflow flag as a bool: a bool, 0 or 1, or a Tensor or array of one such element."""
    rule = "a bool, or a bool Tensor of one element"
    flag = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value)
    if flag.dtype.kind not in "biu":
        raise TypeError(message(owner, name, rule, value))
    if flag.size != 1 or flag.item() not in (0, 1):
        raise ValueError(message(owner, name, rule, value))
    return bool(flag.item())


def check_state_names(owner, state, names):
    """Raise unless `state` is a dict with exactly these names."""
    if not isinstance(state, dict):
        raise TypeError(message(owner, "state", "a dict", state))
    if set(state) != set(names):
        raise ValueError(message(owner, "state", f"a dict of {sorted(names)}", sorted(state, key=str)))


def _finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond float64
        return False


def _show(value):
    """Numbers and None as they are; anything else with its type, cut to a readable length."""
    if value is None or (isinstance(value, (Real, np.generic)) and not isinstance(value, (bool, np.bool_))):
        text = repr(value.item() if isinstance(value, np.generic) else value)
        return text if len(text) <= 40 else text[:37] + "..."
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
