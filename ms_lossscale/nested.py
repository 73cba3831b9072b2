"""Gradients nested in tuples, lists and dicts: their product with a factor, in a graph and outside one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from mindspore import Tensor, nn, ops
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import message
from ms_lossscale._versions import FLOAT_DTYPES, RowTensor
from ms_lossscale.gradients import times_row_tensor, times_tensor


class NestedTimes(nn.Cell):
    """Every float Tensor and RowTensor in a structure times a float32 factor; None stays None."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.hyper_map = ops.HyperMap()

    def __call__(self, factor, inputs):
        return map_nested(lambda leaf: _times(factor, leaf), inputs)

    def construct(self, factor, inputs):
        return self.hyper_map(ops.partial(_graph_times, factor), inputs)


def map_nested(function: Callable, inputs: object) -> object:
    """Return a structure like `inputs` of what `function` returns for each leaf but None."""
    if inputs is None:
        return None
    if isinstance(inputs, Mapping):
        mapped = copy.copy(inputs)
        for name, item in inputs.items():
            mapped[name] = map_nested(function, item)
        return mapped
    if isinstance(inputs, (tuple, list)):
        items = [map_nested(function, item) for item in inputs]
        return type(inputs)(*items) if hasattr(inputs, "_fields") else type(inputs)(items)
    return function(inputs)


def _times(factor: Tensor, leaf: object) -> object:
    if isinstance(leaf, RowTensor):
        check_dtype(leaf.values.dtype)
        return times_row_tensor(factor, leaf)
    if not isinstance(leaf, Tensor):
        raise TypeError(message("LossScaler", "inputs", "float Tensors, in tuples, lists or dicts", leaf))
    check_dtype(leaf.dtype)
    return times_tensor(factor, leaf)


@constexpr
def check_dtype(dtype):
    """Raise, while a graph is compiled or outside one, for what a scale cannot multiply."""
    if dtype not in FLOAT_DTYPES:
        raise TypeError(message("LossScaler", "inputs", "float Tensors, in tuples, lists or dicts", dtype))


_graph_times = ops.MultitypeFuncGraph("graph_times")


@_graph_times.register("Tensor", "Tensor")
def _graph_times_tensor(factor, leaf):
    check_dtype(ops.dtype(leaf))
    return times_tensor(factor, leaf)


@_graph_times.register("Tensor", "RowTensor")
def _graph_times_row_tensor(factor, leaf):
    check_dtype(ops.dtype(leaf.values))
    return times_row_tensor(factor, leaf)


@_graph_times.register("Tensor", "None")
def _graph_times_none(factor, leaf):
    return leaf
