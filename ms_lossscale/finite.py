"""all_finite: whether gradients, however nested, are free of NaN and Inf, by the device's own detector."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops.functional import typeof
from mindspore.ops.primitive import constexpr

from ms_lossscale._errors import LossScaleWarning, message
from ms_lossscale._versions import FLOAT_DTYPES, RowTensor, refuse_trace
from ms_lossscale.overflow.detector import Detector
from ms_lossscale.overflow.table import Choice, build, choose

DETECTOR = "detector_of_"


def all_finite(inputs):
    """
    Tell whether gradients are free of NaN and Inf, as :func:`mindspore.amp.all_finite` does.

    On an Ascend device with an overflow register it reads the register, and clears it. Under data parallelism, call
    it on gradients that were reduced over the ranks: then all ranks get the same answer.

    Args:
        inputs (Union[Tensor, RowTensor, tuple, list, dict, None]): The gradients, nested as you like. None stands
            for a gradient that there is not. A Tensor that is empty, or of no float dtype, is finite.

    Returns:
        Tensor, a bool of shape :math:`()`, True if all are finite. Without any Tensor it is True, and a
        :class:`LossScaleWarning` says so.

    Raises:
        TypeError: If `inputs` holds anything else.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Tensor
        >>> from ms_lossscale import all_finite
        >>> grads = {"weight": Tensor([1.0, 2.0], ms.float16), "bias": None}
        >>> print(all_finite(grads))
        True
        >>> print(all_finite([grads, Tensor(float("inf"))]))
        False
    """
    return _all_finite(inputs)


def leaves(inputs: object) -> Iterator:
    """Yield what nested tuples, lists and dicts hold, but None."""
    if isinstance(inputs, (tuple, list, Mapping)):
        for item in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from leaves(item)
    elif inputs is not None:
        yield inputs


class AllFinite(nn.Cell):
    """all_finite in a graph; called outside a graph, the same on the host."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.hyper_map = ops.HyperMap()

    def __call__(self, inputs):
        refuse_trace("all_finite")
        grads = tuple(_values(leaf) for leaf in leaves(inputs))
        if not grads:
            return Tensor(no_gradients())
        grads = tuple(grad for grad in grads if can_overflow(grad.dtype, grad.shape))
        return ops.logical_not(overflow_of(self, grads, False)) if grads else Tensor(True)

    def construct(self, inputs):
        if not holds(typeof(inputs), "Tensor[") and no_gradients():
            return Tensor(True)
        grads = self.hyper_map(_graph_values, inputs)
        return ops.logical_not(nested_overflow(self, grads, holds(typeof(inputs), "RowTensor[")))

    def __getattr__(self, name):
        # Not before it is used: the device target may still be set after the import.
        if name.startswith(DETECTOR):
            count, row_tensors = name[len(DETECTOR):].split("_")
            return _detector(choose(), int(count), row_tensors == "True")
        return super().__getattr__(name)


def nested_overflow(check, grads, row_tensors):
    """Return what the detector says of each flat tuple in `grads`. (A method that calls itself hangs MindSpore 2.0.)"""
    kind = nesting(typeof(grads))
    if kind == "tensor":
        return overflow_of(check, (grads,), row_tensors)
    if kind == "flat":
        return overflow_of(check, grads, row_tensors)
    if kind == "dict":
        return nested_overflow(check, tuple(grads.values()), row_tensors)
    overflow = Tensor(False)
    for grad in grads:
        overflow = ops.logical_or(overflow, nested_overflow(check, grad, row_tensors))
    return overflow


def overflow_of(check, grads, row_tensors):
    """Return what the detector says of a flat tuple. Its start belongs before the forward pass, which is over."""
    detector = getattr(check, detector_name(len(grads), row_tensors))
    return detector(Tensor([0] * 8, ms.int32), grads)


@lru_cache(maxsize=64)
def _detector(choice: Choice, count: int, row_tensors: bool) -> Detector:
    detector = build(choice, False, count)
    detector.row_tensors = row_tensors
    return detector


@constexpr
def detector_name(count, row_tensors):
    """Return the attribute of AllFinite that is the detector for `count` gradients."""
    return f"{DETECTOR}{count}_{row_tensors}"


@constexpr
def holds(kind, part):
    """Return whether a structure of this type holds such a part."""
    return part in str(kind)


@constexpr
def nesting(kind):
    """Return what a structure of this type is: "tensor", "dict", "flat" or "nested"."""
    kind = str(kind)
    if kind.startswith("Tensor["):
        return "tensor"
    if kind.startswith("Dictionary["):
        return "dict"
    return "flat" if re.fullmatch(r"(Tuple|List)\[(Tensor\[\w+\](\*\d+)?,?)+\]", kind) else "nested"


@constexpr
def can_overflow(dtype, shape):
    """Return whether a Tensor of this dtype and shape can hold NaN or Inf."""
    return dtype in FLOAT_DTYPES and 0 not in shape


@constexpr
def no_gradients():
    """Warn, while a graph is compiled or outside one; return the answer."""
    warnings.warn("all_finite was given no gradients, so it answers True. Check that gradients were taken with "
                  "respect to the weights that are to be trained.", LossScaleWarning, stacklevel=4)
    return True


def _values(leaf: object) -> Tensor:
    if isinstance(leaf, RowTensor):
        return leaf.values
    if isinstance(leaf, Tensor):
        return leaf
    raise TypeError(message("all_finite", "inputs", "Tensors, in tuples, lists or dicts", leaf))


_graph_values = ops.MultitypeFuncGraph("graph_values")


@_graph_values.register("Tensor")
def _tensor_values(grad):
    if can_overflow(ops.dtype(grad), ops.shape(grad)):
        return grad
    return Tensor(0.0, ms.float32)


@_graph_values.register("RowTensor")
def _row_tensor_values(grad):
    return _tensor_values(grad.values)


@_graph_values.register("None")
def _no_values(grad):
    return Tensor(0.0, ms.float32)


_all_finite = AllFinite()
