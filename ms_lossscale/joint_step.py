"""Several training steps as one: their losses are taken together, and their updates are made together or not at all."""

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_lossscale._errors import check_bool, message
from ms_lossscale._versions import refuse_trace
from ms_lossscale.train_options import TrainStep


class JointStep(nn.Cell):
    r"""
    Several losses, each with its network and optimizer, trained in one step: a GAN, an actor and a critic.

    All gradients are taken at the parameters as they were before the step. To train one network after the other
    instead, call one step after the other.

    Args:
        steps (list): Two :class:`TrainStep` or more, without accumulation. The networks may share parameters; each
            parameter is trained by one optimizer.

    Keyword Args:
        shared_scale (bool): Whether all carry the scale of the first, which an overflow of any moves. If False, each
            step's own overflows move its own scale. Default: ``False`` .
        skip_together (bool): Whether an overflow of any skips all; if False, each skips its own. Default: ``True`` .

    Inputs:
        - **\*inputs** (Tuple(Tensor)) - What every network takes.

    Outputs:
        Tuple of 3 tuples with one Tensor for every step, of the losses, of whether each overflowed, and of the scales.

    Raises:
        TypeError: If `steps` is not a list or tuple of TrainStep, or a flag is no bool.
        ValueError: If there are fewer than two steps, or one accumulates.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import numpy as np
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import JointStep, TrainStep
        >>> steps = []
        >>> for _ in range(2):
        ...     network = nn.Dense(4, 2)
        ...     optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        ...     steps.append(TrainStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, Tensor(1024.0)))
        >>> step = JointStep(steps)
        >>> losses, overflows, scales = step(Tensor(np.ones((3, 4), np.float32)), Tensor(np.ones((3, 2), np.float32)))
        >>> print(overflows[0], scales[1])
        False 1024.0
    """

    def __init__(self, steps, *, shared_scale=False, skip_together=True):
        super().__init__()
        check_bool("JointStep", "shared_scale", shared_scale)
        self.skip_together = bool(check_bool("JointStep", "skip_together", skip_together))
        _check_steps(steps)
        self.shared_scale = bool(shared_scale)
        # The prefix keeps the steps' parameters of one name apart, in a graph and in a checkpoint.
        self.steps = nn.CellList(steps)
        self.moves = tuple(step.loss_scaling_manager is not None for step in steps)
        if shared_scale:
            for step in self.steps[1:]:
                step.scale_sense = self.steps[0].scale_sense
                step.loss_scaling_manager = None
            self.moves = (self.moves[0], *(False for _ in steps[1:]))

    def construct(self, *inputs):
        for step in self.steps:
            inputs = step._keep_buffers(inputs)
        losses, grads, flags, before, overflow = (), (), (), self.steps[0].scale_sense, Tensor(False)
        for step in self.steps:
            # After the check of the step before: there is one overflow register.
            status, tied = step.start_overflow_check(before, inputs)
            loss = step.network(*tied)
            reduced = step.grad_reducer(step._unscaled_grads(loss, tied))
            limited, flag = step._check_and_clip(ops.depend(status, loss), reduced)
            losses, grads, flags, before = losses + (loss,), grads + (limited,), flags + (flag,), flag  # noqa: RUF005
            overflow = ops.logical_or(overflow, flag)
        return self._update(losses, grads, flags, overflow)

    def __call__(self, *inputs, **kwargs):
        refuse_trace("JointStep")
        for step in self.steps:
            step.watch.before(step)
        outputs = super().__call__(*inputs, **kwargs)
        for step, loss in zip(self.steps, outputs[0]):
            step.watch.after(step, loss)
        return outputs

    def _update(self, losses, grads, flags, overflow):
        told, scales = (), ()
        for index, step in enumerate(self.steps):
            skip = overflow if self.skip_together else flags[index]
            step._count(skip, step.applied_steps, step.skipped_steps, step.consecutive_overflows)
            if self.moves[index]:
                step.loss_scaling_manager(step.scale_sense, overflow if self.shared_scale else flags[index])
            told += (_apply(step, losses[index], grads[index], skip),)
        for step in self.steps:
            scales += (step.scale_sense + 0.0,)
        return told, flags, scales


def _apply(step, loss, grads, skip):
    if not skip:
        loss = ops.depend(loss, step.optimizer(grads))
    elif step.restores:
        loss = step.restore(loss)
    return ops.depend(loss, ops.assign(step.last_outcome, ops.cast(skip, ms.int32) + 1))


def _check_steps(steps):
    if not isinstance(steps, (list, tuple)) or not all(isinstance(step, TrainStep) for step in steps):
        raise TypeError(message("JointStep", "steps", "a list of TrainStep", steps))
    if len(steps) < 2:
        raise ValueError(message("JointStep", "steps", "a list of two or more", steps))
    if any(step.accumulates for step in steps):
        raise ValueError("For 'JointStep', 'steps' must be built without 'accumulation_steps'.")
