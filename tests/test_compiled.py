"""The compiled operators give the bits that NumPy, the rule and MindSpore's operators give, and can be missing."""

import ctypes
import math
import os
import shutil
from dataclasses import astuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from test_host_check import NUMPY_DTYPES, Check, flag_of, numpy_answer, random_bits, unscaled_by_numpy

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell, TrainStep, compiled, fused
from ms_lossscale._versions import BFLOAT16
from ms_lossscale.compiled import library, operator
from ms_lossscale.fused import CHUNK_ELEMENTS
from ms_lossscale.host_pass import LANES, LARGE, PIECE, clip_factor, has_overflow, multiplied
from ms_lossscale.rule import ScaleRule, ScaleState

needs_compiled = pytest.mark.skipif(library() is None, reason="this installation has no compiled part")


def call(name, dtypes, *arrays):
    """Call an operator of the library as MindSpore does; `arrays` are its inputs and outputs, `dtypes` their names."""
    count = len(arrays)
    shapes = [(ctypes.c_int64 * max(array.ndim, 1))(*array.shape) for array in arrays]
    return getattr(ctypes.CDLL(library()), name)(
        count, (ctypes.c_void_p * count)(*[array.ctypes.data for array in arrays]),
        (ctypes.c_int * count)(*[array.ndim for array in arrays]),
        (ctypes.c_void_p * count)(*[ctypes.addressof(shape) for shape in shapes]),
        (ctypes.c_char_p * count)(*[dtype.encode() for dtype in dtypes]), None, None)


def found_in(*arrays, dtype=None):
    """Return what `not_finite` answers."""
    flag = np.array([7], np.uint8)
    assert call("not_finite", [dtype or array.dtype.name for array in arrays] + ["bool"], *arrays, flag) == 0
    return {0: False, 1: True}[flag.item()]


def unscaled(scale, *arrays, factor=1, bound=np.inf):
    """Return what `unscale_and_check` makes."""
    products, flag = [np.full_like(array, 5) for array in arrays], np.array([7], np.uint8)
    scalars = [np.array(number, np.float32) for number in (scale, factor, bound)]
    names = ["float32"] * (2 * len(arrays) + 3)
    assert call("unscale_and_check", [*names, "bool"], *arrays, *scalars, *products, flag) == 0
    return products, {0: False, 1: True}[flag.item()]


def factor_and_norm(scale, limit, *arrays):
    """Return what `clip_factor` makes and writes, and its flag."""
    norm, factor, flag = np.array(7, np.float32), np.array([7], np.float32), np.array([7], np.uint8)
    scalars = [np.array(number, np.float32) for number in (scale, limit)]
    names = ["float32"] * (len(arrays) + 4)
    assert call("clip_factor", [*names, "bool"], *arrays, *scalars, norm, factor, flag) == 0
    return norm[()], factor[0], {0: False, 1: True}[flag.item()]


@needs_compiled
class TestNotFinite:
    @pytest.mark.parametrize("dtype", NUMPY_DTYPES)
    @pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
    def test_sees_a_bad_element_at_every_place_of_every_length(self, dtype, bad):
        for size in (*range(1, 40), 257):
            array = np.full(size, np.finfo(dtype).max, dtype)
            assert not found_in(array)
            for place in range(size):
                array[place] = bad
                assert found_in(array), (size, place)
                array[place] = np.finfo(dtype).smallest_subnormal

    def test_knows_bfloat16(self):
        finite = np.array([0x7F7F, 0xFF7F, 0x0001, 0x8001, 0], np.uint16)
        assert not found_in(finite, dtype="bfloat16")
        for bad in (0x7F80, 0xFF80, 0x7F81, 0xFFFF):
            assert found_in(np.array([*finite, bad], np.uint16), dtype="bfloat16")

    def test_sees_it_in_any_gradient_and_knows_empty_and_scalar_ones(self):
        for bad in (None, 0, 1, 2):
            arrays = [np.array(np.inf if bad == number else 1, dtype) for number, dtype in enumerate(NUMPY_DTYPES)]
            assert found_in(np.zeros((0, 3), np.float32), *arrays) is (bad is not None)

    def test_refuses_a_dtype_it_does_not_know(self):
        assert call("not_finite", ["int32", "bool"], np.zeros(1, np.int32), np.zeros(1, np.uint8)) != 0
        wide, one, flag = np.zeros(1, np.float64), np.ones((), np.float32), np.zeros(1, np.uint8)
        names = ["float64", "float32", "float32", "float32", "float64", "bool"]
        assert call("unscale_and_check", names, wide, one, one, one, wide.copy(), flag) != 0
        names = ["float64", "float32", "float32", "float32", "float32", "bool"]
        assert call("clip_factor", names, wide, one, one, one.copy(), one.copy(), flag) != 0


@needs_compiled
class TestUnscaleAndCheck:
    def test_gives_numpys_bits_for_random_bits(self):
        rng = np.random.RandomState(21)
        answers = []
        for _ in range(500):
            arrays = [random_bits(rng, np.float32, shape, rng.rand() < 0.2) for shape in ((), (37,), (2, 9), (0,))]
            scale = np.float32(rng.choice([2.0**126, 2.0**-126, 2.0**24, 3.0, 1.1, rng.rand() + 0.1]))
            products, overflow = unscaled(scale, *arrays)
            with np.errstate(over="ignore", invalid="ignore"):
                expected = [unscaled_by_numpy(array, scale) for array in arrays]
            assert [product.tobytes() for product in products] == [array.tobytes() for array in expected]
            assert overflow == numpy_answer(expected)
            answers.append(overflow)
        assert 150 < sum(answers) < 450

    def test_judges_the_product(self):
        assert unscaled(0.5, np.array([3e38], np.float32))[1] is True
        assert unscaled(2.0, np.array([3e38, 3e38], np.float32))[1] is False

    def test_limits_the_quotient_and_judges_it_before(self):
        array = np.array([1.1, -3.3, 400, -8e4, 0.1, -0.0], np.float32)
        shrunk = array * np.float32(1 / np.float32(3)) * np.float32(0.7)
        for bound in (np.inf, 5, 0.01):
            products, overflow = unscaled(3, array, factor=0.7, bound=bound)
            assert products[0].tobytes() == np.clip(shrunk, -np.float32(bound), np.float32(bound)).tobytes()
            assert overflow is False
        assert unscaled(0.5, np.array([3e38], np.float32), factor=1e-3, bound=1)[1] is True


@needs_compiled
class TestClipFactor:
    @pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES, LANES + 1, PIECE - 1, PIECE, PIECE + LANES + 3])
    def test_gives_the_bits_of_numpy(self, size):
        rng = np.random.RandomState(size)
        for scale in (1, 3, 2.0**16):
            arrays = [rng.standard_normal(length).astype(np.float32) * np.float32(rng.choice([1e-30, 1, 1e30]))
                      for length in (size, 7, 2 * LANES)]
            limit = np.float32(rng.choice([1e-3, 1, 1e20]))
            assert factor_and_norm(scale, limit, *arrays) == clip_factor(
                limit, *(unscaled_by_numpy(array, scale) for array in arrays))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_sees_a_bad_element_anywhere(self, bad):
        for place in (0, LANES - 1, LANES, 2 * LANES, 2 * LANES + 2):
            array = np.full(2 * LANES + 3, np.finfo(np.float32).max, np.float32)
            assert factor_and_norm(1, 1, array)[2] is clip_factor(np.float32(1), array)[2] is False
            array[place] = bad
            assert factor_and_norm(1, 1, array)[2] is clip_factor(np.float32(1), array)[2] is True


@needs_compiled
@pytest.mark.parametrize("processors", [1, None], ids=["one processor", "all"])
def test_threads_see_every_block_and_give_the_bits_of_one(processors):
    allowed = os.sched_getaffinity(0)
    rng = np.random.RandomState(25)
    arrays = [rng.standard_normal(size).astype(np.float32) for size in (9 * PIECE + 5, 0, 3, 8 * PIECE, PIECE - 1)]
    expected = [unscaled_by_numpy(array, 3) for array in arrays]
    try:
        os.sched_setaffinity(0, set(list(allowed)[:processors]))
        products, overflow = unscaled(3, *arrays)
        assert [each.tobytes() for each in products] == [each.tobytes() for each in expected] and not overflow
        assert factor_and_norm(3, 0.5, *arrays) == clip_factor(np.float32(0.5), *expected)
        assert not found_in(*arrays)
        for array in arrays:
            for place in {0, array.size - 1, *range(PIECE, array.size, PIECE), *range(PIECE - 1, array.size, PIECE)}:
                if 0 <= place < array.size:
                    kept, array[place] = array[place], np.inf
                    assert found_in(*arrays) and unscaled(3, *arrays)[1] and factor_and_norm(3, 1, *arrays)[2]
                    array[place] = kept
    finally:
        os.sched_setaffinity(0, allowed)


def test_the_norm_is_the_exact_one_rounded_and_no_sum_of_float32_overflows():
    rng = np.random.RandomState(24)
    arrays = [rng.standard_normal(length).astype(dtype) for length, dtype in ((3 * PIECE, np.float32), (9, np.float16))]
    exact = math.sqrt(math.fsum(float(element)**2 for array in arrays for element in array))
    norm, factor, overflow = clip_factor(np.float32(0.3), *arrays)
    assert (norm, factor, overflow) == (np.float32(exact), np.float32(np.float64(np.float32(0.3)) / exact), False)
    huge = np.full(4, 3e38, np.float32)
    assert clip_factor(np.float32(3e38), huge) == (np.inf, np.float32(0.5), False)
    assert clip_factor(np.float32(1), np.array([1e300]))[2] is True  # as float32 it is infinite


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpys_pass_over_pieces_gives_the_bits_of_the_whole(dtype):
    rng = np.random.RandomState(22)
    for size in (1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 3):
        array = random_bits(rng, dtype, (size,), False) / dtype(8)
        for place in (None, 0, size // 2, size - 1):
            if place is not None:
                array[place] = np.nan
            product, overflow = multiplied(array, np.float32(0.3), look=True)
            whole = array.astype(np.result_type(dtype, np.float32)) * np.float32(0.3)
            assert product.tobytes() == whole.astype(dtype).tobytes()
            assert overflow is (place is not None) == has_overflow(product)
            unseen, said = multiplied(array, np.float32(0.3), look=False)
            assert (unseen.tobytes(), said) == (product.tobytes(), False)
            array[slice(None) if place is None else place] = 1


@pytest.mark.parametrize("switch", ["0", pytest.param("1", marks=needs_compiled)])
def test_large_gradients_are_unscaled_and_judged_as_numpy_does(mode, monkeypatch, switch):
    monkeypatch.setenv(compiled.SWITCH, switch)
    network = nn.Dense(LARGE // 256, 256)
    step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params()), Tensor(3.0))
    arrays = [np.full((256, LARGE // 256), 7.1, np.float32), np.arange(256, dtype=np.float32)]
    for place in (None, (0, 0), (255, LARGE // 256 - 1)):
        if place is not None:
            arrays[0][place] = np.inf
        grads, overflow = step._unscale_and_check(tuple(map(Tensor, arrays)), step.scale_sense)
        apart = step.unscale(tuple(map(Tensor, arrays)))
        assert overflow.asnumpy().item() is (place is not None)
        for grad, other, array in zip(grads, apart, arrays):
            assert grad.asnumpy().tobytes() == other.asnumpy().tobytes() == unscaled_by_numpy(array, 3).tobytes()
        arrays[0][:] = 7.1


@pytest.mark.parametrize("options, largest", [
    ({"clip_norm": 1e3}, 255 / 3 * 1e3 / 1444.313), ({"clip_norm": 1e9}, 255 / 3), ({"clip_value": 2.0}, 2)])
def test_large_gradients_are_clipped_alike_with_and_without_the_compiled_part(mode, monkeypatch, options, largest):
    arrays, made = [np.full((256, LARGE // 256), 7.1, np.float32), np.arange(256, dtype=np.float32)], []
    for switch in ("0", "1"):
        monkeypatch.setenv(compiled.SWITCH, switch)
        network = nn.Dense(LARGE // 256, 256)
        step = TrainStep(network, nn.SGD(network.trainable_params()), Tensor(3.0), **options)
        grads, overflow = step._unscale_and_check(tuple(map(Tensor, arrays)), step.scale_sense)
        norm = step.get_global_norm() if step.clips_norm else None
        made.append(([grad.asnumpy().tobytes() for grad in grads], overflow.asnumpy().item(), norm))
    assert made[0] == made[1] and made[0][1] is False
    assert max(grad.asnumpy().max() for grad in grads) == pytest.approx(largest, rel=1e-4)


def test_no_operator_takes_more_gradients_or_elements_than_it_should():
    sizes = [5] * 40 + [CHUNK_ELEMENTS] * 2 + [3, 4] + [CHUNK_ELEMENTS - 6, 2 * CHUNK_ELEMENTS]
    first, *rest = fused._chunks(sizes)
    assert [(0, first), *rest] == [(0, 32), (32, 40), (40, 41), (41, 42), (42, 44), (44, 45), (45, 46)]
    assert fused._chunks([1]) == (1,)


def test_large_gradients_of_a_network_with_dynamic_shapes_are_unscaled(mode):
    network = nn.Dense(512, LARGE // 512)
    loss = nn.WithLossCell(network, nn.MSELoss())
    loss.set_inputs(Tensor(shape=(None, 512), dtype=ms.float32), Tensor(shape=(None, LARGE // 512), dtype=ms.float32))
    step = TrainOneStepWithLossScaleCell(loss, nn.SGD(network.trainable_params()), Tensor(8.0))
    step.set_inputs(*loss.get_inputs())
    for batch, factor in ((4, 1), (3, np.inf), (2, 1)):
        step(Tensor(np.ones((batch, 512)) * factor, ms.float32), Tensor(np.ones((batch, LARGE // 512)), ms.float32))
    assert (step.applied_steps.asnumpy(), step.skipped_steps.asnumpy()) == (2, 1)


@needs_compiled
@pytest.mark.parametrize("hysteresis, consecutive", [(0, False), (2, False), (2, True)])
def test_move_scale_is_the_rule_and_count_step_counts(hysteresis, consecutive):
    rng = np.random.RandomState(23)
    rule = ScaleRule(1.7, float(np.float32(0.4)), 3, 0.5, 2.0**20, hysteresis, consecutive)
    state, counted = ScaleState(1024.0), [0, 0, 0]
    held = [np.array(1024.0, np.float32), *(np.array(number, np.int32) for number in (1, 0, 0))]
    counters = [np.array(0, np.int32) for _ in range(3)]
    numbers = [np.array(3, np.int32), *(np.array(number, np.float32) for number in (1.7, 0.4, 0.5, 2.0**20)),
               np.array(hysteresis, np.int32), np.array(int(consecutive), np.int32)]
    for _ in range(2_000):
        overflow = bool(rng.rand() < rng.choice([0.05, 0.3, 0.9]))
        flag, out = np.array(overflow), np.array([7], np.uint8)
        rule.update(state, overflow)
        counted = [counted[0] + (not overflow), counted[1] + overflow, counted[2] + 1 if overflow else 0]
        assert call("move_scale", [""] * 13, flag, *held, *numbers, out) == 0
        assert out.item() == overflow
        scale, cur_iter, last_overflow_iter, in_a_row, tolerated = astuple(state)
        assert [array.item() for array in held] == [np.float32(scale), cur_iter, last_overflow_iter, tolerated]
        assert call("count_step", [""] * 5, flag, *counters, out) == 0
        assert out.item() == overflow
        assert [array.item() for array in counters] == counted
        assert counted[2] == in_a_row


class Factor(nn.Cell):
    """Small layers and a loss times a factor, by which a test makes every gradient Inf or NaN."""

    def __init__(self):
        super().__init__()
        self.layers = nn.SequentialCell([nn.Dense(3, 3, weight_init="normal") for _ in range(3)])

    def construct(self, x, factor):
        return ops.ReduceMean()(self.layers(x)) * factor


def train(hysteresis):
    """Return everything a run of 15 steps makes, every fifth an overflow."""
    ms.set_seed(3)
    network = Factor()
    step = TrainOneStepWithLossScaleCell(
        network, nn.Adam(network.trainable_params()),
        DynamicLossScaleUpdateCell(2.0**10, 2, 3, hysteresis=hysteresis, max_loss_scale=2.0**12))
    x, made = Tensor(np.ones((2, 3)), ms.float32), []
    for number in range(15):
        outputs = step(x, Tensor([1.0, 1.0, 1.0, np.inf, 1.0][number % 5], ms.float32))
        made += [output.asnumpy().tobytes() for output in outputs]
        made += [each.asnumpy().item() for each in (step.applied_steps, step.skipped_steps,
                                                    step.consecutive_overflows)]
    return made + [(each.name, each.asnumpy().tobytes()) for each in step.get_parameters()]


@needs_compiled
@pytest.mark.parametrize("hysteresis", [0, 1])
def test_a_training_is_bit_for_bit_the_same_without_the_compiled_part(graph_mode, monkeypatch, hysteresis):
    monkeypatch.setattr(fused, "CHUNK", 4)  # six gradients: two operators
    made = train(hysteresis)
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert operator("count_step") is None
    assert train(hysteresis) == made


@needs_compiled
@pytest.mark.skipif(not BFLOAT16, reason="MindSpore 2.0.0 has no bfloat16")
def test_the_check_in_a_graph_is_the_compiled_one_and_takes_every_float_dtype(graph_mode):
    check = Check(4)
    assert check.detector.primitives == ("Custom(aot)",)
    for bad in (None, 0, 1, 2, 3):
        grads = [Tensor([1.0, np.nan if number == bad else 2.0], ms.float32).astype(dtype)
                 for number, dtype in enumerate((ms.float16, ms.float32, ms.float64, ms.bfloat16))]
        assert flag_of(check(*grads)) is (bad is not None)


@needs_compiled
@pytest.mark.parametrize("content", ["another revision", "no library"])
def test_a_library_that_does_not_fit_is_named_and_not_used(tmp_path, content):
    path = tmp_path / library().rpartition("/")[2]
    if content == "no library":
        path.write_text("text")
    else:
        shutil.copy(library(), path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "REVISION", -1)
        with pytest.warns(RuntimeWarning, match=r"is not used: .*Install the package anew, or set MS_LOSS"):
            assert compiled._usable(tmp_path) is None


def test_a_folder_without_a_library_has_no_compiled_part(tmp_path):
    assert compiled._usable(tmp_path) is None


@needs_compiled
@pytest.mark.slow
def test_a_million_random_cases_are_judged_as_numpy_judges_them():
    rng = np.random.RandomState(24)
    for dtype in NUMPY_DTYPES:
        for size in (1, 3, 16, 33):
            cases = random_bits(rng, dtype, (90_000, size), False)
            bad = rng.rand(len(cases)) < 0.5
            places = rng.randint(size, size=len(cases))
            cases[bad, places[bad]] = rng.choice(np.array([np.nan, np.inf, -np.inf], dtype), bad.sum())
            for case, expected in zip(cases, (~np.isfinite(cases)).any(axis=1)):
                assert found_in(case) is bool(expected)
                assert has_overflow(case) is bool(expected)


class Poison(nn.Cell):
    """A sum of many parameters, each times a factor of its own: its gradient."""

    def __init__(self, count):
        super().__init__()
        self.weights = ms.ParameterTuple([ms.Parameter(Tensor(1.0), name=f"w{number}") for number in range(count)])

    def construct(self, factors):
        loss = Tensor(0.0, ms.float32)
        for number in range(len(self.weights)):
            loss += self.weights[number] * factors[number]
        return loss


def test_one_bad_gradient_skips_the_step_in_whichever_operator_it_is(mode, monkeypatch):
    monkeypatch.setattr(fused, "CHUNK", 2)
    network = Poison(5)
    step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params()), Tensor(8.0))
    for bad in (None, 0, 1, 2, 3, 4, None):
        factors = np.ones(5, np.float32)
        if bad is not None:
            factors[bad] = np.nan
        assert flag_of(step(Tensor(factors))[1]) is (bad is not None)


class OwnCheck(TrainOneStepWithLossScaleCell):
    def get_overflow_status(self, status, compute_output):
        return Tensor(True)


class OwnUnscale(TrainOneStepWithLossScaleCell):
    def unscale(self, grads):
        return self.hyper_map(ops.zeros_like, grads)


class OwnStart(TrainOneStepWithLossScaleCell):
    def start_overflow_check(self, pre_cond, compute_input):
        return Tensor([0] * 8, ms.int32), (compute_input[0] * np.inf,)


@pytest.mark.parametrize("own, overflow, weight", [
    (OwnCheck, True, 1.0), (OwnUnscale, False, 1.0), (OwnStart, True, 1.0),
    (TrainOneStepWithLossScaleCell, False, 0.5)])
def test_a_method_that_a_subclass_overrides_is_called(mode, own, overflow, weight):
    network = Poison(2)
    step = own(network, nn.SGD(network.trainable_params(), 0.5), Tensor(8.0))
    assert flag_of(step(Tensor(np.ones(2, np.float32)))[1]) is overflow
    assert network.weights[0].asnumpy() == weight


def test_the_scale_that_a_step_returned_stays_what_it_was(mode):
    network = Poison(2)
    step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params()),
                                         DynamicLossScaleUpdateCell(8.0, 2, 1000))
    bad = Tensor(np.full(2, np.inf, np.float32))
    scales = [step(bad)[2] for _ in range(3)]
    assert [scale.asnumpy().item() for scale in scales] == [4.0, 2.0, 1.0]
