"""The cells that move the loss scale: rule.py as MindSpore operators, or by the host where it holds the state."""

import mindspore as ms
from mindspore import Tensor, context, nn, ops

from ms_lossscale._errors import check_scale, message
from ms_lossscale.compiled import operator
from ms_lossscale.count import as_flag, counter
from ms_lossscale.host_state import on_host, read, write
from ms_lossscale.rule import MAX_LOSS_SCALE, MIN_LOSS_SCALE, ScaleState, make_rule


class UpdateCell(nn.Cell):
    """What both update cells share: the scale they start from, and the scale of the step that owns them."""

    def __init__(self, loss_scale_value):
        super().__init__()
        self.loss_scale_value = loss_scale_value
        self.follow(None)

    def __call__(self, loss_scale, overflow):
        # Not in a graph: a graph takes `construct`.
        return super().__call__(loss_scale, as_flag(type(self).__name__, overflow))

    def follow(self, scale_sense):
        """
        Let `get_loss_scale` report the live scale of the step that owns this cell; the step calls it once it is built.

        Args:
            scale_sense (Parameter): The step's scale.
        """
        # Past Cell.__setattr__, which would take the step's Parameter for one of this cell's own.
        self.__dict__["_live_scale"] = scale_sense

    def get_loss_scale(self):
        """
        Get the loss scale.

        Returns:
            The number given as `loss_scale_value`; once a step owns this cell, a float, the step's live scale.
        """
        live = self.__dict__["_live_scale"]
        return self.loss_scale_value if live is None else live.asnumpy().item()


class FixedLossScaleUpdateCell(UpdateCell):
    """
    Update cell of a loss scale that never changes.

    :meth:`FixedLossScaleManager.get_update_cell` returns it, and :class:`TrainOneStepWithLossScaleCell` calls it.

    Args:
        loss_scale_value (float): The loss scale, from 2**-126 to 2**126; held in float32 by the step.

    Inputs:
        - **loss_scale** (Parameter) - The step's loss scale, ignored.
        - **overflow** (Tensor) - Whether the step overflowed, a bool of shape :math:`()`; outside a graph a Python
          bool, too.

    Outputs:
        Tensor, the input `overflow`.

    Raises:
        TypeError: If `loss_scale_value` is not an int or a float.
        ValueError: If `loss_scale_value` is NaN, below 2**-126 or above 2**126.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from ms_lossscale import FixedLossScaleUpdateCell
        >>> FixedLossScaleUpdateCell(1024.0).get_loss_scale()
        1024.0
    """

    def __init__(self, loss_scale_value):
        super().__init__(loss_scale_value)
        check_scale("FixedLossScaleUpdateCell", "loss_scale_value", loss_scale_value)

    def construct(self, loss_scale, overflow):
        return overflow


class DynamicLossScaleUpdateCell(UpdateCell):
    r"""
    Update cell of a dynamic loss scale.

    A step that overflows divides the scale by `scale_factor`; `scale_window` clean steps in a row multiply it.
    The arithmetic is float32: :math:`\max(s \cdot (1 / f), min)` and :math:`\min(s \cdot f, max)`, where
    :math:`1 / f` is rounded to float32 first. The rule is MindSpore's; the cap is this package's.

    :meth:`DynamicLossScaleManager.get_update_cell` returns it, and :class:`TrainOneStepWithLossScaleCell` calls it.

    Args:
        loss_scale_value (float): The scale to start from, inside the bounds.
        scale_factor (float): The factor of growth and shrinkage, at least 1.
        scale_window (int): The number of clean steps in a row after which the scale grows.

    Keyword Args:
        min_loss_scale (float): The scale never falls below it; above 0. Default: ``1.0`` .
        max_loss_scale (float): The scale never grows beyond it. Default: ``2**126`` .
        growth_factor (float): What growth multiplies by, at least 1. Default: ``None`` , `scale_factor`.
        backoff_factor (float): What an overflow multiplies by, above 0 and at most 1. Default: ``None`` , the
            float32 reciprocal of `scale_factor`.
        hysteresis (int): How many overflows leave the scale as it is before one shrinks it. Default: ``0`` .
        consecutive_hysteresis (bool): If True, every clean step restores what `hysteresis` allows; if False, only a
            full window of them does. Default: ``False`` .

    Inputs:
        - **loss_scale** (Parameter) - The step's loss scale, float32 of shape :math:`()` or :math:`(1,)`; updated.
        - **overflow** (Tensor) - Whether the step overflowed, a bool of shape :math:`()`; outside a graph a Python
          bool, too.

    Outputs:
        Tensor, the input `overflow`.

    Raises:
        TypeError: If a number has another type than stated.
        ValueError: If a number lies outside its range, is NaN or infinite.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import Parameter, Tensor
        >>> from ms_lossscale import DynamicLossScaleUpdateCell
        >>> update = DynamicLossScaleUpdateCell(2**12, scale_factor=2, scale_window=1000)
        >>> scale = Parameter(Tensor(update.get_loss_scale(), ms.float32), name="scale")
        >>> overflow = update(scale, Tensor(True))
        >>> print(overflow, scale.asnumpy())
        True 2048.0
    """

    def __init__(self, loss_scale_value, scale_factor, scale_window, *,
                 min_loss_scale=MIN_LOSS_SCALE, max_loss_scale=MAX_LOSS_SCALE, growth_factor=None,
                 backoff_factor=None, hysteresis=0, consecutive_hysteresis=False):
        # First: MindSpore 2.0.0 prints a complaint of its own about a Cell that raises before it is one.
        super().__init__(loss_scale_value)
        rule = make_rule("DynamicLossScaleUpdateCell", "loss_scale_value", loss_scale_value, scale_factor,
                         scale_window, min_loss_scale, max_loss_scale, growth_factor, backoff_factor,
                         hysteresis, consecutive_hysteresis)
        self.rule = rule
        self.scale_window = Tensor(int(rule.window), ms.int32)
        self.scale_factor = Tensor(float(scale_factor), ms.float32)
        self.growth_factor = Tensor(float(rule.growth), ms.float32)
        self.backoff_factor = Tensor(float(rule.backoff), ms.float32)
        self.minimum_loss_scale = Tensor(float(rule.minimum), ms.float32)
        self.maximum_loss_scale = Tensor(float(rule.maximum), ms.float32)
        self.hysteresis = int(rule.hysteresis)
        self.consecutive_hysteresis = rule.consecutive
        self.cur_iter = counter("current_iterator_step", start=1)
        self.last_overflow_iter = counter("last_overflow_iterator_step")
        if self.hysteresis > 0:
            self.tolerated_overflows = counter("tolerated_overflows")
        self.move = None  # the step knows the device
        self.options = (Tensor(self.hysteresis, ms.int32), Tensor(int(self.consecutive_hysteresis), ms.int32))

    def __call__(self, loss_scale, overflow):
        if not isinstance(loss_scale, Tensor) or loss_scale.dtype not in (ms.float32, ms.float64):
            raise TypeError(message(type(self).__name__, "loss_scale", "a float32 Parameter", loss_scale))
        if loss_scale.shape not in ((), (1,)):
            raise ValueError(message(type(self).__name__, "loss_scale", "a Parameter of shape () or (1,)", loss_scale))
        if loss_scale.dtype == ms.float32 and on_host():
            return self._move_on_host(loss_scale, as_flag(type(self).__name__, overflow))
        if self.move is not None and context.get_context("mode") == context.PYNATIVE_MODE:
            # 2.0.0 runs no compiled operator there if a network takes dynamic shapes.
            return self._move_by_operators(loss_scale, as_flag(type(self).__name__, overflow))
        return super().__call__(loss_scale, overflow)

    def _use_compiled(self):
        self.move = operator("move_scale", writes=True)

    def _move_on_host(self, loss_scale, overflow):
        state = ScaleState(read(loss_scale), read(self.cur_iter), read(self.last_overflow_iter))
        if self.hysteresis > 0:
            state.tolerated_overflows = read(self.tolerated_overflows)
        self.rule.update(state, bool(overflow))
        write(loss_scale, state.loss_scale)
        write(self.cur_iter, state.cur_iter)
        write(self.last_overflow_iter, state.last_overflow_iter)
        if self.hysteresis > 0:
            write(self.tolerated_overflows, state.tolerated_overflows)
        return overflow

    def construct(self, loss_scale, overflow):
        if self.move is not None and ops.dtype(loss_scale) == ms.float32:
            tolerated = self.tolerated_overflows if self.hysteresis > 0 else self.cur_iter
            return ops.reshape(self.move(
                overflow, loss_scale, self.cur_iter, self.last_overflow_iter, tolerated, self.scale_window,
                self.growth_factor, self.backoff_factor, self.minimum_loss_scale, self.maximum_loss_scale,
                *self.options), ())
        return self._move_by_operators(loss_scale, overflow)

    def _move_by_operators(self, loss_scale, overflow):
        grow = ops.less_equal(self.scale_window, self.cur_iter - self.last_overflow_iter)
        shrunk = loss_scale * self.backoff_factor
        if self.hysteresis > 0:
            shrunk = ops.select(self._tolerate(overflow, grow), loss_scale, shrunk)
        moved = ops.select(overflow, shrunk, ops.select(grow, loss_scale * self.growth_factor, loss_scale))
        next_scale = ops.minimum(ops.maximum(moved, self.minimum_loss_scale), self.maximum_loss_scale)
        last_move = ops.select(ops.logical_or(overflow, grow), self.cur_iter, self.last_overflow_iter)
        next_iter = self.cur_iter + 1
        ops.assign(loss_scale, next_scale)
        ops.assign(self.last_overflow_iter, last_move)
        ops.assign(self.cur_iter, next_iter)
        return overflow

    def _tolerate(self, overflow, grow):
        """Return whether this overflow leaves the scale as it is, and count it."""
        spent = self.tolerated_overflows + 0
        tolerated = ops.logical_and(overflow, spent < self.hysteresis)
        clean = ops.logical_not(overflow)
        restored = clean if self.consecutive_hysteresis else ops.logical_and(clean, grow)
        spent = ops.select(restored, ops.zeros_like(spent), spent + ops.cast(tolerated, ms.int32))
        ops.assign(self.tolerated_overflows, spent)
        return tolerated
