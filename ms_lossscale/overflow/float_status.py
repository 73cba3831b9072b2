"""GPU: FloatStatus looks at each gradient."""

from mindspore import ops

from ms_lossscale.overflow.detector import GradientCheck


class FloatStatusCheck(GradientCheck):
    """NaN or Inf in the gradients, found one gradient at a time by GPU's own operator."""

    primitives = ("FloatStatus", "AddN")

    def __init__(self, distributed):
        super().__init__(distributed)
        self.float_status = ops.FloatStatus()

    def overflow_of(self, grads):
        count = self.total(self.hyper_map(self.float_status, grads))
        return self.sum_over_ranks(ops.reshape(count, ())) > 0
