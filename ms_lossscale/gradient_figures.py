"""What can be counted in one gradient."""

from __future__ import annotations

from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_lossscale._versions import BFLOAT16


@dataclass(frozen=True)
class Range:
    """The range of a float dtype."""

    name: str
    largest: float
    smallest_normal: float


RANGES = {dtype: Range(name, float(info.max), float(info.tiny)) for dtype, name, info in (
    (ms.float16, "float16", np.finfo(np.float16)), (ms.float32, "float32", np.finfo(np.float32)))}
RANGES.update({dtype: Range("bfloat16", 2.0**127 * (2 - 2.0**-7), 2.0**-126) for dtype in BFLOAT16})


@dataclass(frozen=True)
class GradientFigures:
    """
    One parameter's gradient as the backward pass gave it, so times the scale.

    Attributes:
        name (str): The parameter's name.
        elements (int): Their number.
        nan (int): Those that are NaN.
        inf (int): Those that are infinite.
        at_limit (int): Those at the largest finite number of their dtype, or of the asked one.
        zero (float): The share that is 0.
        below (float): The share that is 0 or below the asked dtype's normal range.
        largest (float): The largest finite magnitude.
    """

    name: str
    elements: int
    nan: int
    inf: int
    at_limit: int
    zero: float
    below: float
    largest: float

    @property
    def finite(self) -> bool:
        """Whether there is no NaN and no Inf."""
        return self.nan == self.inf == 0


def figures_of(name: str, grad: Tensor, asked: Range) -> GradientFigures:
    """Count in `grad`, of any float dtype."""
    own = RANGES.get(grad.dtype)
    values = np.abs((grad.astype(ms.float32) if grad.dtype in BFLOAT16 else grad).asnumpy()).reshape(-1)
    finite = np.isfinite(values)
    limits = [asked.largest] if own is None else [asked.largest, own.largest]
    count = max(values.size, 1)
    return GradientFigures(
        name, values.size, int(np.isnan(values).sum()), int(np.isinf(values).sum()),
        int(np.isin(values.astype(np.float64), limits).sum()), float((values == 0).sum() / count),
        float((values < asked.smallest_normal).sum() / count), float(values[finite].max(initial=0.0)))
