"""LossScaleMonitor: says, now and then, what loss scaling does."""

from __future__ import annotations

from mindspore.train import Callback

from ms_lossscale._errors import check_bool, check_positive_int
from ms_lossscale.diagnose import diagnose
from ms_lossscale.event_file import EventFile
from ms_lossscale.history import History
from ms_lossscale.monitor_text import Lines, summary
from ms_lossscale.reading import before_last_step, find_step, loss_of, norm_of, read


class LossScaleMonitor(Callback):
    """
    Shows what loss scaling does in a training: lines, a summary, a history file, TensorBoard, and a diagnosis.

    Every `interval` steps it reads the step's counters from the device and prints a line: the step, the loss, the
    loss scale, the steps applied and skipped since the last line, and the overflows in a row. In between it reads
    nothing, so the device need not wait. The numbers are differences of the counters: inside a data sink, where a
    callback is called once a sink, they are as right as outside it. While every step overflows, only the first,
    second, fourth, eighth... of the lines is printed.

    In a training loop of your own, use it in a ``with`` statement and call `step` after every training step.

    Args:
        interval (int, optional): The steps from one line to the next. Default: ``100`` .

    Keyword Args:
        history (str): A file to which each line is appended as JSON too, for :func:`plot_history`. A training that
            is resumed goes on in it; one that starts anew keeps the old file as ``<history>.old``.
            Default: ``None`` .
        tensorboard (str): A folder for TensorBoard event files: the loss, the scale, the skipped steps, and the
            gradient norm of a step that clips. Needs ``ms_lossscale[tensorboard]``. Default: ``None`` .
        diagnose_after (int): Once so many steps in a row overflowed, the next line comes with what
            :func:`diagnose` says of the batch; None for never. Default: ``25`` .
        quiet (bool): Whether to print nothing but a diagnosis. Default: ``False`` .

    Raises:
        TypeError: If an argument has another type than stated; in training, if the step does no loss scaling.
        ValueError: If `interval` or `diagnose_after` is below 1.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import LossScaleMonitor, TrainOneStepWithLossScaleCell
        >>> network = nn.Dense(4, 2, weight_init="zeros", bias_init="zeros")
        >>> optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
        >>> step = TrainOneStepWithLossScaleCell(nn.WithLossCell(network, nn.MSELoss()), optimizer, Tensor(1024.0))
        >>> x, label = Tensor(np.zeros((3, 4)), ms.float32), Tensor(np.zeros((3, 2)), ms.float32)
        >>> with LossScaleMonitor(2) as monitor:
        ...     for _ in range(4):
        ...         outputs = step(x, label)
        ...         monitor.step(step, outputs, (x, label))
        step 2 | loss 0 | scale 2**10 | applied 2, skipped 0 | 0 overflows in a row
        step 4 | loss 0 | scale 2**10 | applied 2, skipped 0 | 0 overflows in a row
        loss scaling: 4 steps, 4 applied, 0 skipped (0 %); scale 2**10, seen from 2**10 to 2**10
    """

    def __init__(self, interval=100, *, history=None, tensorboard=None, diagnose_after=25, quiet=False):
        super().__init__()
        self._interval = check_positive_int("LossScaleMonitor", "interval", interval)
        self._history, self._tensorboard = history, tensorboard
        if diagnose_after is not None:
            check_positive_int("LossScaleMonitor", "diagnose_after", diagnose_after)
        self._diagnose_after = diagnose_after
        self._quiet = check_bool("LossScaleMonitor", "quiet", quiet)
        self._step = None

    def step(self, step, outputs=None, inputs=None):
        """
        Tell the monitor that a step of a training loop of your own was done.

        Args:
            step (Cell): The training step, a :class:`TrainOneStepWithLossScaleCell` or a Cell that holds one.
            outputs (tuple): What it returned; its first item is the loss. Default: ``None`` .
            inputs (tuple): What it was called with, for a diagnosis; not kept. Default: ``None`` .
        """
        if self._step is None:
            found = find_step("LossScaleMonitor.step", "step", step)
            self._open(found, before_last_step(read(found)))
        self._pass(1, outputs, inputs)

    def close(self):
        """
        Print a line if steps were done since the last one, then the summary, and close the files.

        The end of a ``with`` statement and of :meth:`mindspore.train.Model.train` calls it, after an error too.
        """
        if self._step is None:
            return
        try:
            now = read(self._step)  # what raised in a step may have been counted before
            if now != self._last:
                self._report(now, self._outputs, None)
            if not self._quiet:
                print(summary(self._first, self._last, self._scales), flush=True)
        finally:
            self._step = self._outputs = None
            for file in self._files:
                file.close()

    def on_train_begin(self, run_context):
        """
        Note where the training starts.

        Args:
            run_context (RunContext): As :class:`mindspore.train.Callback` takes it.
        """
        self.close()
        arguments = run_context.original_args()
        step = find_step("LossScaleMonitor", "train_network", arguments.train_network)
        self._open(step, read(step))
        self._seen_step = arguments.cur_step_num

    def on_train_step_end(self, run_context):
        """
        Read the step if it is time.

        Args:
            run_context (RunContext): As :class:`mindspore.train.Callback` takes it.
        """
        arguments = run_context.original_args()
        done = arguments.cur_step_num - self._seen_step
        self._seen_step = arguments.cur_step_num
        inputs = None if arguments.get("dataset_sink_mode") else arguments.get("train_dataset_element")
        self._pass(done, arguments.net_outputs, inputs)

    def on_train_end(self, run_context):
        """
        Print the summary.

        Args:
            run_context (RunContext): As :class:`mindspore.train.Callback` takes it.
        """
        self.close()

    def __exit__(self, *error):
        self.close()

    def _open(self, step, start):
        self._first = self._last = start
        self._scales = (step.get_loss_scale(),) * 3  # lowest, highest, last
        self._unread, self._outputs, self._diagnosed = 0, None, False
        self._lines = Lines()
        self._files = []
        self._history_file = self._event_file = None
        if self._history is not None:
            self._history_file = History(self._history, start.steps)
            self._files.append(self._history_file)
        if self._tensorboard is not None:
            self._event_file = EventFile(self._tensorboard, start.steps)
            self._files.append(self._event_file)
        self._step = step

    def _pass(self, steps, outputs, inputs):
        """Count `steps` done; report when there are enough of them."""
        self._unread += steps
        self._outputs = outputs
        if self._unread >= self._interval:
            self._report(read(self._step), outputs, inputs)

    def _report(self, now, outputs, inputs):
        before, self._last, self._unread = self._last, now, 0
        scale, norm = self._step.get_loss_scale(), norm_of(self._step)
        self._scales = min(self._scales[0], scale), max(self._scales[1], scale), scale
        record = {"step": now.steps, "loss": loss_of(outputs), "scale": scale, "applied": now.applied - before.applied,
                  "skipped": now.skipped - before.skipped, "consecutive_overflows": now.in_a_row}
        if norm is not None:
            record["gradient_norm"] = norm
        if self._history_file:
            self._history_file.write(record)
        if self._event_file:
            self._event_file.write({name: value for name, value in record.items() if value is not None}, now.skipped)
        line = self._lines.line(record)
        if line and not self._quiet:
            print(line, flush=True)
        self._maybe_diagnose(now, inputs)

    def _maybe_diagnose(self, now, inputs):
        """Once in a row of overflows, look into the batch; the row has not ended, so it overflowed too."""
        if self._diagnose_after is None or now.in_a_row < self._diagnose_after:
            self._diagnosed = False
        elif not self._diagnosed:
            self._diagnosed = True
            print(f"{now.in_a_row} steps in a row overflowed.", flush=True)
            if inputs is None:
                print("To learn why: print(ms_lossscale.diagnose(step, *batch)).", flush=True)
            else:
                batch = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
                print(diagnose(self._step, *batch), flush=True)
