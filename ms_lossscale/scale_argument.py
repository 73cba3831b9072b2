"""The arguments of a step: a network, an optimizer, and where the loss scale comes from."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.amp import LossScaleManager as NativeLossScaleManager

from ms_lossscale._errors import check_scale, message
from ms_lossscale._versions import BFLOAT16

WHO = "TrainOneStepWithLossScaleCell"


def check_training_parts(network, optimizer):
    """Raise unless `network` is a Cell and `optimizer` a Cell that holds parameters."""
    if not isinstance(network, nn.Cell):
        raise TypeError(message(WHO, "network", "a Cell that returns the loss", network))
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        raise TypeError(message(WHO, "optimizer", "an Optimizer", optimizer))
    if len(optimizer.parameters) == 0:
        raise ValueError(message(WHO, "optimizer", "an Optimizer with at least one parameter", optimizer))


def initial_scale(scale_sense):
    """Return the float32 Tensor a step starts from, given an update cell or a Tensor."""
    if isinstance(scale_sense, NativeLossScaleManager):
        raise TypeError(message(WHO, "scale_sense", "a Cell or a Tensor", scale_sense,
                                "Pass its update cell: manager.get_update_cell()."))
    if not isinstance(scale_sense, nn.Cell):
        return scale_tensor(WHO, "scale_sense", scale_sense)
    if not hasattr(scale_sense, "get_loss_scale"):
        raise TypeError(message(WHO, "scale_sense", "an update cell with the method 'get_loss_scale'", scale_sense))
    name, scale = "scale_sense.get_loss_scale()", scale_sense.get_loss_scale()
    if isinstance(scale, Tensor):
        return scale_tensor(WHO, name, scale)
    return Tensor(scale_number(WHO, name, scale), ms.float32)


def scale_number(who, name, scale):
    """Return `scale`, a number or a Tensor of one element, as a float."""
    if isinstance(scale, Tensor):
        scale = scale_tensor(who, name, scale).asnumpy().item()
    return float(check_scale(who, name, scale))


def scale_tensor(who, name, scale, shape=None):
    """Return `scale`, a Tensor of one float or int element, as a float32 Tensor of `shape`, its own if None."""
    if not isinstance(scale, Tensor):
        remedy = "Wrap a number: Tensor(1024.0, mindspore.float32)."
        raise TypeError(message(who, name, "a Cell or a Tensor" if who == WHO else "a Tensor", scale,
                                "Make an instance of it." if isinstance(scale, type) else remedy))
    if scale.shape not in ((), (1,)):
        raise ValueError(message(who, name, "a Tensor of shape () or (1,)", scale))
    if not (scale.is_floating_point() or "Int" in str(scale.dtype)):
        raise TypeError(message(who, name, "a Tensor of a float or int dtype", scale))
    value = (scale.astype(ms.float32) if scale.dtype in BFLOAT16 else scale).asnumpy()
    check_scale(who, name, value.item())
    return Tensor(value.astype(np.float32).reshape(scale.shape if shape is None else shape))
