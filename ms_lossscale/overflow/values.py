"""The values of gradients, whatever form they come in."""

from mindspore import nn, ops

from ms_lossscale._versions import RowTensor

values = ops.MultitypeFuncGraph("values")


@values.register("Tensor")
def _tensor_values(grad):
    return grad


@values.register("RowTensor")
def _row_tensor_values(grad):
    return grad.values


def gives_row_tensors(network: nn.Cell) -> bool:
    """Return whether an operator held by a cell of `network` has RowTensor gradients in a graph."""
    return any(isinstance(held, ops.Primitive) and held.attrs.get("bprop_return_sparse", False)
               for _, cell in network.cells_and_names() for held in vars(cell).values())


def flatten(grads):
    """Return the Tensors in `grads`, a Tensor, RowTensor or (nested) tuple or list of them, as a flat list."""
    if isinstance(grads, (tuple, list)):
        return [tensor for grad in grads for tensor in flatten(grad)]
    return [grads.values if isinstance(grads, RowTensor) else grads]
