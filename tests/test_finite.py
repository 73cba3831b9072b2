"""all_finite: every form that gradients come in, eagerly, in a graph, and on every device."""

import warnings
from collections import OrderedDict, namedtuple

import mindspore as ms
import numpy as np
import pytest
from devices import DEVICES, machine
from front_end_graph import compile_step
from mindspore import Parameter, Tensor, amp, nn
from mindspore_version import V200, needs_dump

from ms_lossscale import LossScaleWarning, all_finite
from ms_lossscale._versions import BFLOAT16, FLOAT_DTYPES, RowTensor

Pair = namedtuple("Pair", "first second")
INDICES = Tensor([1], ms.int32)


def rows(values):
    return RowTensor(INDICES, values, (3, 2))


# For two Tensors of shape (1, 2) a structure that holds them both; functions, because MindSpore compiles their source.

def a_tuple(a, b):
    return (a, b)


def a_list(a, b):
    return [a, b]


def a_dict(a, b):
    return {"weight": a, "bias": b}


def nested(a, b):
    return (a, [b, {"layer": (a, b)}], ((b,),))


def with_none(a, b):
    return (a, None, [None, b], {"bias": None})


def with_empty_parts(a, b):
    return ((), [], {}, a, (b,))


def a_list_of_dicts(a, b):
    return [{"weight": a, "bias": b}, {"weight": b, "bias": a}]


def with_rows(a, b):
    return (a, rows(b))


def with_integers(a, b):
    return (a, Tensor([1], ms.int32), Tensor([True]), b)


COMPILED = [a_tuple, a_list, a_dict, nested, with_none, with_empty_parts, a_list_of_dicts]
STRUCTURES = [*COMPILED, with_rows, with_integers]


class Asks(nn.Cell):
    """all_finite of a structure, in a graph."""

    def __init__(self, structure):
        super().__init__()
        self.structure = structure

    def construct(self, a, b):
        return all_finite(self.structure(a, b))


def answer(flag):
    assert flag.dtype == ms.bool_ and flag.shape == ()
    return bool(flag)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_one_bad_element_is_found_wherever_it_is(mode, structure, bad):
    good, wrong = Tensor([[1.0, -2.0]], ms.float32), Tensor([[1.0, bad]], ms.float32)
    assert answer(all_finite(structure(good, good))) is True
    assert answer(all_finite(structure(wrong, good))) is False
    assert answer(all_finite(structure(good, wrong))) is False


@pytest.mark.parametrize("structure", COMPILED)
def test_a_graph_finds_it_too(structure):
    good, wrong = Tensor([[1.0, -2.0]], ms.float32), Tensor([[1.0, np.inf]], ms.float32)
    ask = compiled(structure)
    assert [answer(ask(a, b)) for a, b in ((good, good), (wrong, good), (good, wrong))] == [True, False, False]


def compiled(structure):
    """Return a function of two Tensors that MindSpore compiles, with the source of `structure` in it."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    cell = Asks(structure)

    def ask(a, b):
        ms.set_context(mode=ms.GRAPH_MODE)
        try:
            return cell(a, b)
        finally:
            ms.set_context(mode=before)

    return ask


def test_a_graph_reads_the_values_of_rows_and_passes_integers(mode):
    @ms.jit
    def ask(indices, a, b, count):
        return all_finite((RowTensor(indices, a, (3, 2)), count, b, None))

    good, wrong, count = Tensor([[1.0, 2.0]]), Tensor([[1.0, np.nan]]), Tensor([2**31 - 1], ms.int32)
    assert [answer(ask(INDICES, a, b, count)) for a, b in ((good, good), (wrong, good), (good, wrong))] == [
        True, False, False]


def test_a_graph_that_moves_a_scale_by_the_answer_for_rows_compiles(mode):
    scale = Parameter(Tensor(8.0), name="scale")

    @ms.jit
    def step(indices, values):
        finite = all_finite((RowTensor(indices, values, (3, 2)),))
        ms.ops.assign(scale, ms.ops.select(finite, scale + 0.0, scale / 2.0))
        return finite

    assert [bool(step(INDICES, Tensor([[1.0, value]]))) for value in (1.0, np.inf)] == [True, False]
    assert scale.asnumpy() == 4.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_every_float_dtype_is_looked_at_alone_and_with_others(mode, dtype):
    @ms.jit
    def ask(a, b):
        return all_finite((ms.ops.cast(a, dtype), b))

    for value in (1.0, np.inf, np.nan):
        grad = Tensor([1.0, value], ms.float32).astype(dtype)
        others = [Tensor([1.0], other) for other in (ms.float16, ms.float32, ms.float64)]
        assert answer(all_finite(grad)) is bool(np.isfinite(value))
        assert answer(all_finite([*others, grad])) is bool(np.isfinite(value))
        assert answer(ask(Tensor([1.0, value], ms.float32), others[0])) is bool(np.isfinite(value))


def test_a_number_beyond_float32_is_finite_in_float64(mode):
    assert answer(all_finite(Tensor(1e300, ms.float64)))
    assert answer(all_finite((Tensor([3e38], ms.float32), Tensor([65504.0], ms.float16))))


def test_a_bare_tensor_a_parameter_and_shapes_of_all_ranks_are_taken(mode):
    assert answer(all_finite(Tensor(1.0))) and not answer(all_finite(Tensor(np.nan)))
    assert not answer(all_finite(Parameter(Tensor([np.inf]), name="weight")))
    assert not answer(all_finite(rows(Tensor([[1.0, np.inf]]))))
    big = np.ones((2, 3, 70000), np.float32)
    assert answer(all_finite(Tensor(big)))
    big[-1, -1, -1] = np.nan
    assert not answer(all_finite([Tensor(1.0), Tensor(big)]))


def test_other_containers_are_looked_into(mode):
    bad = Tensor(np.inf)
    assert not answer(all_finite(Pair(Tensor(1.0), bad)))
    assert not answer(all_finite(OrderedDict(weight=Tensor(1.0), bias=bad)))


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 has no empty Tensors")
def test_an_empty_tensor_is_finite_and_hides_nothing(mode):
    empty = Tensor(np.zeros((0, 3), np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answer(all_finite(empty))
        assert not answer(all_finite((empty, Tensor(np.nan))))

    @ms.jit
    def ask(a, b):
        return all_finite((a, b))

    assert not answer(ask(empty, Tensor(np.nan)))


@pytest.mark.parametrize("nothing", [None, (), [], {}, (None, None), {"weight": None}, [(), {}]], ids=str)
def test_no_gradients_are_finite_with_a_warning(mode, nothing):
    with pytest.warns(LossScaleWarning, match="no gradients"):
        assert answer(all_finite(nothing)) is True


def test_a_graph_without_gradients_warns_when_it_is_compiled(mode):
    @ms.jit
    def ask(a):
        return all_finite((None, ())), a + 1.0

    with pytest.warns(LossScaleWarning, match="no gradients"):
        assert answer(ask(Tensor(1.0))[0]) is True


@pytest.mark.parametrize("wrong", [1.0, "grad", np.ones(2), (Tensor(1.0), 1.0), {Tensor}, object], ids=repr)
def test_what_is_no_gradient_is_refused(mode, wrong):
    with pytest.raises(TypeError, match="'inputs' must be Tensors, in tuples, lists or dicts"):
        all_finite(wrong)


def test_it_decides_a_branch_in_a_graph(mode):
    @ms.jit
    def gate(a, b):
        if all_finite((a, b)):
            return a
        return a * 0.0

    assert gate(Tensor(2.0), Tensor(1.0)).asnumpy() == 2.0
    assert gate(Tensor(2.0), Tensor(np.inf)).asnumpy() == 0.0


def test_it_answers_what_mindspores_answers(mode):
    random = np.random.default_rng(3)
    for _ in range(5):
        arrays = [random.standard_normal((3, 4)).astype(dtype) for dtype in (np.float16, np.float32, np.float64)]
        if random.random() < 0.6:
            arrays[random.integers(3)][1, 2] = random.choice([np.nan, np.inf, -np.inf])
        grads = tuple(map(Tensor, arrays))
        assert answer(all_finite(grads)) is bool(amp.all_finite(grads))


@pytest.mark.parametrize("device", ["910B IsFinite", "GPU", "910B AllFinite", "910A", "910B saturation"])
@needs_dump
def test_a_graph_asks_the_devices_own_detector_after_the_gradients(device):
    target, chip, variables, _, primitives = DEVICES[device]
    with machine(target, chip, variables):
        cell = Asks(nested)
        graph = compile_step(cell, Tensor([[1.0, 2.0]]), Tensor([[1.0, 2.0]])).entry
    used = {node.op for node in graph.nodes.values()}
    assert set(primitives) - {"AddN"} <= used
    assert not used & ({"NPUClearFloatStatusV2", "NPUGetFloatStatusV2", "AllFinite", "FloatStatus", "Custom",
                        "IsFinite"} - set(primitives))
    for reading in graph.named("NPUGetFloatStatusV2"):
        assert set(graph.parameters) <= graph.ancestors(reading) | set(graph.nodes[reading].inputs)


def test_another_devices_operators_answer_alike_where_they_run(mode, monkeypatch):
    from ms_lossscale import finite
    from ms_lossscale.overflow.table import Choice

    monkeypatch.setattr(finite, "choose", lambda: Choice("is_finite", "for the test"))
    good, wrong = Tensor([[1.0, -2.0]], ms.float32), Tensor([[1.0, np.inf]], ms.float32)
    assert [answer(all_finite(nested(a, good))) for a in (good, wrong)] == [True, False]
    ask = compiled(nested)
    assert [answer(ask(a, good)) for a in (good, wrong)] == [True, False]


def test_bfloat16_is_known_where_mindspore_has_it():
    assert bool(BFLOAT16) == hasattr(ms, "bfloat16")
