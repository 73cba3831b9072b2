"""Finds the layer of a network that is the first to give NaN or Inf."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from ms_lossscale._versions import FLOAT_DTYPES
from ms_lossscale.finite import leaves


def first_not_finite(network: nn.Cell, inputs: tuple) -> str | None:
    """Run the forward pass in PYNATIVE mode; return where the first NaN or Inf is, in words, or None if nowhere."""
    for place, value in enumerate(inputs):
        if not finite(value):
            return f"input {place}, before the forward pass"
    for parameter in network.get_parameters():
        if not finite(parameter):
            return f"parameter '{parameter.name}', before the forward pass"
    found = []
    handles = []
    try:
        for name, cell in network.cells_and_names():
            handles.append(cell.register_forward_hook(noting_hook(found, _label(name, cell))))
        network(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    return f"{found[0]}, forward" if found else None


def noting_hook(found, label):
    """Return a hook that notes `label` if the layer's output is not finite. MindSpore wants a plain function."""
    def hook(cell, inputs, output):
        if not all(map(finite, leaves(output))):
            found.append(label)
    return hook


def finite(value: object) -> bool:
    """Return whether `value` is no float Tensor, or one without NaN and Inf."""
    if not isinstance(value, Tensor) or value.dtype not in FLOAT_DTYPES:
        return True
    return bool(np.isfinite(value.astype(ms.float32).asnumpy()).all())


def _label(name, cell):
    return f"layer '{name}' ({type(cell).__name__})" if name else f"the network itself ({type(cell).__name__})"
