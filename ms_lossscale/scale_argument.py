"""The arguments of a step: a network, an optimizer, and where the loss scale comes from."""

import mindspore as ms
from mindspore import Tensor, nn
from mindspore.amp import LossScaleManager as NativeLossScaleManager

from ms_lossscale._errors import check_scale, message

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
    if isinstance(scale_sense, nn.Cell):
        if not hasattr(scale_sense, "get_loss_scale"):
            raise TypeError(message(WHO, "scale_sense", "an update cell with the method 'get_loss_scale'", scale_sense))
        scale = scale_sense.get_loss_scale()
        if not isinstance(scale, Tensor):
            return Tensor(scale_number(WHO, "scale_sense.get_loss_scale()", scale), ms.float32)
        scale_sense = scale
    return scale_tensor(WHO, "scale_sense", scale_sense)


def scale_number(who, name, scale):
    """Return `scale`, a number or a Tensor of one element, as a float."""
    if isinstance(scale, Tensor):
        scale = scale_tensor(who, name, scale).asnumpy().item()
    return float(check_scale(who, name, scale))


def scale_tensor(who, name, scale, shape=None):
    """Return `scale`, a Tensor of one float or int element, as a float32 Tensor of `shape`, its own if None."""
    if not isinstance(scale, Tensor):
        raise TypeError(message(who, name, "a Cell or a Tensor" if who == WHO else "a Tensor", scale,
                                "Wrap a number: Tensor(1024.0, mindspore.float32)."))
    if scale.shape not in ((), (1,)):
        raise ValueError(message(who, name, "a Tensor of shape () or (1,)", scale))
    if scale.dtype == ms.bool_ or not (scale.is_floating_point() or "Int" in str(scale.dtype)):
        raise TypeError(message(who, name, "a Tensor of a float or int dtype", scale))
    value = scale.astype(ms.float32).asnumpy()
    check_scale(who, name, value.item())
    return Tensor(value if shape is None else value.reshape(shape))
