"""NumPy's passes over gradients in host memory, piece by piece: what the next line needs is still in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_lossscale._versions import BFLOAT16

# Elements in a piece; compiled.c has as many in a block.
PIECE = 1 << 16
# Elements from which on MindSpore multiplies faster: it keeps memory that NumPy would get from the system anew.
LARGE = 1 << 18
# Sums that are made side by side, element by element in turn; compiled.c has as many, so both round alike.
LANES = 64


def host_view(grad: Tensor) -> np.ndarray:
    """Return a gradient as an array, in shared memory; bfloat16, which NumPy has not, as a float32 copy."""
    return (grad.astype(ms.float32) if grad.dtype in BFLOAT16 else grad).asnumpy()


def has_overflow(*arrays: np.ndarray) -> bool:
    """Return whether any of `arrays`, of float dtypes, holds a NaN or Inf."""
    for array in arrays:
        flat = np.asarray(array).reshape(-1)
        if not all(_finite(flat[start:start + PIECE]) for start in range(0, flat.size, PIECE)):
            return True
    return False


def multiplied(array: np.ndarray, factor: np.float32, look: bool) -> tuple[np.ndarray, bool]:
    """
    Return `array` times `factor`, a new array of the same dtype, and whether any product is NaN or infinite.

    Without `look` the latter is False. A float16 product is float32, and rounded once; a float64 product is float64.
    """
    product = np.empty(array.shape, array.dtype)
    flat, target = array.reshape(-1), product.reshape(-1)
    arithmetic = np.float64 if array.dtype == np.float64 else np.float32
    overflow = False
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, flat.size, PIECE):
            piece = target[start:start + PIECE]
            np.multiply(flat[start:start + PIECE], factor, out=piece, dtype=arithmetic, casting="same_kind")
            overflow = overflow or (look and not _finite(piece))
    return product, overflow


def sums_of_squares(array: np.ndarray) -> Iterator[float]:
    """Yield the sum of squares of every piece of `array` as float32: float64, not finite only if an element is not."""
    flat = array.reshape(-1).astype(np.float32, copy=False)
    for start in range(0, flat.size, PIECE):
        squares = np.square(flat[start:start + PIECE], dtype=np.float64)
        whole = squares.size // LANES * LANES
        lanes = np.add.reduce(squares[:whole].reshape(-1, LANES), axis=0)
        lanes[:squares.size - whole] += squares[whole:]
        yield sum(lanes.tolist())


def clip_factor(limit: np.float32, *arrays: np.ndarray) -> tuple[np.float32, np.float32, bool]:
    """
    Return the global norm of `arrays`, what limits it to `limit`, and whether an element is NaN or infinite.

    The sum of squares is float64, which holds that of any float32 numbers; norm and factor are rounded to float32.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        limit, norm = float(limit), math.sqrt(sum(total for array in arrays for total in sums_of_squares(array)))
        factor = limit / norm if norm > limit else 1.0
        return np.float32(norm), np.float32(factor), not math.isfinite(norm)


def _finite(piece):
    return np.isfinite(piece).all()
