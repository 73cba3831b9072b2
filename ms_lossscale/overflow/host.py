"""CPU: NumPy looks at the gradients, in one pass over memory it shares with them."""

import inspect

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_lossscale._errors import check_tensors
from ms_lossscale._versions import BFLOAT16
from ms_lossscale.overflow.detector import GradientCheck
from ms_lossscale.overflow.values import flatten

# Elements looked at together: the flags of one piece stay in the cache.
PIECE = 1 << 16


def has_overflow(*arrays):
    """Return whether any of `arrays`, float NumPy arrays, holds a NaN or Inf."""
    for array in arrays:
        flat = np.asarray(array).reshape(-1)
        for start in range(0, flat.size, PIECE):
            if not np.isfinite(flat[start:start + PIECE]).all():
                return True
    return False


def _flag_operator(count):
    """Return a graph operator: `count` arrays to a bool of shape (1,)."""

    def overflow_flag(*arrays):
        return np.array([has_overflow(*arrays)])

    # MindSpore counts a function's inputs by its signature, and *arrays would be one.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    overflow_flag.__signature__ = inspect.Signature([inspect.Parameter(f"grad{i}", kind) for i in range(count)])
    return ops.Custom(overflow_flag, lambda *shapes: (1,), lambda *dtypes: ms.bool_, "pyfunc")


_numpy_values = ops.MultitypeFuncGraph("numpy_values")


@_numpy_values.register("Tensor")
def _as_numpy_knows_it(grad):
    # NumPy has no bfloat16; widening is exact.
    return ops.cast(grad, ms.float32) if ops.dtype(grad) in BFLOAT16 else grad


class HostCheck(GradientCheck):
    """
    NaN or Inf in the gradients, found on the host.

    In a graph one operator looks at all gradients if there are `count` of them, else one operator at each. Outside
    a graph NumPy reads the gradients where they lie.
    """

    primitives = ("Custom(pyfunc)",)

    def __init__(self, distributed, count):
        super().__init__(distributed)
        self.count = count
        self.flag_of_all = _flag_operator(count)
        self.flag_of_one = _flag_operator(1)

    def overflow_of(self, grads):
        arrays = self.hyper_map(_numpy_values, grads)
        if len(arrays) == self.count:
            flag = self.flag_of_all(*arrays)
        else:
            flag = Tensor([False])
            for array in arrays:
                flag = ops.logical_or(flag, self.flag_of_one(array))
        return self.any_rank(ops.reshape(flag, ()))

    def __call__(self, status, compute_output):
        """The same outside a graph."""
        check_tensors("get_overflow_status", "compute_output", compute_output)
        return self.any_rank(Tensor(has_overflow(*map(_host_view, flatten(compute_output)))))


def _host_view(grad):
    return (grad.astype(ms.float32) if grad.dtype in BFLOAT16 else grad).asnumpy()
