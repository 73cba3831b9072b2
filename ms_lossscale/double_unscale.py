"""Notices on the host that gradients are divided by the loss scale a second time."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from functools import partial

from mindspore import Parameter, Tensor, nn

from ms_lossscale._errors import LossScaleWarning
from ms_lossscale._versions import RowTensor, refuse_trace
from ms_lossscale.finite import leaves


class DoubleUnscale(nn.Cell):
    """
    Passes on what it is given, and outside a graph keeps a record of it.

    Gradients are divided twice if a Tensor comes back that `unscale` took or returned; or if gradients alike in
    shape and dtype come more often than a loss was scaled: a clipped gradient is another Tensor. Without a call of
    `scale` outside a graph only the first is known. A bare Tensor may be a loss, so the second is not asked of it.
    """

    def __init__(self, owner):
        super().__init__(auto_prefix=False)
        self.record = Record(owner)

    def __call__(self, event, inputs):
        refuse_trace(self.record.owner)
        getattr(self.record, event)(inputs)
        return inputs

    def construct(self, event, inputs):
        return inputs


class Record:
    """What one scaler saw since the last new scale."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._tensors = {}
        self._count_anew()

    def _count_anew(self) -> None:
        self._scaled = 0
        self._unscaled = Counter()

    def scaling(self, inputs: object) -> None:
        """A loss is to be scaled; several may be, before their gradients are unscaled."""
        if self._unscaled:
            self._count_anew()
        self._tensors = {}
        self._scaled += 1

    def adjusting(self, inputs: object) -> None:
        """The step is over."""
        self._count_anew()

    def unscaling(self, inputs: object) -> None:
        """Gradients, or a loss, are to be unscaled."""
        tensors = _tensors(inputs)
        bare = isinstance(inputs, (Tensor, RowTensor))
        alike = "bare" if bare else tuple(map(_shape_and_dtype, tensors))
        self._unscaled[alike] += 1
        seen = any(id(tensor) in self._tensors for tensor in tensors)
        seen = seen or (not bare and 0 < self._scaled < self._unscaled[alike])
        if seen:
            warnings.warn(
                f"For '{self.owner}', 'unscale' was called again for gradients that it has already divided by the "
                "loss scale, with no 'scale' in between: they become too small by the loss scale. Unscale once, "
                "before clipping or anything else that looks at the gradients.", LossScaleWarning, stacklevel=4)
        self._remember(tensors)

    def unscaled(self, outputs: object) -> None:
        """These were returned."""
        self._remember(_tensors(outputs))

    def _remember(self, tensors: list) -> None:
        known = self._tensors
        for tensor in tensors:
            if not isinstance(tensor, Parameter):  # an accumulator, which holds other gradients by now
                number = id(tensor)
                known[number] = weakref.ref(tensor, partial(_drop, known, number))


def _drop(known: dict, number: int, _: weakref.ref) -> None:
    known.pop(number, None)


def _tensors(inputs: object) -> list:
    return [leaf for leaf in leaves(inputs) if isinstance(leaf, (Tensor, RowTensor))]


def _shape_and_dtype(tensor: Tensor | RowTensor) -> tuple:
    values = tensor.values if isinstance(tensor, RowTensor) else tensor
    return tuple(values.shape), str(values.dtype)
