"""diagnose: which gradients of a batch are not finite or vanish, why, and what scale would do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops

from ms_lossscale._errors import UnderflowWarning, check_number, message
from ms_lossscale.as_it_was import as_it_was
from ms_lossscale.diagnosis import Diagnosis, Run, suspects_in
from ms_lossscale.first_not_finite import first_not_finite
from ms_lossscale.gradient_figures import RANGES, Range, figures_of
from ms_lossscale.gradients import seed_of
from ms_lossscale.overflow.register import FloatStatusRegister
from ms_lossscale.overflow.values import flatten
from ms_lossscale.reading import find_step, read

LARGEST_ADVICE, SMALLEST_ADVICE = 2.0**24, 2.0**-24


def diagnose(step, *inputs, dtype=None, margin=4):
    r"""
    Say what the gradients of one batch are like, and what follows for the loss scale.

    The batch runs forward and backward in PYNATIVE mode: at the present scale, at scale 1, and at the scale that is
    advised. Nothing is trained: parameters, buffers, counters, the random state and the mode are afterwards what they
    were, also if the network raises. On several devices it looks at the gradients of this one.

    Args:
        step (Cell): The training step, a :class:`TrainOneStepWithLossScaleCell` or a Cell that holds one.

    Keyword Args:
        dtype (mindspore.dtype): The dtype whose range the gradients should fit: float16, bfloat16 or float32; None
            for float16. Default: ``None`` .
        margin (float): How many times larger than now the gradients may become before they overflow at the advised
            scale, from 1 on. Default: ``4`` .

    Inputs:
        - **\*inputs** (Tuple(Tensor)) - The batch, what the step takes.

    Returns:
        Diagnosis, which prints as a report. Its attributes hold the same: `conclusion`, `loss_finite`, `suspects`,
        `first_not_finite`, `advised_scale`, `evidence`, `vanishing`, and the figures of every parameter's gradient
        (`nan`, `inf`, `at_limit`, `zero`, `below`, `largest`) in `at_scale.gradients` and `at_one.gradients`.
        If most of a parameter's gradient vanishes at the present scale, an :class:`UnderflowWarning` says so.

    Raises:
        TypeError: If `step` does no loss scaling, or `margin` is no number.
        ValueError: If `dtype` is another, or `margin` below 1.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import Tensor, nn
        >>> from ms_lossscale import TrainOneStepWithLossScaleCell, diagnose
        >>> network = nn.WithLossCell(nn.Dense(8, 1, weight_init="ones").to_float(ms.float16), nn.MSELoss())
        >>> optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        >>> step = TrainOneStepWithLossScaleCell(network, optimizer, Tensor(2.0**14))
        >>> x, label = Tensor(np.ones((4, 8)), ms.float32), Tensor(np.ones((4, 1)), ms.float32)
        >>> report = diagnose(step, x, label)
        >>> print(report.conclusion)
        At scale 1 the gradients are finite: the scale 16384 is too high.
        >>> print(report.advised_scale)
        1024.0
    """
    found = find_step("diagnose", "step", step)
    dtype = ms.float16 if dtype is None else dtype
    if dtype not in RANGES:
        raise ValueError(message("diagnose", "dtype", "float16, bfloat16 or float32", dtype))
    check_number("diagnose", "margin", margin, 1, "a finite number >= 1")
    saturates = isinstance(found.detector, FloatStatusRegister)
    scale, done = found.get_loss_scale(), read(found).steps
    with as_it_was(found) as reset_random:
        def run_at(value):
            return _run(found, inputs, value, RANGES[dtype], reset_random)

        now, one = run_at(scale), run_at(1.0)
        advised, evidence, reference = _advise(run_at, now, one, saturates, RANGES[dtype], margin)
        reset_random()
        origin = None if _clean(one, saturates) else first_not_finite(found.network, inputs)
    vanishing = _vanishing(now, reference)
    if vanishing:
        warnings.warn(f"At loss scale {scale:g} most of the gradient of {', '.join(vanishing[:3])}"
                      f"{' and others' if len(vanishing) > 3 else ''} is zero or below the normal range of "
                      f"{RANGES[dtype].name}. {evidence}", UnderflowWarning, stacklevel=2)
    return Diagnosis(done, now, one, math.isfinite(now.loss), _conclude(now, one, saturates, origin), origin, advised,
                     evidence, vanishing, RANGES[dtype], saturates)


def _run(step: nn.Cell, inputs: tuple, scale: float, asked: Range, reset_random: Callable[[], None]) -> Run:
    reset_random()
    loss = step.network(*inputs)
    seed = seed_of(loss, Tensor(scale, ms.float32))
    gradient = ops.GradOperation(get_by_list=True, sens_param=True)(step.network, step.weights)
    reset_random()  # the gradient runs the forward pass once more, and all runs are to draw the same
    grads = flatten(gradient(*inputs, seed))
    figures = tuple(figures_of(weight.name, grad, asked) for weight, grad in zip(step.weights, grads))
    return Run(scale, loss.astype(ms.float32).asnumpy().mean().item(), figures)


def _clean(run: Run, saturates: bool) -> bool:
    return math.isfinite(run.loss) and not suspects_in(run, saturates)


def _advise(run_at: Callable, now: Run, one: Run, saturates: bool, asked: Range, margin: float):
    """Return (scale, evidence, the finite run with the most scale): the scale was tried, and halved until it fits."""
    finite = [run for run in (now, one) if _clean(run, saturates) and run.largest > 0]
    trial = _fitting(max(finite, key=lambda run: run.scale), asked, margin) if finite else LARGEST_ADVICE
    if not math.isfinite(one.loss):
        return None, "No scale is advised: the loss is not finite.", None
    while trial >= SMALLEST_ADVICE:
        run = run_at(trial)
        if _clean(run, saturates):
            if run.largest == 0:
                return None, f"No scale is advised: all gradients are zero, at scale {trial:g} too.", None
            fitting = min(trial, _fitting(run, asked, margin))
            return fitting, (f"Advised start: {fitting:g}, the largest power of two at which the largest gradient "
                             f"({run.largest:.3g}) stays {margin:g} times under {asked.largest:g}, at most 2**24. "
                             f"Tried at {trial:g}: finite."), run
        trial /= 2 if finite else 16
    return None, f"No scale is advised: the gradients overflow at {SMALLEST_ADVICE:g}, too.", None


def _fitting(run: Run, asked: Range, margin: float) -> float:
    _, exponent = math.frexp(asked.largest / run.largest / margin)
    return min(max(2.0 ** (exponent - 1), SMALLEST_ADVICE), LARGEST_ADVICE)


def _vanishing(now: Run, reference: Run | None) -> tuple[str, ...]:
    """Return the parameters of whose elements that are not zero at the reference's scale most vanish now."""
    if reference is None or not now.finite:
        return ()
    return tuple(here.name for here, there in zip(now.gradients, reference.gradients)
                 if there.zero < 1 and here.below - there.zero > 0.5 * (1 - there.zero))


def _conclude(now: Run, one: Run, saturates: bool, origin: str | None) -> str:
    if _clean(now, saturates):
        return f"At scale {now.scale:g} the loss and all gradients are finite."
    if _clean(one, saturates):
        return f"At scale 1 the gradients are finite: the scale {now.scale:g} is too high."
    nan = math.isnan(one.loss) or any(each.nan for each in one.gradients)
    inf = math.isinf(one.loss) or any(each.inf for each in one.gradients)
    what = "NaN" if nan else "Inf" if inf else "A gradient at the dtype's largest number"
    if origin is None:
        names = [each.name for each in suspects_in(one, saturates)]
        origin = f"the gradient of '{names[-1]}', backward" if names else "the loss"
        if not nan:
            return (f"{what} at scale 1, though the loss is finite: a scale below 1 (min_loss_scale) may help; first "
                    f"non-finite: {origin}.")
    return f"{what} at scale 1: not a loss-scale problem; first non-finite: {origin}."
