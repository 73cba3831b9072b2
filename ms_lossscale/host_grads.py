"""Whether gradients are finite, as TensorFlow sees it: for the loss scales that live on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MappingView, Sequence

import numpy as np
from mindspore import Tensor

from ms_lossscale._errors import FLOAT32_MAX, message
from ms_lossscale._versions import FLOAT_DTYPES, RowTensor
from ms_lossscale.finite import all_finite
from ms_lossscale.host_pass import host_view

RULE = "float Tensors, RowTensors, arrays or numbers, in tuples, lists or dicts"


def grads_are_finite(grads: object) -> bool:
    """Return whether all are finite; None counts for nothing."""
    tensors, finite = [], True
    for grad in _leaves(grads):
        if isinstance(grad, RowTensor):
            tensors.append(_float_tensor(grad.values))
            finite = finite and _sums_are_finite(grad)
        elif isinstance(grad, Tensor):
            tensors.append(_float_tensor(grad))
        else:
            finite = finite and bool(np.isfinite(_float_array(grad)).all())
    return finite and (not tensors or bool(all_finite(tuple(tensors))))


def _leaves(grads: object) -> Iterator:
    """Yield what TensorFlow's nests hold, but None. Keys that cannot be sorted are a TypeError there, too."""
    if isinstance(grads, Mapping):
        grads = [grads[key] for key in sorted(grads)]
    if isinstance(grads, (Sequence, MappingView)) and not isinstance(grads, (str, bytes)):
        for item in grads:
            yield from _leaves(item)
    elif grads is not None:
        yield grads


def _float_tensor(grad: Tensor) -> Tensor:
    if grad.dtype not in FLOAT_DTYPES:
        raise TypeError(message("update", "grads", RULE, grad.dtype))
    return grad


def _float_array(grad: object) -> np.ndarray:
    if isinstance(grad, float) and not isinstance(grad, np.generic) and FLOAT32_MAX < abs(grad) < np.inf:
        raise ValueError(message("update", "grads", "inside float32 if a Python number", grad))
    array = np.asarray(grad)
    if array.dtype.kind == "O":
        raise ValueError(message("update", "grads", RULE, grad))
    if array.dtype.kind != "f":
        raise TypeError(message("update", "grads", RULE, grad))
    return array


def _sums_are_finite(grad: RowTensor) -> bool:
    """Rows given twice are added up, as TensorFlow does before it looks."""
    rows, place = np.unique(grad.indices.asnumpy(), return_inverse=True)
    if len(rows) == len(place):
        return True
    values = host_view(grad.values)
    sums = np.zeros((len(rows), *values.shape[1:]), values.dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(sums, place.reshape(-1), values)
    return bool(np.isfinite(sums).all())
