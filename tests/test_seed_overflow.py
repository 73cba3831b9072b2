"""A scale that the loss's dtype cannot carry is reported once, or lowered by option."""

import warnings

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from test_stuck import SinkRun

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    LossScaleWarning,
    Model,
    SeedOverflowWarning,
    TrainOneStepWithLossScaleCell,
    build_train_network,
)

BFLOAT16 = [ms.bfloat16] if hasattr(ms, "bfloat16") else []


class Loss(nn.Cell):
    """A loss of the dtype asked for; the gradient is tiny, so nothing else overflows."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.weight = Parameter(Tensor(np.ones(2, np.float32)), name="weight")

    def construct(self, factor, label):
        return ops.cast((self.weight * factor * label).sum(), self.dtype)


def parts(dtype):
    network = Loss(dtype)
    return network, nn.SGD(network.trainable_params(), 0.5)


def step_of(dtype, scale_sense, **options):
    return TrainOneStepWithLossScaleCell(*parts(dtype), scale_sense, **options)


def feed(step, times=1):
    """Return the flags of so many calls."""
    return [bool(step(Tensor(1e-6, ms.float32), Tensor(1.0))[1].asnumpy()) for _ in range(times)]


@pytest.mark.parametrize("make", [lambda: Tensor(2.0**24), lambda: Tensor([2.0**16]),
                                  lambda: DynamicLossScaleUpdateCell(65520, 2, 100)],
                         ids=["2**24", "2**16 of shape (1,)", "65520 in an update cell"])
def test_a_scale_beyond_a_float16_loss_is_reported_once_with_the_remedy(make, mode):
    step = step_of(ms.float16, make())
    scale = step.get_loss_scale()
    with pytest.warns(SeedOverflowWarning) as caught:
        assert feed(step, 3)[0]
    assert len(caught) == 1 and caught[0].filename == __file__
    text = str(caught[0].message)
    assert f"The loss is float16 and the loss scale {scale:g}" in text
    assert all(remedy in text for remedy in ("float32 loss", "2**15 or less", "fit_loss_dtype=True"))


@pytest.mark.parametrize("dtype", [ms.float32, *BFLOAT16], ids=str)
def test_a_loss_that_carries_the_scale_is_not_reported(dtype, mode):
    step = step_of(dtype, Tensor(2.0**24))
    assert feed(step) == [False]


@pytest.mark.parametrize("scale", [2.0**15, 65504, 65519])
def test_a_scale_that_float16_holds_or_rounds_to_a_finite_number_is_not_reported(scale, mode):
    assert feed(step_of(ms.float16, Tensor(scale, ms.float32))) == [False]


@pytest.mark.parametrize("make", [lambda: Tensor(2.0**24), lambda: Tensor([2.0**24]),
                                  lambda: DynamicLossScaleUpdateCell(2**24, 2, 100)],
                         ids=["Tensor", "Tensor of shape (1,)", "dynamic"])
def test_by_option_training_goes_on_from_the_largest_power_of_two_that_fits(make, mode):
    step = step_of(ms.float16, make(), fit_loss_dtype=True)
    shape = step.scale_sense.shape
    assert feed(step, 3) == [True, False, False]
    assert step.get_loss_scale() == 2.0**15 and step.scale_sense.shape == shape
    assert step.applied_steps.asnumpy() == 2


def test_the_option_never_raises_a_scale(mode):
    step = step_of(ms.float16, DynamicLossScaleUpdateCell(2**16, 1024, 100), fit_loss_dtype=True)
    assert feed(step, 2) == [True, False] and step.get_loss_scale() == 64


def test_the_option_does_nothing_for_a_loss_that_carries_the_scale(mode):
    step = step_of(ms.float32, Tensor(2.0**24), fit_loss_dtype=True)
    feed(step)
    assert step.get_loss_scale() == 2.0**24


def test_a_minimum_that_float16_cannot_carry_is_reported_in_spite_of_the_option(mode):
    step = step_of(ms.float16, DynamicLossScaleUpdateCell(2**24, 2, 100, min_loss_scale=2**17), fit_loss_dtype=True)
    with pytest.warns(SeedOverflowWarning):
        feed(step)


def data(steps):
    return NumpySlicesDataset((np.full(steps, 1e-6, np.float32), np.ones(steps, np.float32)), shuffle=False)


@pytest.mark.parametrize("make", [lambda **options: DynamicLossScaleManager(2**24, **options),
                                  lambda **options: FixedLossScaleManager(2**24, **options)], ids=["dynamic", "fixed"])
def test_the_option_of_a_manager_reaches_model_and_build_train_network(make, mode):
    manager = make(fit_loss_dtype=True)
    network, optimizer = parts(ms.float16)
    model = Model(network, None, optimizer, loss_scale_manager=manager)
    model.train(1, data(3), dataset_sink_mode=False)
    assert (model.train_network.skipped_steps.asnumpy(), manager.get_loss_scale()) == (1, 2.0**15)
    step = build_train_network(*parts(ms.float16), loss_scale_manager=make(fit_loss_dtype=True))
    assert feed(step, 2) == [True, False] and step.get_loss_scale() == 2.0**15


@pytest.mark.parametrize("fit", [True, False])
def test_in_a_data_sink_it_is_found_after_the_first_sink(fit, mode, monkeypatch):
    manager = DynamicLossScaleManager(2**24, fit_loss_dtype=fit)
    network, optimizer = parts(ms.float16)
    model = Model(network, None, optimizer, loss_scale_manager=manager)
    SinkRun(model, monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LossScaleWarning)
        model.train(1, [(1e-6, 1e-6), (1e-6, 1e-6)], dataset_sink_mode=True)
    assert len([warning for warning in caught if warning.category is SeedOverflowWarning]) == (0 if fit else 1)
    if fit:
        assert manager.get_loss_scale() == 2.0**15


class LossAlone(TrainOneStepWithLossScaleCell):
    def construct(self, *inputs):
        return super().construct(*inputs)[0]


def test_a_subclass_that_returns_the_loss_alone_is_watched_too(mode):
    step = LossAlone(*parts(ms.float16), Tensor(2.0**24))
    with pytest.warns(SeedOverflowWarning):
        step(Tensor(1e-6, ms.float32), Tensor(1.0))
