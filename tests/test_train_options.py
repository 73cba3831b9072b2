"""Clipping, accumulation, restored buffers and the gate without scaling: TrainStep's options."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.dataset import NumpySlicesDataset
from poisoned import OPTIMIZERS, batch, bits, changed, counters, gated, numbers, with_loss

from ms_lossscale import (
    CheckpointWarning,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    Model,
    TrainOneStepWithLossScaleCell,
    TrainStep,
    build_train_network,
    compiled,
    load_checkpoint,
)
from ms_lossscale._versions import assign_now
from ms_lossscale.clip import ClipByNorm, ClipByNormOnHost

INF = float("inf")


def built(scale=1024.0, optimizer="Momentum", batch_norm=False, kind=TrainStep, **options):
    ms.set_seed(1)
    network = with_loss(batch_norm)
    scale = Tensor(scale) if isinstance(scale, float) else scale
    return kind(network, OPTIMIZERS[optimizer](network.trainable_params()), scale, **options).set_train()


def weights(step):
    return np.concatenate([weight.asnumpy().reshape(-1) for weight in step.weights])


def sgd(**options):
    """A step that moves the weights by exactly the gradients."""
    network = with_loss()
    return TrainStep(network, nn.SGD(network.trainable_params(), 1.0), Tensor(64.0), **options).set_train()


class Times(nn.Cell):
    """A reduction over ranks that multiplies the first gradient by `factor`, and counts how often it is asked."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = Parameter(Tensor(factor), name="factor", requires_grad=False)
        self.calls = Parameter(Tensor(0, ms.int32), name="calls", requires_grad=False)

    def construct(self, grads):
        first = ops.depend(grads[0] * self.factor, ops.assign_add(self.calls, Tensor(1, ms.int32)))
        return (first,) + grads[1:]  # noqa: RUF005


def test_the_step_with_all_options_off_does_what_the_documented_step_does(mode):
    ours, documented = built(), built(kind=TrainOneStepWithLossScaleCell)
    for place in (None, "middle", None):
        outputs = [[o.asnumpy().tobytes() for o in step(*batch(place, INF))] for step in (ours, documented)]
        assert outputs[0] == outputs[1]
        assert changed(gated(ours), gated(documented)) == set()


def test_clipping_by_norm_limits_the_unscaled_reduced_gradients_and_keeps_their_direction(mode):
    free, clipped = sgd(), sgd(clip_norm=0.01)
    free.grad_reducer, clipped.grad_reducer = Times(4.0), Times(4.0)
    start = weights(free)
    free(*batch())[0].asnumpy()
    clipped(*batch())[0].asnumpy()
    grads, limited = start - weights(free), start - weights(clipped)
    norm = np.linalg.norm(grads)
    assert norm > 0.1
    np.testing.assert_allclose(limited, grads * 0.01 / norm, atol=1e-6)
    assert clipped.get_global_norm() == pytest.approx(norm, rel=1e-4)


def test_a_norm_that_overflows_is_clipped_if_the_gradients_are_finite_and_skipped_if_not(mode):
    step = sgd(clip_norm=1.0)
    start = weights(step)
    assert numbers(step(*batch("middle", 1e30))[1]) == (False,)
    assert np.linalg.norm(start - weights(step)) == pytest.approx(1, rel=1e-4)
    before = gated(step)
    for place, number in (("first", INF), ("last", float("nan"))):
        assert numbers(step(*batch(place, number))[1]) == (True,)
    assert changed(before, gated(step)) == set()
    assert counters(step) == (1, 2, 2)


def clips(limit, count, dtype=ms.float32):
    """Both ways to clip by norm: MindSpore's operators, for any device, and the one operator of CPU."""
    weights = [Parameter(Tensor(1, dtype), name=f"weight{k}") for k in range(count)]
    return [ClipByNorm(limit), ClipByNormOnHost(limit, weights)]


def test_the_norm_of_float16_gradients_is_float32(mode):
    for clip in clips(2.5e-5, 1, ms.float16):
        (grad,), overflow = clip((Tensor([3e-5, -4e-5], ms.float16),))  # float16 holds no square of these
        assert (numbers(overflow), grad.dtype) == ((False,), ms.float16)
        assert numbers(clip.global_norm) == pytest.approx((5e-5,), rel=1e-2)
        np.testing.assert_allclose(grad.asnumpy(), [1.5e-5, -2e-5], rtol=1e-2)


def test_a_sum_of_squares_beyond_float32_is_no_overflow_and_clips_exactly(mode):
    for clip in clips(3e38, 2):
        grads, overflow = clip((Tensor([3e38, 0], ms.float32), Tensor([-3e38], ms.float32)))
        assert numbers(overflow, clip.global_norm) == (False, INF)  # the norm is 4.2e38
        np.testing.assert_allclose(grads[0].asnumpy()[0] / 3e38, np.sqrt(0.5), rtol=1e-6)
        for bad in (INF, -INF, float("nan")):
            assert numbers(clip((Tensor([3e38, 0], ms.float32), Tensor([bad], ms.float32)))[1]) == (True,)


class Apart(TrainStep):
    """A method of its own keeps a step from making one pass of all."""

    def unscale(self, grads):
        return super(Apart, self).unscale(grads)  # noqa: UP008  graph mode needs the class


def test_one_pass_its_parts_and_no_compiled_part_give_the_same_bits(mode, monkeypatch):
    made = []
    for kind, switch in ((TrainStep, "1"), (TrainStep, "0"), (Apart, "1"), (Apart, "0")):
        monkeypatch.setenv(compiled.SWITCH, switch)
        for options in ({"clip_norm": 0.1}, {"clip_norm": 1e9}, {"clip_value": 0.01},
                        {"clip_norm": 0.1, "clip_value": 0.02, "accumulation_steps": 2}):
            step = built(3.0, kind=kind, **options)
            for place in (None, None, "last", None):
                step(*batch(place, INF))[0].asnumpy()
            norm = step.get_global_norm() if "clip_norm" in options else None
            made.append((gated(step), norm, numbers(step.applied_steps, step.skipped_steps)))
    assert made[:4] == made[4:8] == made[8:12] == made[12:]
    assert made[0][1] > 0.1 and made[0] != made[1] and [numbers[0] for _, _, numbers in made[:4]] == [3, 3, 3, 1]


@pytest.mark.slow
def test_clipping_by_value_limits_every_element_and_hides_no_infinity(mode):
    step = sgd(clip_value=0.01)
    start = weights(step)
    assert numbers(step(*batch())[1]) == (False,)
    moved = np.abs(start - weights(step))
    assert moved.max() == pytest.approx(0.01, rel=1e-3)
    assert numbers(step(*batch("first", INF))[1]) == (True,)


def test_a_window_equals_one_big_batch_and_moves_everything_once(mode):
    big = built(optimizer="scheduled Momentum")
    small = built(DynamicLossScaleUpdateCell(2.0**10, 2, 1), "scheduled Momentum", accumulation_steps=3)
    small.grad_reducer = Times()
    data, label = batch()
    outcomes = []
    big(data, label)[0].asnumpy()
    for k in range(3):
        small(data[2 * k:2 * k + 2], label[2 * k:2 * k + 2])[0].asnumpy()
        once = numbers(small.optimizer.global_step, small.grad_reducer.calls)
        outcomes.append((small.get_outcome(), *counters(small)[:2], *once, small.get_loss_scale()))
    assert outcomes == [("accumulated", 0, 0, 0, 0, 1024.0)] * 2 + [("applied", 1, 0, 1, 1, 2048.0)]
    np.testing.assert_allclose(weights(small), weights(big), atol=1e-6)


def test_an_overflow_drops_its_window_and_leaves_nothing_in_the_next(mode):
    step, clean = built(accumulation_steps=2), built(accumulation_steps=2)
    start, seen = gated(step), []
    for place in ("middle", None):
        seen.append(numbers(step(*batch(place, INF))[1])[0])
    assert (seen, step.get_outcome(), counters(step)) == ([True, False], "skipped", (0, 1, 1))
    assert changed(start, gated(step)) == set()
    for seed in (1, 2):
        assert numbers(step(*batch(seed=seed))[1], clean(*batch(seed=seed))[1]) == (False, False)
    assert changed(gated(step), gated(clean)) == set()


@pytest.mark.slow
def test_dropping_the_micro_step_alone_takes_the_mean_of_those_kept(mode):
    step, alone = built(accumulation_steps=2, drop_window=False), built()
    seen = [numbers(step(*batch(place, INF))[1])[0] for place in ("first", None)]
    alone(*batch())[0].asnumpy()
    assert (seen, step.get_outcome()) == ([True, False], "applied")
    np.testing.assert_allclose(weights(step), weights(alone), atol=1e-6)
    for place in ("first", "last"):
        step(*batch(place, INF))[0].asnumpy()
    assert (step.get_outcome(), counters(step)) == ("skipped", (1, 1, 1))


def test_a_resume_inside_a_window_is_exact(mode):
    one, other = built(accumulation_steps=3), built(accumulation_steps=3)
    for seed in range(4):
        one(*batch(seed=seed))[0].asnumpy()
    ms.save_checkpoint(one, "window.ckpt")
    ms.load_param_into_net(other, ms.load_checkpoint("window.ckpt"))
    for seed in range(4, 8):
        one(*batch(seed=seed))[0].asnumpy()
        other(*batch(seed=seed))[0].asnumpy()
    assert changed(bits(one.get_parameters()), bits(other.get_parameters())) == set()


@pytest.mark.parametrize("options", [
    {}, pytest.param({"accumulation_steps": 2}, marks=pytest.mark.slow),
    pytest.param({"accumulation_steps": 2, "drop_window": False}, marks=pytest.mark.slow)])
def test_a_skipped_step_restores_the_statistics_of_batch_norm(mode, options):
    step = built(batch_norm=True, restore_buffers=True, **options)
    before = bits(step.restore.buffers)
    data, label = batch()
    for _ in range(options.get("accumulation_steps", 1)):
        step(data * INF, label)[0].asnumpy()
    assert (changed(before, bits(step.restore.buffers)), step.get_outcome()) == (set(), "skipped")
    for _ in range(options.get("accumulation_steps", 1)):
        step(data, label)[0].asnumpy()
    assert len(changed(before, bits(step.restore.buffers))) == 2


def test_a_window_that_overflows_when_it_is_reduced_restores_what_it_kept(mode):
    step = built(batch_norm=True, restore_buffers=True, accumulation_steps=2, drop_window=False)
    step.grad_reducer = Times()
    before = bits(step.restore.buffers)
    assign_now(step.grad_reducer.factor, Tensor(INF))
    seen = [numbers(step(*batch(seed=seed))[1])[0] for seed in (1, 2)]
    assert (seen, step.get_outcome(), changed(before, bits(step.restore.buffers))) == ([False, True], "skipped", set())


@pytest.mark.slow
def test_a_dropped_micro_step_restores_the_statistics_of_the_one_before(mode):
    step = built(batch_norm=True, restore_buffers=True, accumulation_steps=3, drop_window=False)
    data, label = batch()
    step(data, label)[0].asnumpy()
    before = bits(step.restore.buffers)
    step(data * INF, label)[0].asnumpy()
    assert changed(before, bits(step.restore.buffers)) == set()


class Suspicious(TrainStep):
    """A step that takes a gradient above 5 for an overflow."""

    def get_overflow_status(self, status, compute_output):
        return ops.abs(compute_output[0]).max() > 5.0


@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"accumulation_steps": 2}], ids=str)
def test_a_check_of_a_subclass_is_asked(mode, options):
    step = built(kind=Suspicious, **options)
    for number, told in ((0.0, False), (9.0, True)):
        for _ in range(options.get("accumulation_steps", 1)):
            assert numbers(step(*batch("first", number))[1]) == (told,)
    assert counters(step) == (1, 1, 1)


@pytest.mark.parametrize("option", ["clip_norm", "clip_value", "accumulation_steps"])
def test_gradients_that_are_row_tensors_are_refused_where_they_would_be_limited_or_summed(option):
    class Sparse(nn.Cell):
        def __init__(self):
            super().__init__()
            self.table = nn.EmbeddingLookup(4, 2, sparse=True)

        def construct(self, x):
            return self.table(x).mean()

    network = Sparse()
    optimizer = nn.LazyAdam(network.trainable_params(), 0.1)
    TrainStep(network, optimizer, Tensor(2.0), restore_buffers=True)
    with pytest.raises(ValueError, match=r"no RowTensor gradients .* sparse=False"):
        TrainStep(network, optimizer, Tensor(2.0), **{option: 2})


def test_the_norm_of_a_step_that_does_not_clip_is_refused():
    with pytest.raises(RuntimeError, match="without 'clip_norm'"):
        built().get_global_norm()


# Checkpoints.

OPTIONS = {"accumulation_steps": 2, "clip_norm": 1.0, "restore_buffers": True, "batch_norm": True}


def test_a_checkpoint_of_the_plain_step_starts_the_options_fresh_and_says_so(mode):
    plain, step = built(batch_norm=True, kind=TrainOneStepWithLossScaleCell), built(**OPTIONS)
    for _ in range(2):
        plain(*batch())[0].asnumpy()
    for seed in (1, 2, 3):  # ends inside a window
        step(*batch(seed=seed))[0].asnumpy()
    ms.save_checkpoint(plain, "plain.ckpt")
    with pytest.warns(CheckpointWarning, match="micro_step = 0"):
        assumed = load_checkpoint(step, "plain.ckpt")
    assert assumed == {"micro_step": 0, "kept_micro_steps": 0, "last_outcome": 0, "global_norm": 0}
    assert not any(total.asnumpy().any() for total in step.accumulate.accumulated)
    for copy, buffer in zip(step.restore.kept, step.restore.buffers):
        np.testing.assert_array_equal(copy.asnumpy(), buffer.asnumpy())
    assert changed(gated(plain), gated(step)) == set()
    assert counters(step) == (2, 0, 0)
    step(*batch())[0].asnumpy()
    assert step.get_outcome() == "accumulated"


def test_a_checkpoint_of_a_step_with_options_loads_into_the_plain_one_and_into_itself(graph_mode):
    step, plain = built(**OPTIONS), built(batch_norm=True, kind=TrainOneStepWithLossScaleCell)
    for seed in (1, 2, 3):
        step(*batch(seed=seed))[0].asnumpy()
    ms.save_checkpoint(step, "step.ckpt")
    assert load_checkpoint(plain, "step.ckpt") == {}
    assert (changed(gated(plain), gated(step)), counters(plain)) == (set(), (1, 0, 0))
    other = built(**OPTIONS)
    assert load_checkpoint(other, "step.ckpt") == {}
    assert changed(bits(step.get_parameters()), bits(other.get_parameters())) == set()


def test_a_checkpoint_with_a_part_of_a_window_starts_it_fresh(graph_mode):
    step, other = built(accumulation_steps=2, batch_norm=True), built(**OPTIONS)
    step(*batch())[0].asnumpy()
    ms.save_checkpoint(step, "step.ckpt")  # inside a window, without copies of the statistics at its start
    with pytest.warns(CheckpointWarning):
        assumed = load_checkpoint(other, "step.ckpt")
    assert assumed == {"micro_step": 0, "kept_micro_steps": 0, "global_norm": 0}


def test_a_checkpoint_of_mindspores_own_step_loads_and_no_scale_comes_to_a_step_without():
    network = with_loss()
    native = nn.TrainOneStepWithLossScaleCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9), Tensor(64.0))
    ms.save_checkpoint(native, "native.ckpt")
    step = built(None, scaling=False, clip_value=1.0)
    with pytest.warns(CheckpointWarning, match="scale_sense = 1"):
        assert load_checkpoint(step, "native.ckpt")["last_outcome"] == 0
    assert step.get_loss_scale() == 1


def test_the_gate_without_scaling_trains_skips_and_refuses_a_scale(mode):
    step, scaled = built(None, scaling=False), built(1.0)
    for place in (None, "last"):
        assert numbers(step(*batch(place, INF))[1]) == numbers(scaled(*batch(place, INF))[1])
    assert counters(step) == (1, 1, 1)
    np.testing.assert_allclose(weights(step), weights(scaled), atol=1e-7)
    with pytest.raises(RuntimeError, match="scaling=False"):
        step.set_sense_scale(Tensor(2.0))


class Rounded(nn.Cell):
    """A loss in bfloat16, of a weight rounded to it; CPU multiplies no bfloat16."""

    def __init__(self):
        super().__init__()
        self.weight = Parameter(Tensor([1.0]), name="weight")

    def construct(self, x):
        rounded = ops.cast(ops.cast(self.weight, ms.bfloat16), ms.float32)
        return ops.cast((rounded * x).sum(), ms.bfloat16)


@pytest.mark.skipif(not hasattr(ms, "bfloat16"), reason="MindSpore 2.0.0 has no bfloat16")
def test_the_gate_without_scaling_serves_bfloat16(mode):
    network = Rounded()
    step = TrainStep(network, nn.SGD(network.trainable_params(), 0.5), scaling=False).set_train()
    for factor, told, weight in ((1.0, False, 0.5), (INF, True, 0.5), (1.0, False, 0.0)):
        loss, overflow, _ = step(Tensor([factor], ms.float32))
        assert (loss.dtype, *numbers(overflow, network.weight)) == (ms.bfloat16, told, weight)
    assert counters(step) == (2, 1, 0)


@pytest.mark.slow
def test_all_options_work_together(mode):
    step = built(None, batch_norm=True, scaling=False, clip_norm=0.5, clip_value=0.1, accumulation_steps=2,
                 restore_buffers=True)
    for place in ("first", None, None, None):
        step(*batch(place, INF))[0].asnumpy()
    assert (step.get_outcome(), counters(step)) == ("applied", (1, 1, 0))


@pytest.mark.parametrize("option, value, error", [
    ("clip_norm", 0, ValueError), ("clip_norm", INF, ValueError), ("clip_value", True, TypeError),
    ("accumulation_steps", 0, ValueError), ("accumulation_steps", 1.5, TypeError), ("drop_window", 1, TypeError),
    ("restore_buffers", None, TypeError), ("scaling", "no", TypeError), ("scaling", False, ValueError)])
def test_a_wrong_option_is_refused_by_name(option, value, error):
    named = "scale_sense" if value is False else option
    with pytest.raises(error, match=f"For 'TrainStep', '{named}'"):
        built(**{option: value})


@pytest.mark.slow
def test_a_model_trains_with_the_options_as_the_step_does(mode):
    data, label = (tensor.asnumpy() for tensor in batch())
    network, step = with_loss(), built(clip_norm=0.1)
    model = Model(network, optimizer=OPTIMIZERS["Momentum"](network.trainable_params()), clip_norm=0.1,
                  accumulation_steps=3, loss_scale_manager=FixedLossScaleManager(1024.0))
    model.train(2, NumpySlicesDataset((data, label), shuffle=False).batch(2), dataset_sink_mode=False)
    for _ in range(2):
        step(*batch())[0].asnumpy()
    assert (counters(model.train_network), model.train_network.get_outcome()) == ((2, 0, 0), "applied")
    np.testing.assert_allclose(weights(model.train_network), weights(step), atol=1e-6)


@pytest.mark.filterwarnings("ignore::ms_lossscale.NoLossScaleWarning")
def test_model_and_build_train_network_take_the_options_and_without_them_build_the_documented_step(graph_mode):
    def parts():
        network = nn.Dense(4, 2)
        return network, nn.Momentum(network.trainable_params(), 0.1, 0.9)

    manager = FixedLossScaleManager(64.0)
    network, optimizer = parts()
    model = Model(network, nn.MSELoss(), optimizer, loss_scale_manager=manager, clip_norm=1.0, accumulation_steps=2)
    assert isinstance(model.train_network, TrainStep)
    assert model.train_network.accumulate.steps == 2
    assert model.train_network.get_loss_scale() == 64.0
    step = build_train_network(*parts(), nn.MSELoss(), level="O2", scaling=False, clip_value=0.5)
    assert isinstance(step, TrainStep) and not step.scaling
    step = build_train_network(*parts(), nn.MSELoss(), loss_scale_manager=manager)
    assert type(step) is TrainOneStepWithLossScaleCell
    with pytest.raises(ValueError, match="scaling=False"):
        build_train_network(*parts(), nn.MSELoss(), clip_norm=1.0)
    with pytest.raises(ValueError, match="drop_overflow_update=True"):
        build_train_network(*parts(), nn.MSELoss(), clip_norm=1.0,
                            loss_scale_manager=FixedLossScaleManager(64.0, False))
