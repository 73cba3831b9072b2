"""Which detector a step gets, and why."""

import os
import warnings
from typing import NamedTuple, Optional

from mindspore import context

from ms_lossscale import _versions
from ms_lossscale._errors import message
from ms_lossscale.overflow.all_finite import AllFiniteCheck
from ms_lossscale.overflow.detector import Detector
from ms_lossscale.overflow.float_status import FloatStatusCheck
from ms_lossscale.overflow.host import HostCheck
from ms_lossscale.overflow.is_finite import IsFiniteCheck
from ms_lossscale.overflow.register import FloatStatusRegister

DETECTORS = {
    "register": FloatStatusRegister,
    "all_finite": AllFiniteCheck,
    "is_finite": IsFiniteCheck,
    "float_status": FloatStatusCheck,
    "host": HostCheck,
}


# On Ascend it decides instead of the rules: for a chip that MindSpore cannot name, or one whose mode is set elsewhere.
OVERRIDE = "MS_LOSSSCALE_DETECTOR"
ON_ASCEND = ("register", "all_finite", "is_finite")


class Choice(NamedTuple):
    """A row's name in `DETECTORS`, and what decided it."""

    name: str
    reason: str


def choose() -> Choice:
    """Return the detector for the current device target, by the rules of MindSpore's own step."""
    target = context.get_context("device_target")
    if target == "CPU":
        return Choice("host", "device target CPU")
    if target == "GPU":
        return Choice("float_status", "device target GPU")
    if target != "Ascend":
        raise ValueError(message("TrainOneStepWithLossScaleCell", "device_target", "CPU, GPU or Ascend", target))
    return _overridden() or _choose_ascend(_versions.ascend_chip())


def _overridden() -> Optional[Choice]:
    name = os.environ.get(OVERRIDE)
    if not name:
        return None
    if name not in ON_ASCEND or (name == "all_finite" and _versions.AllFinite is None):
        known = [each for each in ON_ASCEND if each != "all_finite" or _versions.AllFinite is not None]
        raise ValueError(message("TrainOneStepWithLossScaleCell", OVERRIDE, f"one of {', '.join(known)}", name))
    return Choice(name, f"{OVERRIDE}={name}")


def _choose_ascend(chip: str) -> Choice:
    if chip == "910A":
        return Choice("register", "Ascend 910A has a float-status register")
    if chip != "910B":
        warnings.warn("This Ascend chip is neither a 910A nor a 910B to MindSpore: loss scaling reads the float-status "
                      f"register, as MindSpore's own step does. If the chip makes Inf and NaN, set {OVERRIDE} to "
                      "is_finite; to keep the register without this warning, set it to register.",
                      RuntimeWarning, stacklevel=4)
        return Choice("register", "an Ascend chip that MindSpore does not name: its own choice")
    if _versions.saturation_mode():
        return Choice("register", "Ascend 910B with MS_ASCEND_CHECK_OVERFLOW_MODE=SATURATION_MODE")
    enabled, why = _versions.all_finite_enabled()
    mode = "Ascend 910B in Inf/NaN mode, MS_ASCEND_CHECK_OVERFLOW_MODE not SATURATION_MODE"
    return Choice("all_finite" if enabled else "is_finite", f"{mode}; {why}")


def build(choice: Choice, distributed: bool, count: int) -> Detector:
    """Return the chosen detector for a step with `count` gradients."""
    detector = DETECTORS[choice.name]
    built = detector(distributed, count) if detector is HostCheck else detector(distributed)
    built.reason = choice.reason
    return built
