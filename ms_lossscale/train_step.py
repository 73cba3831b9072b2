"""The training step: forward, backward, unscale, check, move the scale, and the optimizer if nothing overflowed."""

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.context import ParallelMode

from ms_lossscale._versions import assign_now, refuse_trace
from ms_lossscale.count import Count, counter
from ms_lossscale.fused import UnscaleAndCheck
from ms_lossscale.gradients import Unscale, seed_of
from ms_lossscale.host_state import Snapshot
from ms_lossscale.misuse import check_step
from ms_lossscale.overflow.table import build, choose
from ms_lossscale.overflow.values import gives_row_tensors
from ms_lossscale.scale_argument import check_training_parts, initial_scale, scale_tensor
from ms_lossscale.stuck import MAX_CONSECUTIVE_OVERFLOWS
from ms_lossscale.update_cell import DynamicLossScaleUpdateCell, UpdateCell
from ms_lossscale.watch import Watch, check_watch_options


class TrainOneStepWithLossScaleCell(nn.TrainOneStepCell):
    r"""
    A training step with loss scaling: it runs the optimizer only when nothing overflowed.

    The loss is multiplied by the scale before the backward pass, and the gradients are divided by it after, both in
    float32 arithmetic. If a gradient is then NaN or infinite (or the device's overflow register is set), the
    optimizer does not run: parameters, optimizer state, `global_step` and a scheduled learning rate stay as they
    are. Statistics of the forward pass, such as BatchNorm's, do change.

    Args:
        network (Cell): The network with its loss; it returns one float Tensor, the loss.
        optimizer (Optimizer): The optimizer of the parameters to train.
        scale_sense (Union[Cell, Tensor]): An update cell, which moves the scale on the device after every step; or
            a Tensor of shape :math:`()` or :math:`(1,)` and any float or int dtype, held in float32, which stays
            until `set_sense_scale` changes it.

    Keyword Args:
        max_consecutive_overflows (int): More overflows in a row than these raise on the host; None for never.
            Default: ``1000`` .
        check_interval (int): The number of calls after which the host reads that counter. Default: ``100`` .
        fit_loss_dtype (bool): Whether a scale that the loss's dtype cannot carry (above 65504 for a float16 loss) is
            set to ``2**15`` after the first step; if False, a :class:`SeedOverflowWarning` says so once.
            Default: ``False`` .

    Inputs:
        - **\*inputs** (Tuple(Tensor)) - What `network` takes.

    Outputs:
        Tuple of 3 Tensors.

        - **loss** (Tensor) - The loss as `network` returned it, not scaled.
        - **overflow** (Tensor) - Whether this step overflowed and was skipped, a bool of shape :math:`()`.
        - **loss scale** (Tensor) - The scale the next step will use, after this step's update: a float32 snapshot
          of the shape of `scale_sense`. MindSpore's step returns the live Parameter instead in PYNATIVE mode.

    Attributes:
        scale_sense (Parameter): The live scale, float32.
        applied_steps (Parameter): The steps that ran the optimizer, int32.
        skipped_steps (Parameter): The steps that overflowed and did not, int32.
        consecutive_overflows (Parameter): The steps skipped since the last applied one, int32.

    Raises:
        TypeError: If an argument has another type than stated; when called, if the network returns anything but one
            float Tensor.
        ValueError: If `optimizer` has no parameters, or trains those of a step; or the scale is not one number from
            2**-126 to 2**126.
        RuntimeError: When called, if more than `max_consecutive_overflows` steps in a row overflowed.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell
        >>> network = nn.Dense(4, 2)
        >>> optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
        >>> update_cell = DynamicLossScaleUpdateCell(2**12, scale_factor=2, scale_window=1000)
        >>> step = TrainOneStepWithLossScaleCell(nn.WithLossCell(network, nn.MSELoss()), optimizer, update_cell)
        >>> x, label = Tensor(np.ones((3, 4)), ms.float32), Tensor(np.ones((3, 2)), ms.float32)
        >>> loss, overflow, scale = step(x, label)
        >>> print(overflow, scale)
        False 4096.0
        >>> loss, overflow, scale = step(x * float("inf"), label)
        >>> print(overflow, scale, step.skipped_steps.asnumpy())
        True 2048.0 1
    """

    def __init__(self, network, optimizer, scale_sense, *, max_consecutive_overflows=MAX_CONSECUTIVE_OVERFLOWS,
                 check_interval=100, fit_loss_dtype=False):
        # MindSpore 2.0.0 prints a complaint of its own about a Cell that raises before it is one.
        nn.Cell.__init__(self)
        check_training_parts(network, optimizer)
        options = check_watch_options(
            "TrainOneStepWithLossScaleCell", max_consecutive_overflows=max_consecutive_overflows,
            check_interval=check_interval, fit_loss_dtype=fit_loss_dtype)
        scale = initial_scale(scale_sense)
        super().__init__(network, optimizer, sens=None)
        self.scale_sense = Parameter(scale, name="scale_sense", requires_grad=False)
        self.loss_scaling_manager = scale_sense if isinstance(scale_sense, nn.Cell) else None
        self.applied_steps = counter("applied_steps")
        self.skipped_steps = counter("skipped_steps")
        self.consecutive_overflows = counter("consecutive_overflows")
        self.watch = Watch(**options)
        self.is_distributed = self.parallel_mode != ParallelMode.STAND_ALONE
        self._unscale, self._snapshot = Unscale(), Snapshot()
        choice = choose()
        on_host = choice.name == "host"
        self._count = Count(on_host)
        self.detector = build(choice, self.is_distributed, len(self.weights))
        self.detector.row_tensors = gives_row_tensors(network)
        alone = on_host and not self.is_distributed
        self._unscale_and_check = UnscaleAndCheck(self, TrainOneStepWithLossScaleCell) if alone else None
        # What subclasses written for MindSpore's step reach for.
        self.hyper_map = ops.HyperMap()
        self.base = Tensor(1, ms.float32)
        self.reduce_sum, self.less_equal = ops.ReduceSum(keep_dims=False), ops.LessEqual()
        self.allreduce = ops.AllReduce()
        self.enable_tuple_broaden = True
        check_step(self)
        if isinstance(scale_sense, UpdateCell):
            scale_sense.follow(self.scale_sense)
        if on_host and isinstance(scale_sense, DynamicLossScaleUpdateCell):
            scale_sense._use_compiled()

    def construct(self, *inputs):
        status, inputs = self.start_overflow_check(self.scale_sense, inputs)
        loss = self.network(*inputs)
        grads = self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))
        if self._in_one_pass:
            grads, overflow = self._unscale_and_check(grads, self.scale_sense)
        else:
            grads = self.grad_reducer(self.unscale(grads))
            overflow = self.get_overflow_status(ops.depend(status, loss), grads)
        if not self.process_loss_scale(overflow):
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, overflow, self._snapshot(self.scale_sense)

    def __call__(self, *inputs, **kwargs):
        refuse_trace(type(self).__name__)
        self.watch.before(self)
        outputs = super().__call__(*inputs, **kwargs)
        self.watch.after(self, outputs)
        return outputs

    @property
    def _in_one_pass(self):
        return self._unscale_and_check is not None and self._unscale_and_check.stands_for(self)

    def get_loss_scale(self):
        """
        Get the live loss scale.

        Returns:
            float, the scale that the next step will use.
        """
        return self.scale_sense.asnumpy().item()

    def check_consecutive_overflows(self):
        """
        Raise if too many steps in a row overflowed; every `check_interval`-th call of the step does this itself.

        Raises:
            RuntimeError: If more than `max_consecutive_overflows` did.
        """
        self.watch.check_consecutive_overflows(self)

    def set_sense_scale(self, sens):
        """
        Set the loss scale; the next step uses it.

        Args:
            sens (Tensor): The scale, of shape :math:`()` or :math:`(1,)` and any float or int dtype; held in float32,
                in the shape that `scale_sense` has.

        Raises:
            TypeError: If `sens` is not a Tensor, or not of a float or int dtype.
            ValueError: If `sens` has another shape, or is NaN, below 2**-126 or above 2**126.
        """
        scale = scale_tensor("set_sense_scale", "sens", sens, shape=self.scale_sense.shape)
        assign_now(self.scale_sense, scale)

    def start_overflow_check(self, pre_cond, compute_input):
        """
        Start looking for overflow; on a device with an overflow register, clear it.

        In a step of your own call it before the network, with the network's inputs as `compute_input`: then an
        overflow in the forward pass is seen, and one left by anything before is not.

        Args:
            pre_cond (Tensor): What must be computed before the register is cleared.
            compute_input (object): The input of the computation to watch.

        Returns:
            Tuple of (status, compute_input): the first goes to `get_overflow_status`; computing from the second is
            sure to happen after the clearing.
        """
        return self.detector.start(pre_cond, compute_input)

    def scaled_seed(self, loss):
        """
        Get the seed of the backward pass, the gradient of the scaled loss; `grad` takes it after the inputs.

        Args:
            loss (Tensor): The loss, of any float dtype and shape.

        Returns:
            Tensor of the dtype and shape of `loss`, the loss scale in every element.
        """
        return seed_of(loss, self.scale_sense)

    def unscale(self, grads):
        """
        Divide gradients by the loss scale.

        Args:
            grads (tuple): Tensors or RowTensors of any float dtype.

        Returns:
            tuple, each in its own dtype; the product with the float32 reciprocal of the scale is rounded to it once.
        """
        return self._unscale(grads, self.scale_sense)

    def get_overflow_status(self, status, compute_output):
        """
        Tell whether the computation since `start_overflow_check` overflowed, on any rank.

        Args:
            status (Tensor): The first output of `start_overflow_check`.
            compute_output (object): The gradients: a Tensor, or a tuple or list of Tensors or RowTensors.

        Returns:
            Tensor, a bool of shape :math:`()`, True for overflow. Without gradients it is False.
        """
        return self.detector(status, compute_output)

    def process_loss_scale(self, overflow):
        """
        Count the step as applied or skipped, and let the update cell, if there is one, move the scale.

        Args:
            overflow (Tensor): Whether the step overflowed, a bool of shape :math:`()`.

        Returns:
            Tensor, what the update cell returned, else `overflow`.
        """
        overflow = self._count(overflow, self.applied_steps, self.skipped_steps, self.consecutive_overflows)
        return overflow if self.loss_scaling_manager is None else self.loss_scaling_manager(self.scale_sense, overflow)
