"""What looks at a step from outside where the step itself cannot: in a data sink, and at a step that scales nothing."""

from __future__ import annotations

from mindspore import nn
from mindspore.train import Callback, RunContext

from ms_lossscale.misuse import check_unscaled_loss


class WatchSink(Callback):
    """In a data sink the step is part of a larger graph and is not called; this looks once a sink."""

    done = False

    def __init__(self, step: nn.Cell) -> None:
        super().__init__()
        self._step = step

    def on_train_step_begin(self, run_context: RunContext) -> None:
        if run_context.original_args().dataset_sink_mode:
            self._step.watch.before(self._step)

    def on_train_step_end(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        if arguments.dataset_sink_mode:
            self._step.watch.after(self._step, getattr(arguments, "net_outputs", None), whole_sink=True)


class FirstLoss(Callback):
    """Looks once at what MindSpore's own step returned in a Model: only then is the dtype of the loss known."""

    def __init__(self, step: nn.Cell) -> None:
        super().__init__()
        self._step, self.done = step, False

    def on_train_step_end(self, run_context: RunContext) -> None:
        if not self.done:
            self.done = True
            outputs = getattr(run_context.original_args(), "net_outputs", None)
            check_unscaled_loss("Model", self._step.optimizer, self._step.network, outputs)


class _NotCalledYet(nn.TrainOneStepCell):
    """What MindSpore's own step is until its first call. No hook would do: GRAPH mode ignores or compiles it."""

    def __call__(self, *args, **kwargs):
        outputs = super().__call__(*args, **kwargs)
        self.__class__ = nn.TrainOneStepCell
        check_unscaled_loss("build_train_network", self.optimizer, self.network, outputs)
        return outputs


_NotCalledYet.__name__ = _NotCalledYet.__qualname__ = nn.TrainOneStepCell.__name__


def look_at_first_call(step: nn.Cell) -> None:
    """If `step` is MindSpore's own, look at the loss of its first call; from then on it is as MindSpore built it."""
    if type(step) is nn.TrainOneStepCell:
        step.__class__ = _NotCalledYet
