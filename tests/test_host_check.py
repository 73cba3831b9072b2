"""The overflow check on CPU is exact, and so is unscaling: every dtype, every place, every form of gradients."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn

from ms_lossscale._versions import BFLOAT16, RowTensor
from ms_lossscale.gradients import Unscale
from ms_lossscale.host_pass import PIECE, has_overflow
from ms_lossscale.overflow.host import HostCheck
from ms_lossscale.overflow.is_finite import IsFiniteCheck

STATUS = Tensor([0] * 8, ms.int32)
NUMPY_DTYPES = (np.float16, np.float32, np.float64)
BAD = (np.nan, np.inf, -np.inf)


class Check(nn.Cell):
    """The detector in a cell: in GRAPH mode in a graph."""

    def __init__(self, count, form=tuple):
        super().__init__()
        self.detector = HostCheck(False, count)
        self.as_list = form is list
        self.bare = form is Tensor

    def construct(self, *grads):
        if self.bare:
            return self.detector(STATUS, grads[0])
        if self.as_list:
            return self.detector(STATUS, list(grads))
        return self.detector(STATUS, grads)


def extremes(dtype):
    """Return the finite numbers nearest to trouble."""
    info = np.finfo(dtype)
    return np.array([info.max, -info.max, info.tiny, -info.tiny, info.smallest_subnormal, -info.smallest_subnormal,
                     0.0, -0.0], dtype)


def numpy_answer(arrays):
    """Return whether NumPy sees a NaN or Inf."""
    return any(not np.isfinite(array).all() for array in arrays)


def flag_of(overflow):
    """Return a flag as a bool; it must be a bool Tensor of shape ()."""
    assert (overflow.dtype, overflow.shape) == (ms.bool_, ())
    return overflow.asnumpy().item()


class TestPlace:
    @pytest.mark.parametrize("dtype", NUMPY_DTYPES)
    @pytest.mark.parametrize("bad", BAD)
    def test_of_a_bad_element_does_not_matter(self, dtype, bad):
        array = np.zeros(2 * PIECE + 5, dtype)
        for place in (0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE - 1, 2 * PIECE, array.size - 1):
            array[place] = bad
            assert has_overflow(array), place
            array[place] = 0
        assert not has_overflow(array)

    def test_in_a_gradient_of_several_pieces_does_not_matter(self, mode):
        check = Check(2)
        small, large = np.ones(3, np.float32), np.ones((2, PIECE), np.float32)
        assert flag_of(check(Tensor(small), Tensor(large))) is False
        for place in (0, PIECE - 1, PIECE, large.size - 1):
            poisoned = large.copy()
            poisoned.flat[place] = np.nan
            assert flag_of(check(Tensor(small), Tensor(poisoned))) is True

    def test_among_many_gradients_does_not_matter(self, mode):
        check = Check(12)
        for bad in range(12):
            grads = [np.full((2, 3), np.inf if number == bad else 1.0, np.float32) for number in range(12)]
            assert flag_of(check(*map(Tensor, grads))) is True
        assert flag_of(check(*[Tensor(np.ones((2, 3), np.float32))] * 12)) is False


class TestDtype:
    @pytest.mark.parametrize("dtype", NUMPY_DTYPES)
    def test_is_judged_by_its_own_range(self, mode, dtype):
        check = Check(1)
        assert flag_of(check(Tensor(extremes(dtype)))) is False
        for bad in BAD:
            array = extremes(dtype)
            array[3] = bad
            assert flag_of(check(Tensor(array))) is True

    @pytest.mark.skipif(not BFLOAT16, reason="MindSpore 2.0.0 has no bfloat16")
    def test_bfloat16_is_judged_by_its_own_range(self, mode):
        check = Check(1)
        # Its largest and its smallest numbers, as the upper half of a float32.
        finite = np.array([0x7F7F0000, 0xFF7F0000, 0x00800000, 0x00010000, 0x80010000, 0], np.uint32).view(np.float32)
        assert flag_of(check(Tensor(finite).astype(ms.bfloat16))) is False
        for bad in BAD:
            array = finite.copy()
            array[-1] = bad
            assert flag_of(check(Tensor(array).astype(ms.bfloat16))) is True

    def test_of_each_gradient_may_differ(self, mode):
        dtypes = (ms.float16, ms.float32, ms.float64, *BFLOAT16)
        check = Check(len(dtypes))
        for bad in (None, *range(len(dtypes))):
            grads = [Tensor([1.0, np.nan if number == bad else 2.0], ms.float32).astype(dtype)
                     for number, dtype in enumerate(dtypes)]
            assert flag_of(check(*grads)) is (bad is not None)

    def test_two_finite_numbers_whose_sum_overflows_are_no_overflow(self, mode):
        huge = Tensor(np.full(4, 3e38), ms.float32)
        assert flag_of(Check(2)(huge, huge)) is False
        assert flag_of(Check(1)(Tensor(np.full(4, 60000.0), ms.float16))) is False


class TestForm:
    @pytest.mark.parametrize("form", [tuple, list, Tensor])
    @pytest.mark.parametrize("shape", [(), (1,), (2, 1, 3)])
    def test_of_a_single_gradient_may_be_any(self, mode, form, shape):
        check = Check(1, form)
        assert [flag_of(check(Tensor(np.full(shape, value), ms.float32))) for value in (1.0, np.inf, 2.0, np.nan)] == \
            [False, True, False, True]

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_may_be_another_number_of_gradients_than_the_optimizer_has_parameters(self, mode, count):
        check = Check(3)
        for bad in (None, *range(count)):
            grads = [Tensor(np.full(2, np.inf if number == bad else 1.0), ms.float32) for number in range(count)]
            assert flag_of(check(*grads)) is (bad is not None)

    @pytest.mark.parametrize("form", [tuple, list])
    def test_may_be_no_gradients_at_all(self, mode, form):
        assert flag_of(Check(2, form)()) is False

    def test_may_be_an_empty_gradient_among_others(self):
        empty = Tensor(np.zeros(0, np.float32))
        check = HostCheck(False, 2)
        assert flag_of(check(STATUS, (empty,))) is False
        assert flag_of(check(STATUS, (empty, Tensor([1.0])))) is False
        assert flag_of(check(STATUS, (empty, Tensor([np.nan])))) is True
        assert not has_overflow()
        assert not has_overflow(np.zeros((0,)))

    def test_may_be_nested_outside_a_graph(self, mode):
        one, bad = Tensor([1.0]), Tensor([[np.inf]])
        check = HostCheck(False, 2)
        for grads, overflow in ((((one, [one]), one), False), (((one, [bad]), one), True), ([[[bad]]], True),
                                ([one, (), [one, bad]], True), ((), False), ([[], ()], False)):
            assert flag_of(check(STATUS, grads)) is overflow

    def test_may_be_a_view_that_is_not_contiguous(self, mode):
        array = np.ones((6, 8), np.float32)
        array[:, 1::2] = np.nan
        assert not has_overflow(array[:, ::2])
        assert not has_overflow(array.T[::2])
        assert has_overflow(array[::2, 1::2])
        base = Tensor(array)
        check = HostCheck(False, 1)
        assert flag_of(check(STATUS, (base[:, ::2],))) is False
        assert flag_of(check(STATUS, (base.T[1:3],))) is True
        assert flag_of(check(STATUS, (base.T[0],))) is False


def random_bits(rng, dtype, shape, bad):
    """Return numbers of random bits, finite ones unless `bad`: then one element is NaN of any payload, or Inf."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    exponent = np.array([np.inf], dtype).view(unsigned)[0]
    drawn = rng.randint(0, 256, (*shape, unsigned.itemsize), np.uint8).view(unsigned).reshape(shape)
    drawn = np.where(np.isfinite(drawn.view(dtype)), drawn, drawn & ~exponent)
    if bad and drawn.size:
        drawn.flat[rng.randint(drawn.size)] |= exponent
    return drawn.view(dtype)


class TestRandomBits:
    """Random bits hold every kind of number."""

    @pytest.mark.parametrize("dtype", NUMPY_DTYPES)
    def test_are_judged_as_numpy_judges_them(self, dtype):
        rng = np.random.RandomState(11)
        check = HostCheck(False, 3)
        answers = []
        for _ in range(200):
            shapes = ((), (3,), tuple(rng.randint(1, 4, rng.randint(1, 4))))
            arrays = [random_bits(rng, dtype, shape, rng.rand() < 0.2) for shape in shapes]
            answers.append(flag_of(check(STATUS, tuple(map(Tensor, arrays)))))
            assert answers[-1] == numpy_answer(arrays) == has_overflow(*arrays)
        assert 50 < sum(answers) < 150

    @pytest.mark.parametrize("dtype", NUMPY_DTYPES)
    def test_are_judged_so_in_a_graph(self, mode, dtype):
        rng = np.random.RandomState(12)
        check = Check(2)
        answers = []
        for _ in range(40):
            arrays = [random_bits(rng, dtype, (2, 3), rng.rand() < 0.3) for _ in range(2)]
            answers.append(flag_of(check(*map(Tensor, arrays))))
            assert answers[-1] == numpy_answer(arrays)
        assert 10 < sum(answers) < 30


class Unscaled(nn.Cell):
    """Unscaling in a cell."""

    def __init__(self):
        super().__init__()
        self.unscale = Unscale()

    def construct(self, scale, *grads):
        return self.unscale(grads, scale)


def unscaled_by_numpy(array, scale):
    """Return the product with the float32 reciprocal, half precision through float32."""
    inverse = np.float32(1) / np.float32(scale)
    if array.dtype == np.float16:
        return (array.astype(np.float32) * inverse).astype(np.float16)
    return array * inverse.astype(array.dtype)


class TestUnscale:
    @pytest.mark.parametrize("scale_shape", [(), (1,)])
    def test_rounds_once_and_keeps_dtype_and_shape(self, mode, scale_shape):
        rng = np.random.RandomState(13)
        arrays = [np.asarray(rng.normal(0, 100, shape), dtype)
                  for dtype in NUMPY_DTYPES for shape in ((), (5,), (2, 3))]
        unscale = Unscaled()
        for scale in (2.0**25, 3.0, 1000.0, 2.0**-3, 1.1):
            results = unscale(Tensor(np.full(scale_shape, scale), ms.float32), *map(Tensor, arrays))
            for array, result in zip(arrays, results):
                expected = unscaled_by_numpy(array, scale)
                assert (result.asnumpy().dtype, result.shape) == (array.dtype, array.shape)
                assert result.asnumpy().tobytes() == expected.tobytes()

    def test_does_not_zero_a_float16_gradient_at_a_scale_beyond_float16(self, mode):
        grads = Tensor(np.array([65504.0, -512.0, 2.0]), ms.float16)
        result, = Unscaled()(Tensor(2.0**25, ms.float32), grads)
        np.testing.assert_array_equal(result.asnumpy(), np.array([65504, -512, 2], np.float16) / np.float32(2.0**25))
        assert np.all(result.asnumpy() != 0)

    @pytest.mark.skipif(not BFLOAT16, reason="MindSpore 2.0.0 has no bfloat16")
    def test_does_not_round_the_reciprocal_to_bfloat16(self, mode):
        values = np.array([3.0, -7.0, 96.0, 1.5 * 2.0**-120], np.float32)
        result, = Unscaled()(Tensor(3.0, ms.float32), Tensor(values).astype(ms.bfloat16))
        assert result.dtype == ms.bfloat16
        expected = Tensor(values * (np.float32(1) / np.float32(3))).astype(ms.bfloat16)
        np.testing.assert_array_equal(result.astype(ms.float32).asnumpy(), expected.astype(ms.float32).asnumpy())

    def test_keeps_inf_and_nan_for_the_check(self, mode):
        grads = Tensor(np.array([np.inf, -np.inf, np.nan, 1.0]), ms.float32)
        result, = Unscaled()(Tensor(2.0**100, ms.float32), grads)
        np.testing.assert_array_equal(result.asnumpy(), np.array([np.inf, -np.inf, np.nan, 2.0**-100], np.float32))


class Rows(nn.Cell):
    """A RowTensor made in a graph, unscaled and checked."""

    def __init__(self, detector):
        super().__init__()
        self.unscale = Unscale()
        self.detector = detector

    def construct(self, indices, values, dense, scale):
        grads = (RowTensor(indices, values, (6, 2)), dense)
        unscaled = self.unscale(grads, scale)
        rows = unscaled[0]
        return self.detector(STATUS, unscaled), rows.values, rows.indices, unscaled[1], self.detector(STATUS, grads)


@pytest.mark.parametrize("detector", [lambda: HostCheck(False, 2), lambda: IsFiniteCheck(False)],
                         ids=["host", "is_finite"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
class TestRowTensor:
    def test_values_are_unscaled_and_checked_and_rows_kept(self, graph_mode, detector, dtype):
        cell = Rows(detector())
        indices, dense = Tensor([4, 1], ms.int32), Tensor([8.0], ms.float32)
        for bad in (None, 0, 3):
            values = np.array([[1.0, 2.0], [512.0, -4.0]], dtype)
            if bad is not None:
                values.flat[bad] = -np.inf
            overflow, result, rows, other, scaled = cell(indices, Tensor(values), dense, Tensor(2.0**20, ms.float32))
            assert flag_of(overflow) is flag_of(scaled) is (bad is not None)
            assert result.asnumpy().tobytes() == unscaled_by_numpy(values, 2.0**20).tobytes()
            np.testing.assert_array_equal(rows.asnumpy(), [4, 1])
            assert other.asnumpy() == [8.0 / 2.0**20]
        poisoned = cell(indices, Tensor(np.ones((2, 2), dtype)), Tensor([np.nan], ms.float32), Tensor(8.0, ms.float32))
        assert flag_of(poisoned[0]) is True
