"""Argument checks, the one form of the package's error messages, and its warning categories."""

import math
import re

import numpy as np

FLOAT32_MAX = float(np.finfo(np.float32).max)
INT32_MAX = 2**31 - 1
# The smallest float32 whose reciprocal is still a finite float32.
SMALLEST_SCALE = 2.0**-126
# Above it the reciprocal is subnormal, and a device that flushes subnormals would zero every gradient.
LARGEST_SCALE = 2.0**126


class LossScaleWarning(UserWarning):
    """The base of this package's warnings."""


class SeedOverflowWarning(LossScaleWarning):
    """The loss's dtype cannot carry the loss scale."""


class CheckpointWarning(LossScaleWarning):
    """A checkpoint held less than a step needs to go on."""


class UnderflowWarning(LossScaleWarning):
    """Most of a gradient vanishes at the loss scale."""


class OptimizerScaleWarning(LossScaleWarning):
    """A step and its optimizer both divide the gradients by a loss scale."""


class ScaleMismatchWarning(LossScaleWarning):
    """The loss is multiplied by one number, and the optimizer divides the gradients by another."""


class NoLossScaleWarning(LossScaleWarning):
    """Something is trained in float16 without loss scaling."""


class SharedParametersWarning(LossScaleWarning):
    """Two steps with different loss scales train the same parameters."""


class UncheckedUpdateWarning(LossScaleWarning):
    """Nothing keeps non-finite gradients from the parameters."""


def message(owner, name, rule, value, remedy=""):
    """Return ``For 'owner', 'name' must be rule, but got value. remedy``."""
    text = f"For '{owner}', '{name}' must be {rule}, but got {_show(value)}."
    return f"{text} {remedy}" if remedy else text


def check_number(owner, name, value, minimum, rule, maximum=FLOAT32_MAX, remedy=""):
    """Raise unless `value` is a Python or NumPy real number in ``[minimum, maximum]``; bool is not a number."""
    if not _is_int(value) and not isinstance(value, (float, np.floating)):
        raise TypeError(message(owner, name, rule, value, remedy))
    number = int(value) if _is_int(value) else float(value)
    if not float(minimum) <= number <= float(maximum):
        if FLOAT32_MAX == maximum < number < math.inf and not remedy:
            remedy = f"It is held in float32, which ends at {_show_bound(FLOAT32_MAX)}."
        raise ValueError(message(owner, name, rule, value, remedy))
    return value


def check_scale(owner, name, value, minimum=SMALLEST_SCALE, maximum=LARGEST_SCALE, remedy=""):
    """Raise unless `value` is a usable loss scale: a normal float32 whose reciprocal is one, too."""
    rule = f"a finite number in [{_show_bound(minimum)}, {_show_bound(maximum)}]"
    return check_number(owner, name, value, minimum, rule, maximum, remedy)


def check_int(owner, name, value, minimum, instead=""):
    """Raise unless `value` is a Python or NumPy integer from `minimum` to the largest int32; bool is not one."""
    rule = f"an int in [{minimum}, {INT32_MAX}]{instead}"
    if not _is_int(value):
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
    flag = value.asnumpy() if hasattr(value, "asnumpy") and not isinstance(value, type) else value
    flag = np.asarray(flag if isinstance(flag, (int, np.generic, np.ndarray)) else None)
    if flag.dtype.kind not in "biu":
        raise TypeError(message(owner, name, rule, value))
    if flag.size != 1 or flag.item() not in (0, 1):
        raise ValueError(message(owner, name, rule, value))
    return bool(flag.item())


def check_tensors(owner, name, value):
    """Raise unless `value` is a Tensor or RowTensor, or a tuple or list of them, nested or not."""
    if isinstance(value, (tuple, list)):
        for item in value:
            check_tensors(owner, name, item)
    elif isinstance(value, type) or not (hasattr(value, "asnumpy") or hasattr(value, "dense_shape")):
        raise TypeError(message(owner, name, "a Tensor or RowTensor, or a tuple or list of them", value))


def check_state_names(owner, state, names):
    """Raise unless `state` is a dict with exactly these names."""
    if not isinstance(state, dict):
        raise TypeError(message(owner, "state", "a dict", state))
    if set(state) != set(names):
        raise ValueError(message(owner, "state", f"a dict of {sorted(names)}", sorted(state, key=str)))


def _is_int(value):
    # timedelta64 is among NumPy's integers.
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.timedelta64))


def _show_bound(number):
    """Return a short text for a bound that is exact, but for the last digits of a float32."""
    mantissa, exponent = math.frexp(number)
    if mantissa == 0.5 and not 1e-4 <= number < 1e16:
        return f"2**{exponent - 1}"
    return f"{float(number):.8g}"


def _show(value):
    """None and numbers as they are, a class by its name; anything else with its type, cut to a readable length."""
    if value is None:
        return "None"
    if _is_int(value):
        digits = int(abs(int(value)).bit_length() * math.log10(2)) + 1
        return str(int(value)) if digits <= 40 else f"an int of about {digits} digits"
    if isinstance(value, (float, np.floating)):
        return repr(float(value))
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(repr(value).split()))
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
