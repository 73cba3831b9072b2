"""The network's non-trainable state, such as BatchNorm's statistics, kept and put back."""

from mindspore import Parameter, ParameterTuple, nn, ops


class Restore(nn.Cell):
    """Keeps a copy of the Parameters of `network` that are not trained, and puts it back."""

    def __init__(self, network, prefix="kept"):
        super().__init__(auto_prefix=False)
        buffers = [parameter for parameter in network.get_parameters() if not parameter.requires_grad]
        self.buffers = ParameterTuple(buffers)
        self.kept = ParameterTuple([Parameter(buffer.copy(), name=f"{prefix}.{buffer.name}", requires_grad=False)
                                    for buffer in buffers])
        self.hyper_map = ops.HyperMap()

    def keep(self, before):
        """Copy the state; return `before`."""
        return ops.depend(before, self.hyper_map(_copy, self.kept, self.buffers))

    def construct(self, after):
        """Put the state back; return `after`."""
        return ops.depend(after, self.hyper_map(_copy, self.buffers, self.kept))


_copy = ops.MultitypeFuncGraph("copy")


@_copy.register("Tensor", "Tensor")
def _copy_to(target, source):
    return ops.assign(target, source)
