"""Several training steps as one: their losses are taken together, and their updates are made together or not at all."""

from mindspore import nn, ops

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
        ValueError: If there are fewer than two steps, one accumulates, or two train the same parameter.

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
        if shared_scale:
            for step in self.steps[1:]:
                step.scale_sense = self.steps[0].scale_sense
                step.loss_scaling_manager = None
        self.first = None
        for step in reversed(list(self.steps)):
            self.first = Link(step, self.first, step.loss_scaling_manager is not None, self.shared_scale,
                              self.skip_together)

    def construct(self, *inputs):
        losses, grads, flags = self.first.gradients(self.first.step.scale_sense, self.first.keep_buffers(inputs))
        overflow = flags[0]
        for flag in flags[1:]:
            overflow = ops.logical_or(overflow, flag)
        losses, scales = self.first.update(losses, grads, flags, overflow)
        return losses, flags, scales

    def __call__(self, *inputs, **kwargs):
        refuse_trace("JointStep")
        for step in self.steps:
            step.watch.before(step)
        outputs = super().__call__(*inputs, **kwargs)
        for step, loss in zip(self.steps, outputs[0]):
            step.watch.after(step, loss)
        return outputs


class Link(nn.Cell):
    """One step, and the link of the next: MindSpore 2.0.0 cannot compile a loop over networks."""

    def __init__(self, step, rest, moves, shared_scale, skip_together):
        super().__init__(auto_prefix=False)
        self.step, self.rest = step, rest
        self.moves, self.shared_scale, self.skip_together = moves, shared_scale, skip_together

    def keep_buffers(self, inputs):
        """Keep what is not trained; return `inputs`."""
        inputs = self.step._keep_buffers(inputs)
        return inputs if self.rest is None else self.rest.keep_buffers(inputs)

    def gradients(self, before, inputs):
        """Return the losses, the gradients and whether they overflowed, of this step and those after it."""
        # After the check of the step before: there is one overflow register.
        status, tied = self.step.start_overflow_check(before, inputs)
        loss = self.step.network(*tied)
        grads = self.step.grad_reducer(self.step._unscaled(self.step._scaled_grads(loss, tied)))
        grads, overflow = self.step._check_and_clip(ops.depend(status, loss), grads)
        if self.rest is None:
            return (loss,), (grads,), (overflow,)
        losses, all_grads, flags = self.rest.gradients(overflow, inputs)
        return (loss,) + losses, (grads,) + all_grads, (overflow,) + flags  # noqa: RUF005

    def update(self, losses, grads, flags, overflow):
        """Count, move the scales and run the optimizers; return the losses and the scales."""
        skip = overflow if self.skip_together else flags[0]
        gate = self.step._count(skip, self.step.applied_steps, self.step.skipped_steps,
                                self.step.consecutive_overflows)
        if self.moves:
            moved = self.step.loss_scaling_manager(self.step.scale_sense, overflow if self.shared_scale else flags[0])
            gate = ops.depend(gate, moved)
        loss = self.step._apply(losses[0], grads[0], skip, gate)
        if self.rest is None:
            return (loss,), (self.step._snapshot(self.step.scale_sense),)
        rest, scales = self.rest.update(losses[1:], grads[1:], flags[1:], overflow)
        return (loss,) + rest, (self.step._snapshot(self.step.scale_sense),) + scales  # noqa: RUF005


def _check_steps(steps):
    if not isinstance(steps, (list, tuple)) or not all(isinstance(step, TrainStep) for step in steps):
        raise TypeError(message("JointStep", "steps", "a list of TrainStep", steps))
    if len(steps) < 2:
        raise ValueError(message("JointStep", "steps", "a list of two or more", steps))
    if any(step.accumulates for step in steps):
        raise ValueError("For 'JointStep', 'steps' must be built without 'accumulation_steps'.")
    seen = set()
    for parameter in (parameter for step in steps for parameter in step.weights):
        if id(parameter) in seen:
            raise ValueError(f"For 'JointStep', 'steps' must train different parameters, but '{parameter.name}' is "
                             "trained by two of them. Give each optimizer parameters of its own.")
        seen.add(id(parameter))
