"""NumPy's passes over gradients in host memory, piece by piece: what the next line needs is still in the cache."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_lossscale._versions import BFLOAT16

# Elements in a piece.
PIECE = 1 << 16
# Elements from which on MindSpore multiplies faster: it keeps memory that NumPy would get from the system anew.
LARGE = 1 << 18


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


def _finite(piece):
    return np.isfinite(piece).all()
