"""What both functional scalers share: a loss scale held in a Parameter, and what is multiplied by it."""

from __future__ import annotations

from itertools import count

import mindspore as ms
from mindspore import Parameter, Tensor, ops

from ms_lossscale._errors import check_state_names
from ms_lossscale._versions import assign_now
from ms_lossscale.double_unscale import DoubleUnscale
from ms_lossscale.nested import NestedTimes

_times = NestedTimes()
_number_of_scaler = count(1)


class HeldScale:
    """Holds `scale_value` and other state, each in a Parameter of its own; `state_names` are their names."""

    def __init__(self, **state: float) -> None:
        self.state_names = tuple(state)
        # In a graph two Parameters must not have the same name; of one scaler, they are MindSpore's.
        number = next(_number_of_scaler)
        for name, value in state.items():
            dtype = ms.float32 if name == "scale_value" else ms.int32
            unique = name if number == 1 else f"{name}_{number}"
            setattr(self, name, Parameter(Tensor(value, dtype), name=unique, requires_grad=False))
        self.watch = DoubleUnscale(type(self).__name__)

    def scale(self, inputs):
        """
        Multiply a loss by the loss scale, in float32 arithmetic.

        Args:
            inputs (Union[Tensor, tuple, list, dict, None]): The loss, or several, nested as you like; of any float
                dtype.

        Returns:
            The same structure with every Tensor multiplied, in its own dtype.

        Raises:
            TypeError: If `inputs` holds anything but float Tensors, RowTensors and None.
        """
        inputs = self.watch("scaling", inputs)
        return _times(self.scale_value, inputs)

    def unscale(self, inputs):
        """
        Multiply gradients by the reciprocal of the loss scale, in float32 arithmetic.

        Args:
            inputs (Union[Tensor, RowTensor, tuple, list, dict, None]): The gradients, or a loss, nested as you like;
                of any float dtype.

        Returns:
            The same structure with every Tensor divided, in its own dtype. Of gradients that were divided before,
            with no `scale` in between, a :class:`LossScaleWarning` tells, unless this is compiled in a graph.

        Raises:
            TypeError: If `inputs` holds anything but float Tensors, RowTensors and None.
        """
        inputs = self.watch("unscaling", inputs)
        return self.watch("unscaled", _times(ops.Reciprocal()(self.scale_value), inputs))

    def state_dict(self):
        """
        Get what decides the next scale, as Python numbers.

        Returns:
            dict, which `load_state_dict` takes and :func:`mindspore.save_checkpoint` too, as its `append_dict`.
        """
        return {name: getattr(self, name).asnumpy().item() for name in self.state_names}

    def load_state_dict(self, state):
        """
        Go on from what `state_dict` gave.

        Args:
            state (dict): What `state_dict` returned, or the Parameters of these names out of a checkpoint.

        Raises:
            TypeError: If `state` is not a dict, or a number in it has another type.
            ValueError: If a name is missing or unknown, or a number out of range. Nothing is changed then.
        """
        check_state_names("load_state_dict", state, self.state_names)
        state = {name: value.asnumpy().item() if isinstance(value, Tensor) else value for name, value in state.items()}
        self._check_state(**state)
        for name, value in state.items():
            parameter = getattr(self, name)
            assign_now(parameter, Tensor(value, parameter.dtype))

    def __repr__(self):
        state = ", ".join(f"{name}={value}" for name, value in self.state_dict().items())
        return f"{type(self).__name__}({state})"

    def __getstate__(self):
        """A copy, or an unpickled scaler, has Parameters of its own: the numbers at the time of copying."""
        return {name: value for name, value in {**self.__dict__, **self.state_dict()}.items() if name != "watch"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        HeldScale.__init__(self, **{name: state[name] for name in state["state_names"]})

    def _check_state(self, **state):
        """Raise unless these numbers are a state that the scaler can be in."""
        raise NotImplementedError
