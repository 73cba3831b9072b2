"""Model and build_train_network: MindSpore's own, with this package's step inside."""

import functools
import warnings

from mindspore import Model as NativeModel
from mindspore import boost, context, nn
from mindspore.amp import LossScaleManager as NativeLossScaleManager
from mindspore.context import ParallelMode
from mindspore.parallel._utils import _get_parallel_mode, _get_pipeline_stages
from mindspore.train import Callback
from mindspore.train.amp import build_train_network as native_build_train_network

from ms_lossscale._errors import message
from ms_lossscale._versions import scales_by_default
from ms_lossscale.dynamic_manager import DynamicLossScaleManager
from ms_lossscale.guard import FirstLoss, WatchSink, look_at_first_call
from ms_lossscale.manager import LossScaleManager
from ms_lossscale.misuse import check_constant, check_unscaled
from ms_lossscale.scale_argument import scale_number
from ms_lossscale.train_options import TrainStep, pop_options
from ms_lossscale.train_step import TrainOneStepWithLossScaleCell


def build_train_network(network, optimizer, loss_fn=None, level="O0", boost_level="O0", **kwargs):
    """
    Build the training step for a network: MindSpore's mixed precision, and this package's loss scaling.

    It also takes the options of :class:`TrainStep` by name; with one of them the step is a TrainStep.

    Args:
        network (Cell): The network, or the network with its loss if `loss_fn` is None.
        optimizer (Optimizer): The optimizer of the network's parameters.
        loss_fn (Cell, optional): Called with (output, label). Default: ``None`` .
        level (str, optional): The mixed-precision level, as :func:`mindspore.amp.build_train_network` takes it.
            "O2" without a manager scales by ``DynamicLossScaleManager()``. Default: ``"O0"`` .
        boost_level (str, optional): As MindSpore takes it. Default: ``"O0"`` .

    Keyword Args:
        loss_scale_manager (LossScaleManager): Where the loss scale comes from; None for no scaling.
        cast_model_type (mindspore.dtype): As MindSpore takes it.
        keep_batchnorm_fp32 (bool): As MindSpore takes it.

    Returns:
        Cell in training mode: a :class:`TrainOneStepWithLossScaleCell`; or a :class:`mindspore.nn.TrainOneStepCell`
        if there is no manager, or it gives no update cell.

    Raises:
        TypeError: If `loss_scale_manager` is no LossScaleManager.
        ValueError: On CPU, if the network is to be trained in a mode that only MindSpore's own cells serve.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import nn
        >>> from ms_lossscale import DynamicLossScaleManager, build_train_network
        >>> network = nn.Dense(4, 2)
        >>> optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        >>> step = build_train_network(network, optimizer, nn.MSELoss(), level="O2",
        ...                            loss_scale_manager=DynamicLossScaleManager(2**12))
        >>> print(step.scale_sense.asnumpy())
        4096.0
    """
    options = pop_options(kwargs)
    manager = kwargs.pop("loss_scale_manager", _default_manager(level) if options.get("scaling", True) else None)
    if _leave_to_mindspore("build_train_network", manager, network, optimizer, boost_level):
        return native_build_train_network(network, optimizer, loss_fn, level, boost_level,
                                          loss_scale_manager=manager, **kwargs)
    plain = native_build_train_network(network, optimizer, loss_fn, level, boost_level,
                                       loss_scale_manager=None, **kwargs)
    if manager is None:
        check_unscaled("build_train_network", optimizer, plain.network, level)
        look_at_first_call(plain)
    return _scaled("build_train_network", plain, manager, options)


class Model(NativeModel):
    """
    MindSpore's Model with this package's training step inside, on every device.

    Arguments, methods and results are those of :class:`mindspore.train.Model`. What differs:

    - it takes any `loss_scale_manager` on CPU, too, at every `amp_level`;
    - at `amp_level` "O2" without a manager it scales by ``DynamicLossScaleManager()`` of this package;
    - a :class:`DynamicLossScaleManager` reports the live numbers of the step, also after a checkpoint is loaded
      and inside a data sink;
    - it takes the options of :class:`TrainStep` by name, and with one of them the step is a TrainStep.

    Args:
        network (Cell): The network, or the network with its loss if `loss_fn` is None.
        loss_fn (Cell, optional): Called with (output, label). Default: ``None`` .
        optimizer (Optimizer, optional): The optimizer of the network's parameters. Default: ``None`` .
        metrics (Union[dict, set], optional): As MindSpore takes it. Default: ``None`` .
        eval_network (Cell, optional): As MindSpore takes it. Default: ``None`` .
        eval_indexes (list, optional): As MindSpore takes it. Default: ``None`` .
        amp_level (str, optional): The mixed-precision level, as MindSpore takes it. Default: ``"O0"`` .
        boost_level (str, optional): As MindSpore takes it. Default: ``"O0"`` .

    Keyword Args:
        loss_scale_manager (LossScaleManager): Where the loss scale comes from; None for no scaling.
        keep_batchnorm_fp32 (bool): As MindSpore takes it.

    Raises:
        TypeError: If `loss_scale_manager` is no LossScaleManager.
        ValueError: If a manager is given without an optimizer; on CPU, if the network is to be trained in a mode
            that only MindSpore's own cells serve.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> from mindspore import nn
        >>> from ms_lossscale import FixedLossScaleManager, Model
        >>> network = nn.Dense(4, 2)
        >>> optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        >>> model = Model(network, nn.MSELoss(), optimizer, loss_scale_manager=FixedLossScaleManager(1024.0))
        >>> print(model.train_network.scale_sense.asnumpy())
        1024.0
    """

    @functools.wraps(NativeModel.__init__)
    def __init__(self, *args, **kwargs):
        self._step_options, self._guard = pop_options(kwargs), None
        super().__init__(*args, **kwargs)

    @functools.wraps(NativeModel.train)
    def train(self, epoch, train_dataset, callbacks=None, *args, **kwargs):
        return super().train(epoch, train_dataset, self._guarded(callbacks), *args, **kwargs)

    @functools.wraps(NativeModel.fit)
    def fit(self, epoch, train_dataset, valid_dataset=None, valid_frequency=1, callbacks=None, *args, **kwargs):
        return super().fit(epoch, train_dataset, valid_dataset, valid_frequency, self._guarded(callbacks),
                           *args, **kwargs)

    def _guarded(self, callbacks):
        """Return `callbacks` with one more that watches the step inside a data sink, or its first loss."""
        if isinstance(self._train_network, TrainOneStepWithLossScaleCell):
            self._guard = WatchSink(self._train_network)
        if self._guard is None or self._guard.done:
            return callbacks
        callbacks = [] if callbacks is None else [callbacks] if isinstance(callbacks, Callback) else callbacks
        return [*callbacks, self._guard]

    def _build_train_network(self):
        if self._optimizer is not None and not self._loss_scale_manager_set:
            self._loss_scale_manager = (_default_manager(self._amp_level)
                                        if self._step_options.get("scaling", True) else None)
        manager = self._loss_scale_manager
        if manager is not None and self._optimizer is None:
            raise ValueError(message("Model", "optimizer", "an Optimizer if 'loss_scale_manager' is set", None))
        self._loss_scale_manager_set = True  # or MindSpore would take a default of its own
        if _leave_to_mindspore("Model", manager, self._network, self._optimizer, self._boost_level):
            return super()._build_train_network()
        self._loss_scale_manager = None
        plain = super()._build_train_network()
        self._loss_scale_manager = manager
        if manager is None and self._optimizer is not None:
            check_unscaled("Model", self._optimizer, plain.network, self._amp_level)
            self._guard = FirstLoss(plain)
        step = _scaled("Model", plain, manager, self._step_options)
        if step is not plain:
            _copy_inputs(plain, step)
        return step


def _default_manager(level):
    return DynamicLossScaleManager() if scales_by_default(level) else None


def _scaled(who, plain, manager, options):
    """Return a step that trains what the TrainOneStepCell `plain` trains, with the manager's scale."""
    if manager is None:
        return _check_only(who, plain, options)
    update_cell = manager.get_update_cell()
    if update_cell is None:
        if options:
            raise ValueError(f"For '{who}', {', '.join(options)} need a step that skips overflow, but the manager "
                             "gives no update cell. Set drop_overflow_update=True.")
        sens = scale_number(who, "loss_scale_manager.get_loss_scale()", manager.get_loss_scale())
        check_constant(who, plain.optimizer, sens)
        return nn.TrainOneStepCell(plain.network, plain.optimizer, sens).set_train()
    ours = isinstance(manager, LossScaleManager)
    kind = TrainStep if options else TrainOneStepWithLossScaleCell
    options = {**(manager.step_options() if ours else {}), **options}
    step = kind(plain.network, plain.optimizer, update_cell, **options).set_train()
    if ours:
        manager.follow(step)
    return step


def _check_only(who, plain, options):
    """Return the TrainOneStepCell `plain`, or with options a step that checks without scaling."""
    if not options:
        return plain
    if options.get("scaling", True):
        raise ValueError(f"For '{who}', {', '.join(options)} need a 'loss_scale_manager', or scaling=False.")
    if plain.optimizer is None:
        raise ValueError(message(who, "optimizer", "an Optimizer if 'scaling' is False", None))
    return TrainStep(plain.network, plain.optimizer, **options).set_train()


def _copy_inputs(plain, step):
    """Give `step` the dynamic shapes that `plain` was given, by position or by name."""
    inputs = plain.get_inputs()
    if isinstance(inputs, dict):
        step.set_inputs(**inputs)
    elif inputs is not None:
        step.set_inputs(*inputs)


def _leave_to_mindspore(who, manager, network, optimizer, boost_level):
    """Return whether only MindSpore's own cells serve this mode; warn if so, and refuse it on CPU."""
    if manager is None:
        return False
    if not isinstance(manager, (NativeLossScaleManager, boost.GroupLossScaleManager)):
        raise TypeError(message(who, "loss_scale_manager", "a LossScaleManager or None", manager))
    mode = _foreign_mode(manager, network, optimizer, boost_level)
    if mode is None:
        return False
    if manager.get_update_cell() is None:
        return True  # nothing is lost: MindSpore's step with a constant scale, which runs on CPU, too
    if context.get_context("device_target") == "CPU":
        raise ValueError(f"For '{who}', loss scaling with {mode} is done by MindSpore's own cells, "
                         "which do not run on CPU.")
    warnings.warn(f"Loss scaling with {mode} is done by MindSpore's own cells: this package's overflow check and step "
                  "counters are not in use.", RuntimeWarning, stacklevel=5 if who == "Model" else 3)
    return True


def _foreign_mode(manager, network, optimizer, boost_level):
    if isinstance(manager, boost.GroupLossScaleManager):
        return "GroupLossScaleManager"
    if boost_level in ("O1", "O2"):
        return f"boost level {boost_level}"
    if _get_pipeline_stages() > 1:
        return "pipeline parallelism"
    if _get_parallel_mode() in (ParallelMode.SEMI_AUTO_PARALLEL, ParallelMode.AUTO_PARALLEL):
        return f"parallel mode {_get_parallel_mode()}"
    cells = network.cells_and_names() if isinstance(network, nn.Cell) else ()
    if {type(cell).__name__ for _, cell in cells} & {"GradAccumulationCell", "GradAccumulation"}:
        return "MindSpore's gradient accumulation cell"
    if isinstance(optimizer, (nn.AdaSumByGradWrapCell, nn.AdaSumByDeltaWeightWrapCell)):
        return "AdaSum"
    if type(optimizer).__name__ in ("ThorAscend", "ThorGpu"):
        return "Thor"
    return None
