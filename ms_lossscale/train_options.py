"""The training step with clipping, accumulation, restored buffers, or no scaling; each an option."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

from ms_lossscale._errors import check_bool, check_positive_int, message
from ms_lossscale.accumulate import Accumulate
from ms_lossscale.clip import ClipByNorm, ClipByNormOnHost, ClipByValue, check_limit_of
from ms_lossscale.fused import UnscaleAndCheck
from ms_lossscale.misuse import check_unscaled
from ms_lossscale.overflow.detector import GradientCheck
from ms_lossscale.overflow.host import HostCheck
from ms_lossscale.overflow.table import build, choose
from ms_lossscale.restore import Restore
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell

OUTCOMES = ("accumulated", "applied", "skipped")
OPTIONS = ("clip_norm", "clip_value", "accumulation_steps", "drop_window", "restore_buffers", "scaling")


class TrainStep(TrainOneStepWithLossScaleCell):
    r"""
    A :class:`TrainOneStepWithLossScaleCell` that also clips, accumulates, restores, or only checks.

    Gradients are clipped after unscaling and reduction over the ranks: by norm first, then by value. A window is
    `accumulation_steps` calls; the scale, the optimizer and all counters move once a window, at its last call.
    `max_consecutive_overflows`, `check_interval` and `fit_loss_dtype` are taken as
    :class:`TrainOneStepWithLossScaleCell` takes them.

    Args:
        network (Cell): As :class:`TrainOneStepWithLossScaleCell` takes it.
        optimizer (Optimizer): As :class:`TrainOneStepWithLossScaleCell` takes it.
        scale_sense (Union[Cell, Tensor], optional): As :class:`TrainOneStepWithLossScaleCell` takes it; None if
            `scaling` is False. Default: ``None`` .

    Keyword Args:
        clip_norm (float): The largest global norm of the gradients; None for no limit. Default: ``None`` .
        clip_value (float): The largest magnitude of an element; None for no limit. Default: ``None`` .
        accumulation_steps (int): The number of micro-steps in a window. Default: ``1`` .
        drop_window (bool): Whether an overflow drops its whole window; if False, only its micro-step, and a window
            that keeps none is skipped. The mean is over what was kept. Default: ``True`` .
        restore_buffers (bool): Whether non-trainable Parameters of `network` go back to what they were before a
            skipped window, or a dropped micro-step. Default: ``False`` .
        scaling (bool): If False, nothing is scaled or unscaled, and the step only skips overflow. Default: ``True`` .

    Inputs:
        - **\*inputs** (Tuple(Tensor)) - What `network` takes.

    Outputs:
        Tuple of 3 Tensors, as the documented step returns them. With accumulation the flag is
        this call's. It tells whether this rank's gradients overflowed or, in the last call of a window, the mean over
        all ranks did. What became of the window, `get_outcome` tells.

    Raises:
        TypeError: If an argument has another type than stated.
        ValueError: If a number is out of range, `scale_sense` is given with `scaling` False or missing without, or
            `network` has RowTensor gradients, which are neither clipped nor accumulated.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import TrainStep
        >>> network = nn.Dense(4, 2)
        >>> optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
        >>> step = TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, Tensor(1024.0), clip_norm=1.0,
        ...                  accumulation_steps=2)
        >>> x, label = Tensor(np.ones((3, 4)), ms.float32), Tensor(np.ones((3, 2)), ms.float32)
        >>> for _ in range(2):
        ...     loss, overflow, scale = step(x, label)
        ...     print(overflow, step.get_outcome())
        False accumulated
        False applied
    """

    def __init__(self, network, optimizer, scale_sense=None, *, clip_norm=None, clip_value=None,
                 accumulation_steps=1, drop_window=True, restore_buffers=False, scaling=True, **watch_options):
        nn.Cell.__init__(self)
        clip_norm, clip_value = (check_limit_of("TrainStep", "clip_norm", clip_norm),
                                 check_limit_of("TrainStep", "clip_value", clip_value))
        check_positive_int("TrainStep", "accumulation_steps", accumulation_steps)
        for name, flag in (("drop_window", drop_window), ("restore_buffers", restore_buffers), ("scaling", scaling)):
            check_bool("TrainStep", name, flag)
        if not scaling and scale_sense is not None:
            raise ValueError(message("TrainStep", "scale_sense", "None if 'scaling' is False", scale_sense))
        super().__init__(network, optimizer, scale_sense if scaling else Tensor(1, ms.float32), **watch_options)
        if self.detector.row_tensors and (clip_norm or clip_value or accumulation_steps > 1):
            raise ValueError("For 'TrainStep', 'network' must have no RowTensor gradients with 'clip_norm', "
                             "'clip_value' or 'accumulation_steps'. Build its embeddings with sparse=False.")
        self.scaling = bool(scaling)
        if not scaling:
            check_unscaled("TrainStep", optimizer, network)
        self.last_outcome = Parameter(Tensor(0, ms.int32), name="last_outcome", requires_grad=False)
        self.accumulates = accumulation_steps > 1
        self.keeps_window = self.accumulates and bool(drop_window)
        self.clips_norm, self.clips_value, self.restores = clip_norm is not None, clip_value is not None, False
        own_check = type(self).get_overflow_status is not TrainOneStepWithLossScaleCell.get_overflow_status
        # A register is read, not the norm: a saturated gradient is finite.
        self.norm_decides = self.clips_norm and isinstance(self.detector, GradientCheck) and not own_check
        if self.clips_norm:
            on_host = isinstance(self.detector, HostCheck)
            self.clip_by_norm = ClipByNormOnHost(clip_norm, self.weights) if on_host else ClipByNorm(clip_norm)
        if self.clips_value:
            self.clip_by_value = ClipByValue(clip_value)
        if not scaling:
            self._unscale_and_check = None
        elif self._unscale_and_check is not None and not self.accumulates:
            clips = (getattr(self, name, None) for name in ("clip_by_norm", "clip_by_value"))
            self._unscale_and_check = UnscaleAndCheck(self, TrainOneStepWithLossScaleCell, *clips)
        if restore_buffers:
            self.restore = Restore(network)
            self.restores = len(self.restore.buffers) > 0
        self.restores_micro_step = self.restores and self.accumulates and not self.keeps_window
        if self.restores_micro_step:
            self.restore_micro_step = Restore(network, "kept_in_window")
        if self.accumulates:
            self.accumulate = Accumulate(self.weights, accumulation_steps)
            self.own_detector = None if own_check else build(choose(), False, len(self.weights))
            self.ranks = float(self.degree) if self.is_distributed else 1.0
        if not scaling:
            self.grad = ops.GradOperation(get_by_list=True, sens_param=False)

    def construct(self, *inputs):
        status, inputs = self.start_overflow_check(self.scale_sense, inputs)
        inputs = self._keep_buffers(inputs)
        loss = self.network(*inputs)
        grads = self._scaled_grads(loss, inputs)
        status = ops.depend(status, loss)
        if self.accumulates:
            return self._micro_step(status, loss, grads)
        if self._in_one_pass:
            grads, overflow = self._unscale_and_check(grads, self.scale_sense)
        else:
            grads, overflow = self._check_and_clip(status, self.grad_reducer(self._unscaled(grads)))
        loss = self._apply(loss, grads, overflow, self.process_loss_scale(overflow))
        return loss, overflow, self._snapshot(self.scale_sense)

    def get_outcome(self):
        """
        Get what the last call did with its gradients.

        Returns:
            str, "accumulated", "applied" or "skipped".
        """
        return OUTCOMES[self.last_outcome.asnumpy().item()]

    def get_global_norm(self):
        """
        Get the global norm that the gradients of the last step had, unscaled and reduced, before they were clipped.

        Returns:
            float, not finite if they were not; 0 before the first step. Inside a window, that of the window before.

        Raises:
            RuntimeError: If the step was built without `clip_norm`.
        """
        if not self.clips_norm:
            raise RuntimeError("For 'TrainStep', 'get_global_norm' has no norm to tell: it was built without "
                               "'clip_norm'. A large clip_norm measures it and limits nothing.")
        return self.clip_by_norm.global_norm.asnumpy().item()

    def set_sense_scale(self, sens):
        """
        Set the loss scale; the next step uses it.

        Args:
            sens (Tensor): As :class:`TrainOneStepWithLossScaleCell` takes it.

        Raises:
            RuntimeError: If the step was built with ``scaling=False``.
        """
        if not self.scaling:
            raise RuntimeError("For 'TrainStep', 'set_sense_scale' has nothing to set: it was built with "
                               "scaling=False. Build it with a 'scale_sense' instead.")
        super().set_sense_scale(sens)

    def _scaled_grads(self, loss, inputs):
        if not self.scaling:
            return self.grad(self.network, self.weights)(*inputs)
        return self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))

    def _unscaled(self, grads):
        return self.unscale(grads) if self.scaling else grads

    def _keep_buffers(self, inputs):
        if self.restores:
            if not self.accumulates or self.accumulate.micro_step == 0:
                inputs = self.restore.keep(inputs)
            if self.restores_micro_step:
                inputs = self.restore_micro_step.keep(inputs)
        return inputs

    def _micro_step(self, status, loss, grads):
        if self._in_one_pass:
            grads, overflow = self._unscale_and_check(grads, self.scale_sense)
        else:
            grads = self._unscaled(grads)
            if self.own_detector is None:
                overflow = self.get_overflow_status(status, grads)
            else:
                overflow = self.own_detector(status, grads)
        if self.restores_micro_step and overflow:
            loss = self.restore_micro_step(loss)
        if self.accumulate(grads, overflow):
            # Every rank is here or none: a window's end is the same call on all of them.
            kept = self.detector.sum_over_ranks(ops.cast(self.accumulate.kept_micro_steps, ms.float32))
            all_steps = self.accumulate.steps * self.ranks
            mean = self.grad_reducer(self.accumulate.mean(grads, kept / self.ranks))
            mean, late = self._check_and_clip(status, mean)
            skip = ops.logical_or(late, kept < (all_steps if self.keeps_window else 1.0))
            loss = self._apply(loss, mean, skip, self.process_loss_scale(skip))
            overflow = ops.logical_or(overflow, late)
            loss = self.accumulate.clear(loss)
        else:
            loss = ops.depend(loss, ops.assign(self.last_outcome, Tensor(0, ms.int32)))
        return loss, overflow, self._snapshot(self.scale_sense)

    def _apply(self, loss, grads, skip, gate):
        """Run the optimizer or restore; return the loss."""
        if not gate:
            loss = ops.depend(loss, self.optimizer(grads))
        elif self.restores:
            loss = self.restore(loss)
        return ops.depend(loss, ops.assign(self.last_outcome, ops.cast(skip, ms.int32) + 1))

    def _check_and_clip(self, status, grads):
        if self.norm_decides:
            grads, overflow = self.clip_by_norm(grads)
            overflow = self.detector.any_rank(overflow)
        else:
            overflow = self.get_overflow_status(status, grads)
            if self.clips_norm:
                grads, _ = self.clip_by_norm(ops.depend(grads, overflow))
        if self.clips_value:
            grads = self.clip_by_value(grads)
        return grads, overflow


def pop_options(kwargs):
    """Take the options of :class:`TrainStep` out of `kwargs`."""
    return {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
