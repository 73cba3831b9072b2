"""GPU: FloatStatus looks at each gradient."""

from mindspore import ops

from ms_lossscale.overflow.detector import GradientCheck

_float_status = ops.MultitypeFuncGraph("float_status")


@_float_status.register("Tensor")
def _tensor_float_status(grad):
    return ops.FloatStatus()(grad)


class FloatStatusCheck(GradientCheck):
    """NaN or Inf in the gradients, found one gradient at a time by GPU's own operator."""

    primitives = ("FloatStatus", "AddN")

    def overflow_of(self, grads):
        count = ops.addn(self.hyper_map(_float_status, grads))
        return self.sum_over_ranks(ops.reshape(count, ())) > 0
