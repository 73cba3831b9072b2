"""A NumPy function as an operator of a graph on CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import ops

from ms_lossscale._versions import BFLOAT16


def numpy_operator(function: Callable, count: int, shape: Sequence[int], dtype: ms.Type) -> ops.Custom:
    """Return `function`, of `count` arrays, as an operator whose output has `shape`, not (), and `dtype`."""

    def call(*arrays):
        return function(*arrays)

    # MindSpore counts a function's inputs by its signature, and *arrays would be one.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    call.__signature__ = inspect.Signature([inspect.Parameter(f"array{i}", kind) for i in range(count)])
    return ops.Custom(call, lambda *shapes: tuple(shape), lambda *dtypes: dtype, "pyfunc")


numpy_values = ops.MultitypeFuncGraph("numpy_values")


@numpy_values.register("Tensor")
def _as_numpy_knows_it(value):
    # NumPy has no bfloat16; widening is exact.
    return ops.cast(value, ms.float32) if ops.dtype(value) in BFLOAT16 else value
