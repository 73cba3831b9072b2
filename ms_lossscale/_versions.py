"""Everything that depends on the MindSpore version, with the reason."""

from __future__ import annotations

import os
import sys

import mindspore as ms
from mindspore import Parameter, Tensor, context, ops
from mindspore.common.seed import _KERNEL_SEED

# ops.MultitypeFuncGraph matches this class; the public RowTensor is only its printable face.
from mindspore.common.sparse_tensor import RowTensorInner as RowTensor  # noqa: F401
from mindspore.train.amp import _config_level

# 2.0.0 has no bfloat16. NumPy has none either.
BFLOAT16 = (ms.bfloat16,) if hasattr(ms, "bfloat16") else ()
HALF_DTYPES = (ms.float16, *BFLOAT16)
FLOAT_DTYPES = (*HALF_DTYPES, ms.float32, ms.float64)

try:
    from mindspore.ops.operations.nn_ops import AllFinite
except ImportError:  # 2.0.0, which has no Inf/NaN mode either
    AllFinite = None


# 2.7 and later; before it there is only set_context(device_target=...).
set_device = getattr(ms, "set_device", None)


# MindSpore's table of levels has no row for "auto" in 2.0.0, which reads it as "O2" on GPU and "O3" on Ascend.
AUTO_IS_A_LEVEL = "auto" in _config_level


def scales_by_default(level: str) -> bool:
    """Return whether MindSpore scales the loss at this mixed-precision level when no manager is given."""
    if level == "auto" and not AUTO_IS_A_LEVEL:
        return context.get_context("device_target") == "GPU"
    return level == "O2"


def ascend_chip() -> str:
    """Return "910A" or "910B", as MindSpore tells them apart; "" for any other Ascend chip."""
    native = ms._c_expression.MSContext.get_instance()
    if hasattr(native, "ascend_soc_supports_feature"):  # 2.10: features instead of names
        if native.ascend_soc_supports_feature("train_hq_dtype_line"):
            return "910B"
        return "910A" if native.ascend_soc_supports_feature("amp_loss_scale_train_classic_target") else ""
    if hasattr(native, "get_ascend_soc_version"):  # 2.7 to 2.9
        name = native.get_ascend_soc_version()
        return "910B" if name in _910B_NAMES else "910A" if name == "ascend910" else ""
    return "910A"  # 2.0.0 knows no other: its step always takes the register


def chip_facts() -> dict[str, object]:
    """Return what MindSpore itself says about the Ascend chip, for people to read."""
    native = ms._c_expression.MSContext.get_instance()
    facts = {}
    if hasattr(native, "get_ascend_soc_version"):
        facts["name"] = native.get_ascend_soc_version()
    if hasattr(native, "ascend_soc_supports_feature"):
        for feature in ("amp_loss_scale_train_classic_target", "train_hq_dtype_line"):
            facts[feature] = native.ascend_soc_supports_feature(feature)
    return facts


# 910_93 and 950 answer like 910B. 950 is MindSpore 2.9's; before it no MindSpore drives that chip.
_910B_NAMES = ("ascend910b", "ascend910_93", "ascend950")


def saturation_mode() -> bool:
    """Return whether 910B saturates instead of making Inf and NaN, by the variable MindSpore reads."""
    return os.environ.get("MS_ASCEND_CHECK_OVERFLOW_MODE") == "SATURATION_MODE"


def all_finite_enabled() -> tuple[bool, str]:
    """Return whether MindSpore's own step would use AllFinite on a 910B in Inf/NaN mode, and what decides it."""
    if AllFinite is None:
        return False, "this MindSpore has no AllFinite"
    from mindspore.run_check._check_version import AscendEnvChecker

    if "RANK_TABLE_FILE" in os.environ:
        return False, "AllFinite is off with RANK_TABLE_FILE set"
    if not AscendEnvChecker(None).check_custom_version():
        return False, "AllFinite is off: MindSpore's custom operators do not fit the installed Ascend software"
    return _all_finite_asked_for()


def _all_finite_asked_for():
    runtime = os.environ.get("MS_DEV_RUNTIME_CONF", "")
    for word, enabled in (("True", True), ("true", True), ("False", False), ("false", False)):
        if f"all_finite:{word}" in runtime:
            return enabled, f"AllFinite is {'on' if enabled else 'off'} by MS_DEV_RUNTIME_CONF"
    # 2.7 and later; a jit_level that was never set leaves the dict empty or without the key.
    jit_level = (context.get_jit_config() or {}).get("jit_level") if hasattr(context, "get_jit_config") else None
    if jit_level is None:
        return True, "AllFinite is on by default"
    enabled = jit_level in ("O0", "O1")
    return enabled, f"AllFinite is {'on' if enabled else 'off'} at jit_level {jit_level}"


def refuse_trace(who: str) -> None:
    """Raise if MindSpore (2.7 and later) records this run of Python: what the host answers would stay for ever."""
    trace = sys.modules.get("mindspore.graph.jit_trace") or sys.modules.get("mindspore.common.jit_trace")
    if trace is None or trace.jit_context() is None:
        return
    # MindSpore would go on recording, and take what was recorded for the whole function at its next call.
    recording = trace.jit_context()
    trace._trace_compile_cache.discard(recording.phase)
    trace._jit_trace_end(*(recording.args or ()))
    raise RuntimeError(f"For '{who}', jit with capture_mode=\"trace\" is not supported: it records one run, and keeps "
                       "what was checked and decided in it. Use ms.jit without it.")


def computes_in_float16(cell) -> bool:
    """Return whether `cell` was set to float16; 2.0.0 notes it under the first name."""
    return bool(getattr(cell, "to_float_fp16", False) or getattr(cell, "fp16", False))


def assign_now(parameter, value) -> None:
    """
    Write `value` into the storage that `parameter` has, and return when it is written.

    In place: 2.10 compiles a graph around that storage, and goes on with it after set_data. Waiting: 2.0.0 may run
    the write later than one that load_param_into_net makes on the host afterwards.
    """
    ops.assign(parameter, value)
    parameter.asnumpy()


def host_writes_arrive() -> bool:
    """
    Return whether the device reads what the host writes into the array that `asnumpy` gives of a Parameter, on CPU.

    From 2.7 on they are one memory; 2.0.0 keeps two, and copies one way.
    """
    parameter = Parameter(Tensor(0, ms.int32), name="probe", requires_grad=False)
    ops.assign(parameter, Tensor(1, ms.int32))
    parameter.asnumpy()[...] = 2
    return (parameter + 0).asnumpy().item() == 2


def random_state() -> tuple:
    """
    Return the state of MindSpore's random operators that no Cell holds.

    From 2.7 on there is a generator. In every version an operator made for one call, as by `ops.dropout`, takes its
    seed from a count of the calls.
    """
    generator = Tensor(ms.get_rng_state().asnumpy().copy()) if hasattr(ms, "get_rng_state") else None
    return generator, dict(_KERNEL_SEED)


def set_random_state(state: tuple) -> None:
    """Set what `random_state` returned."""
    generator, counts = state
    if generator is not None:
        ms.set_rng_state(generator)
    _KERNEL_SEED.clear()
    _KERNEL_SEED.update(counts)
