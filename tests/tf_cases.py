"""Reads data/tf_loss_scale_cases.json, what TensorFlow's own objects did, and replays a case on this package's.

The file's `codec` says how values are written. `replay(case)` returns what happened in the same encoding.
"""

import copy
import enum
import json
import pickle
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor
from mindspore.common.sparse_tensor import RowTensorInner as RowTensor
from mindspore_version import V200

from ms_lossscale import DynamicLossScale, FixedLossScale, LossScale, get_loss_scale

CASES = json.loads((Path(__file__).parent / "data" / "tf_loss_scale_cases.json").read_text(encoding="utf-8"))["cases"]
CLASSES = {"FixedLossScale": FixedLossScale, "DynamicLossScale": DynamicLossScale, "LossScale": LossScale}


class IntSubclass(int):
    """A class of the user."""


class FloatSubclass(float):
    """A class of the user."""


class Eight(enum.IntEnum):
    """An enumeration of the user."""

    EIGHT = 8


SCALARS = {
    "float": float, "complex": complex, "Decimal": Decimal, "Fraction": Fraction, "bytes": str.encode,
    "int_subclass": IntSubclass, "float_subclass": FloatSubclass,
    "int": lambda power: int(power.split("**")[0]) ** int(power.split("**")[1]),
}


def decode(value):
    """Return the Python object that `value` stands for."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    kind, content = value["$"], value.get("v")
    if kind in SCALARS:
        return SCALARS[kind](content)
    if kind == "tuple":
        return tuple(decode(item) for item in content)
    if kind == "dict":
        return {key: decode(item) for key, item in content}
    if kind == "np":
        return np.dtype(value["dtype"]).type(content)
    if kind == "ndarray":
        return np.array(content, value["dtype"])
    if kind == "tensor":
        return _tensor(content, value["dtype"])
    if kind == "variable":
        return Parameter(_tensor(content, value["dtype"]), name="variable")
    if kind == "slices":
        return RowTensor(Tensor(value["indices"], ms.int32), _tensor(value["values"], value["dtype"]),
                         tuple(value["dense_shape"]))
    return {"object": object, "IntEnum": lambda: Eight.EIGHT, "lambda": lambda: (lambda: 8),
            "instance": lambda: CLASSES[value["class"]](*decode(value["args"]))}[kind]()


def _tensor(content, dtype):
    if dtype == "bfloat16":
        array = np.array(content, np.float32)
        return Tensor(array, ms.bfloat16) if hasattr(ms, "bfloat16") else Tensor(array)  # 2.0.0 has none
    array = np.array(content, dtype)
    return array if array.size == 0 and V200 else Tensor(array)  # nor empty Tensors


def encode(value):
    """Return `value` as the file would write it; floats are kept, so that NaN and -0.0 can be compared by text."""
    if isinstance(value, Tensor):
        array = value.asnumpy()
        return {"tensor": {"dtype": array.dtype.name, "shape": list(array.shape), "value": encode(array.item())}}
    if isinstance(value, dict):
        return {"$": "dict", "v": [[key, encode(item)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not np.isfinite(value):
        return {"$": "float", "v": str(value)}
    return value


def replay(case):
    """Return {"returns": ...} or {"raises": type name} of this package."""
    try:
        return {"returns": encode_fields(REPLAYS[case["group"]](case), expected(case).get("returns"))}
    except Exception as error:
        return {"raises": type(error).__name__}


# Fields that tell TensorFlow's own types, and the int64 of a counter that is a Python int here.
TYPES_OF_TENSORFLOW = {"fixed/call": ("repr", "type"), "dynamic/update": ("should_apply_type", "update_op_type"),
                       "dynamic/construct": ("counter_dtype",), "dynamic/config": ("counter_dtype",)}


def expected(case):
    """Return the recorded outcome in the form of `replay`."""
    if "raises" in case["expect"]:
        return {"raises": case["expect"]["raises"]["type"]}
    recorded = case["expect"]["returns"]
    if isinstance(recorded, dict) and "$" not in recorded:
        recorded = {name: value for name, value in recorded.items()
                    if name not in TYPES_OF_TENSORFLOW.get(case["group"], ())}
        if recorded.get("update_op") == {"variable": {"dtype": "int64"}}:
            recorded["update_op"] = None  # the updated variable, from a step that only counts
    return {"returns": recorded}


def encode_fields(result, recorded):
    if isinstance(result, dict) and "$" not in recorded:
        return {name: encode(result[name]) for name in recorded}
    return encode(result)


def make(case):
    return CLASSES[case["cls"]](*decode(case["args"]))


def describe_fixed(loss_scale):
    value = loss_scale.get_config()["loss_scale_value"]
    return {"config": loss_scale.get_config(), "loss_scale_value": value, "repr": repr(loss_scale),
            "str": str(loss_scale), "value_type": type(value).__name__}


def describe_dynamic(loss_scale):
    numbers = (loss_scale.initial_loss_scale, loss_scale.increment_period, loss_scale.multiplier)
    return {"config": loss_scale.get_config(), "counter": good_steps(loss_scale), "initial_loss_scale": numbers[0],
            "increment_period": numbers[1], "multiplier": numbers[2], "repr": repr(loss_scale),
            "scale": scale(loss_scale), "scale_dtype": loss_scale().asnumpy().dtype.name,
            "types": [type(number).__name__ for number in numbers]}


def scale(loss_scale):
    return loss_scale().asnumpy().item()


def good_steps(loss_scale):
    return loss_scale.state_dict()["num_good_steps"]


def construct(case):
    return (describe_fixed if case["cls"] == "FixedLossScale" else describe_dynamic)(make(case))


def call(case):
    loss_scale = make(case)
    return loss_scale() is loss_scale() if case["id"].endswith("same_object_twice") else loss_scale()


def update(case):
    loss_scale = make(case)
    if ".update_returns." in case["id"]:
        _, should_apply = loss_scale.update([Tensor(float("inf") if case["id"].endswith("bad_step") else 1.0)])
        return {"repr": repr(loss_scale), "should_apply_dtype": should_apply.asnumpy().dtype.name,
                "should_apply_shape": list(should_apply.shape)}
    if "kwargs" in case or "grads" not in case:
        return loss_scale.update(**{name: decode(value) for name, value in case.get("kwargs", {}).items()})
    returned = loss_scale.update(decode(case["grads"]))
    result = {"tuple_len": len(returned), "update_op": returned[0], "should_apply": returned[1],
              "scale_after": scale(loss_scale)}
    if case["cls"] == "FixedLossScale":
        return {**result, "should_apply_type": type(returned[1]).__name__, "update_op_type": type(returned[0]).__name__}
    return {**result, "counter_after": good_steps(loss_scale)}


def config(case):
    if "config" in case:
        given = decode(case["config"])
        before = copy.deepcopy(given)
        loss_scale = CLASSES[case["cls"]].from_config(given)
        described = (describe_fixed if case["cls"] == "FixedLossScale" else describe_dynamic)(loss_scale)
        return {**described, "config_untouched": given == before}
    loss_scale = make(case)
    first = loss_scale.get_config()
    if case["id"].endswith("mutating_result_does_not_leak"):
        first["loss_scale_value"] = 5.0
        return loss_scale.get_config()
    again = type(loss_scale).from_config(first)
    return {"config": first, "again": again.get_config(), "fresh_dict_each_call": first is not loss_scale.get_config(),
            "repr": repr(again), "type": type(again).__name__, "scale_of_copy_is_initial": scale(again)}


def duplicate(case):
    source = make(case)
    duplicated = {"copy": copy.copy, "deepcopy": copy.deepcopy,
                  "pickle": lambda value: pickle.loads(pickle.dumps(value))}[case["id"].split(".")[-1]](source)
    result = {"call": scale(duplicated), "config_equal": source.get_config() == duplicated.get_config(),
              "repr": repr(duplicated), "equal_by_eq": source == duplicated, "type": type(duplicated).__name__}
    if case["cls"] == "FixedLossScale":
        source._loss_scale_value = 99.0
        return {**result, "dup_after_src_private_change": scale(duplicated)}
    source.update([Tensor(float("nan"))])
    after_backoff = scale(duplicated)
    duplicated.update([Tensor(1.0)])
    return {**result, "dup_scale_after_src_backoff": after_backoff,
            "src_counter_after_dup_good_step": good_steps(source)}


def sequence(case):
    loss_scale, scales, counters, applied = make(case), [], [], ""
    for bit in case["finite_bits"]:
        _, should_apply = loss_scale.update([Tensor(1.0 if bit == "1" else float("nan"))])
        applied += "1" if should_apply else "0"
        scales.append(scale(loss_scale))
        counters.append(good_steps(loss_scale))
    return {"scales": scales, "counters": counters, "should_apply_equals_bits": applied == case["finite_bits"]}


def get(case):
    if case["id"].endswith("instance_is_returned_itself"):
        loss_scale = FixedLossScale(8)
        return get_loss_scale(loss_scale) is loss_scale
    loss_scale = get_loss_scale(*decode(case["args"]))
    return loss_scale and {"config": loss_scale.get_config(), "instance": type(loss_scale).__name__}


REPLAYS = {
    "fixed/construct": construct, "dynamic/construct": construct, "fixed/call": call, "fixed/update": update,
    "dynamic/update": update, "fixed/config": config, "dynamic/config": config, "object/copy": duplicate,
    "dynamic/sequence": sequence, "get/train": get, "get/keras": get,
}
