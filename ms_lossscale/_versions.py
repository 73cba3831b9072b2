"""Everything that depends on the MindSpore version, with the reason."""

from __future__ import annotations

import os

import mindspore as ms
from mindspore import context

# ops.MultitypeFuncGraph matches this class; the public RowTensor is only its printable face.
from mindspore.common.sparse_tensor import RowTensorInner as RowTensor  # noqa: F401

# 2.0.0 has no bfloat16. NumPy has none either.
BFLOAT16 = (ms.bfloat16,) if hasattr(ms, "bfloat16") else ()
HALF_DTYPES = (ms.float16, *BFLOAT16)
FLOAT_DTYPES = (*HALF_DTYPES, ms.float32, ms.float64)

try:
    from mindspore.ops.operations.nn_ops import AllFinite
except ImportError:  # 2.0.0, which has no Inf/NaN mode either
    AllFinite = None


def ascend_chip() -> str:
    """Return "910A" or "910B", as MindSpore tells them apart; "" for any other Ascend chip."""
    native = ms._c_expression.MSContext.get_instance()
    if hasattr(native, "ascend_soc_supports_feature"):  # 2.10: features instead of names
        if native.ascend_soc_supports_feature("amp_loss_scale_train_classic_target"):
            return "910A"
        return "910B" if native.ascend_soc_supports_feature("train_hq_dtype_line") else ""
    if hasattr(native, "get_ascend_soc_version"):  # 2.7 to 2.9
        name = native.get_ascend_soc_version()
        return "910A" if name == "ascend910" else "910B" if name in _910B_NAMES else ""
    return "910A"  # 2.0.0 knows no other: its step always takes the register


# 910_93 and 950 answer like 910B.
_910B_NAMES = ("ascend910b", "ascend910_93", "ascend950")


def saturation_mode() -> bool:
    """Return whether 910B saturates instead of making Inf and NaN, by the variable MindSpore reads."""
    return os.environ.get("MS_ASCEND_CHECK_OVERFLOW_MODE") == "SATURATION_MODE"


def all_finite_enabled() -> bool:
    """Return whether MindSpore's own step would use AllFinite on a 910B in Inf/NaN mode."""
    if AllFinite is None or "RANK_TABLE_FILE" in os.environ:
        return False
    runtime = os.environ.get("MS_DEV_RUNTIME_CONF", "").lower()
    if "all_finite:false" in runtime:
        return False
    if "all_finite:true" not in runtime:
        jit_config = context.get_jit_config() if hasattr(context, "get_jit_config") else None
        if jit_config and jit_config["jit_level"] not in ("O0", "O1"):
            return False
    from mindspore.run_check._check_version import AscendEnvChecker
    return AscendEnvChecker(None).check_custom_version()
