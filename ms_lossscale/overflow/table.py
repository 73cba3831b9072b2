"""Which detector a step gets, and why."""

import warnings
from typing import NamedTuple

from mindspore import context

from ms_lossscale import _versions
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
        raise ValueError(f"No overflow detector for device target {target!r}; known are CPU, GPU and Ascend.")
    return _choose_ascend(_versions.ascend_chip())


def _choose_ascend(chip: str) -> Choice:
    if chip == "910A":
        return Choice("register", "Ascend 910A has a float-status register")
    if chip != "910B":
        warnings.warn("This Ascend chip is neither a 910A nor a 910B to MindSpore: loss scaling reads the float-status "
                      "register, as MindSpore's own step does.", RuntimeWarning, stacklevel=4)
        return Choice("register", "unknown Ascend chip: MindSpore's own choice")
    if _versions.saturation_mode():
        return Choice("register", "Ascend 910B with MS_ASCEND_CHECK_OVERFLOW_MODE=SATURATION_MODE")
    if _versions.all_finite_enabled():
        return Choice("all_finite", "Ascend 910B in Inf/NaN mode, AllFinite enabled")
    return Choice("is_finite", "Ascend 910B in Inf/NaN mode, AllFinite not enabled")


def build(choice: Choice, distributed: bool, count: int) -> Detector:
    """Return the chosen detector for a step with `count` gradients."""
    detector = DETECTORS[choice.name]
    return detector(distributed, count) if detector is HostCheck else detector(distributed)
