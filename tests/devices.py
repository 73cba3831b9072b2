"""Every device a step can be built for, on a machine that has none of them: what MindSpore would say there."""

import os
from contextlib import contextmanager
from typing import NamedTuple
from unittest import mock

import mindspore as ms
from mindspore import context
from mindspore._c_expression import MSContext

from ms_lossscale import _versions

VARIABLES = ("MS_ASCEND_CHECK_OVERFLOW_MODE", "MS_DEV_RUNTIME_CONF", "RANK_TABLE_FILE", "MS_LOSSSCALE_DETECTOR")
SATURATION = {"MS_ASCEND_CHECK_OVERFLOW_MODE": "SATURATION_MODE"}
NAMES = {"910A": "ascend910", "910B": "ascend910b", "": "ascend310p"}
FEATURES = {"910A": "amp_loss_scale_train_classic_target", "910B": "train_hq_dtype_line"}


class Device(NamedTuple):
    """A device target, an Ascend chip, the environment, the detector it gets and that detector's primitives."""

    target: str
    chip: str
    variables: dict
    detector: str
    primitives: tuple


REGISTER = ("NPUClearFloatStatusV2", "NPUGetFloatStatusV2")
DEVICES = {
    "910A": Device("Ascend", "910A", {}, "register", REGISTER),
    "910B saturation": Device("Ascend", "910B", SATURATION, "register", REGISTER),
    "910B AllFinite": Device("Ascend", "910B", {}, "all_finite", ("AllFinite",)),
    "910B IsFinite": Device("Ascend", "910B", {"MS_DEV_RUNTIME_CONF": "all_finite:false"}, "is_finite",
                            ("IsFinite", "ReduceAll", "AddN")),
    "GPU": Device("GPU", "", {}, "float_status", ("FloatStatus", "AddN")),
}


@contextmanager
def machine(target, chip="", variables=None):
    """Let MindSpore and this package see another device target, chip and environment; for building, not running."""
    real = context.get_context
    with mock.patch.dict(os.environ), \
            mock.patch.object(context, "get_context", lambda name: target if name == "device_target" else real(name)), \
            _chip(chip):
        for name in VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(variables or {})
        yield


@contextmanager
def distributed(ranks=2):
    """Let steps be built as one of several data-parallel ranks."""
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=ranks)
    try:
        yield
    finally:
        ms.reset_auto_parallel_context()


def on(name):
    """Return `machine` for a row of DEVICES."""
    return machine(DEVICES[name].target, DEVICES[name].chip, DEVICES[name].variables)


def _chip(chip):
    if hasattr(MSContext, "ascend_soc_supports_feature"):  # MindSpore 2.10
        feature = FEATURES.get(chip)
        return mock.patch.object(MSContext, "ascend_soc_supports_feature", lambda self, name: name == feature)
    if hasattr(MSContext, "get_ascend_soc_version"):  # 2.7 to 2.9
        return mock.patch.object(MSContext, "get_ascend_soc_version", lambda self: NAMES[chip])
    return mock.patch.object(_versions, "ascend_chip", lambda: chip)  # 2.0.0 asks no chip
