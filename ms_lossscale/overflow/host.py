"""CPU: one operator, compiled or NumPy's, looks at all gradients; outside a graph NumPy does, where they lie."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from ms_lossscale._errors import check_tensors
from ms_lossscale.compiled import operator
from ms_lossscale.host_pass import has_overflow, host_view
from ms_lossscale.numpy_operator import numpy_operator, numpy_values
from ms_lossscale.overflow.detector import GradientCheck
from ms_lossscale.overflow.values import flatten


def _flag(*arrays):
    return np.array([has_overflow(*arrays)])


class HostCheck(GradientCheck):
    """
    NaN or Inf in the gradients, found on the host.

    In a graph one operator looks at all gradients, a compiled one if this installation has it. NumPy's takes `count`
    of them; if there are more or fewer, one operator looks at each. Outside a graph NumPy reads them where they lie.
    """

    primitives = ("Custom(pyfunc)",)

    def __init__(self, distributed, count):
        super().__init__(distributed)
        self.not_finite = operator("not_finite")
        if self.not_finite is not None:
            self.primitives = ("Custom(aot)",)
        self.count = count
        self.flag_of_all = numpy_operator(_flag, count, [1], ms.bool_)
        self.flag_of_one = numpy_operator(_flag, 1, [1], ms.bool_)

    def overflow_of(self, grads):
        if self.not_finite is not None:
            return self.any_rank(ops.reshape(self.not_finite(*grads), ()))
        arrays = self.hyper_map(numpy_values, grads)
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
        return self.any_rank(Tensor(any(has_overflow(host_view(grad)) for grad in flatten(compute_output))))
