"""The warning for gradients that are divided by the loss scale twice, and its silence where they are not."""

import gc
import warnings

import mindspore as ms
import pytest
from mindspore import Parameter, Tensor, nn, ops

from ms_lossscale import DynamicLossScaler, LossScaleWarning, StaticLossScaler, all_finite
from ms_lossscale._versions import RowTensor

TWICE = "'unscale' was called again for gradients that it has already divided by the loss scale"


@pytest.fixture(params=[StaticLossScaler, lambda scale: DynamicLossScaler(scale, 2, 2)], ids=["static", "dynamic"])
def scaler(request):
    return request.param(8.0)


@pytest.fixture
def silent():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def grads():
    return Tensor([1.0, 2.0]), Tensor([[3.0]])


def test_what_unscale_returned_is_not_to_be_unscaled(mode, scaler):
    once = scaler.unscale(grads())
    with pytest.warns(LossScaleWarning, match=TWICE) as caught:
        scaler.unscale(once)
    assert len(caught) == 1 and type(scaler).__name__ in str(caught[0].message)
    assert caught[0].filename == __file__


def test_nor_one_tensor_of_it_nested_anew(mode, scaler):
    first, second = scaler.unscale({"w": grads()[0], "b": grads()[1]}).values()
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale([Tensor([5.0]), (second,)])
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(first)


def test_nor_the_same_gradients_again(mode, scaler):
    given = grads()
    scaler.unscale(given)
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(given)


def test_nor_what_unscale_returned_before_adjust(mode, scaler):
    scaler.scale(Tensor(1.0))
    once = scaler.unscale(grads())
    scaler.adjust(True)
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(once)


def test_nor_rows(mode, scaler):
    rows = scaler.unscale([RowTensor(Tensor([1], ms.int32), Tensor([[1.0, 2.0]]), (3, 2))])
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(rows)


def test_nor_gradients_that_were_clipped_meanwhile(mode, scaler):
    scaler.scale(Tensor(1.0))
    clipped = ops.clip_by_value(scaler.unscale(grads()), -1.0, 1.0)
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(tuple(clipped))


def test_a_step_as_mindspores_tutorial_writes_it_is_silent(mode, scaler, silent):
    for _ in range(4):
        loss = scaler.scale(Tensor(1.0))
        loss = scaler.unscale(loss)
        given = grads()
        if all_finite(given):
            scaler.unscale(given)
        scaler.adjust(True)


def test_steps_without_adjust_are_silent(mode, scaler, silent):
    for _ in range(4):
        scaler.scale(Tensor(1.0))
        scaler.unscale(grads())


def test_steps_whose_loss_is_scaled_elsewhere_are_silent(mode, scaler, silent):
    for _ in range(4):
        scaler.unscale(grads())


def test_a_skipped_step_is_silent(mode, scaler, silent):
    for finite in (True, False, False, True):
        scaler.scale(Tensor(1.0))
        if finite:
            scaler.unscale(grads())
        scaler.adjust(finite)


def test_two_networks_with_one_scaler_are_silent_in_any_order(mode, scaler, silent):
    for _ in range(2):
        scaler.scale(Tensor(1.0))
        scaler.unscale(grads())
        scaler.scale(Tensor(2.0))
        scaler.unscale(grads())
        scaler.adjust(True)
    for _ in range(2):
        scaler.scale(Tensor(1.0))
        scaler.scale(Tensor(2.0))
        scaler.unscale(grads())
        scaler.unscale(grads())
        scaler.adjust(True)


def test_parts_of_the_gradients_and_several_losses_are_silent(mode, scaler, silent):
    scaler.scale(Tensor(1.0))
    for part in grads():
        scaler.unscale(part)
    scaler.unscale(Tensor(3.0))
    scaler.unscale(Tensor(4.0))
    scaler.unscale(grads()[:1])
    scaler.unscale(grads())


def test_accumulators_that_are_parameters_are_silent(mode, silent):
    scaler = StaticLossScaler(8.0)
    accumulated = [Parameter(Tensor([1.0]), name="accumulated")]
    for _ in range(3):
        scaler.unscale(accumulated)


def test_a_new_scale_ends_the_memory(mode, scaler, silent):
    once = scaler.unscale(grads())
    scaler.scale(Tensor(1.0))
    scaler.unscale(once)


def test_nothing_is_kept_alive(mode, scaler, silent):
    for _ in range(3):
        scaler.unscale(grads())
    gc.collect()
    assert not scaler.watch.record._tensors


def test_two_scalers_do_not_know_of_each_other(mode, silent):
    first, second = StaticLossScaler(8.0), StaticLossScaler(4.0)
    second.unscale(first.unscale(grads()))


def test_real_gradients_are_recognized(mode):
    scaler, network = DynamicLossScaler(8.0, 2, 2), nn.Dense(2, 1)

    def forward(x):
        return scaler.scale(network(x).sum())

    grad = ms.grad(forward, None, network.trainable_params())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            once = scaler.unscale(grad(Tensor([[1.0, 2.0]])))
            scaler.adjust(all_finite(once))
        once = scaler.unscale(grad(Tensor([[1.0, 2.0]])))
    with pytest.warns(LossScaleWarning, match=TWICE):
        scaler.unscale(once)


def test_a_copy_starts_without_a_memory(mode, silent):
    import copy
    scaler = StaticLossScaler(8.0)
    once = scaler.unscale(grads())
    copy.deepcopy(scaler).unscale(once)


def test_a_graph_says_nothing(mode, silent):
    scaler = StaticLossScaler(8.0)

    @ms.jit
    def run(a):
        return scaler.unscale(scaler.unscale((a,)))[0]

    assert run(Tensor([64.0])).asnumpy() == 1.0
