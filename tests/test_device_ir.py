"""The compiled step for every device, read operator by operator and held against MindSpore's own."""

import functools
from collections import Counter
from contextlib import nullcontext

import mindspore as ms
import numpy as np
import pytest
from devices import DEVICES, distributed, on
from front_end_graph import compile_step
from mindspore import Parameter, Tensor, nn, ops
from mindspore_version import needs_dump

import ms_lossscale

pytestmark = needs_dump

CLEAR, GET = "NPUClearFloatStatusV2", "NPUGetFloatStatusV2"
LOOKING = {  # the operators a device looks for overflow with, for a step with four gradients
    "910A": {CLEAR: 2, GET: 1},
    "910B saturation": {CLEAR: 2, GET: 1},
    "910B AllFinite": {"AllFinite": 1},
    "910B IsFinite": {"IsFinite": 4},
    "GPU": {"FloatStatus": 4},
}
# A detector may compare and reduce flags in its own way, if it takes no more operators than MindSpore's does.
FLAG_OPERATORS = ("Equal", "NotEqual", "Greater", "LessEqual", "ReduceAll", "ReduceAny", "LogicalNot", "LogicalAnd")
# All that the step may hold beyond MindSpore's: the counters, the cap of the scale, the snapshot of the scale it
# returns, the first clearing, and the casts around the product of the one float16 gradient.
COUNTERS = Counter(Cast=1, AssignAdd=2, Sub=1, Add=1, Mul=1, Assign=1)
EXTRAS = COUNTERS + Counter(Minimum=1) + Counter(Add=1) + Counter({CLEAR: 1}) + Counter(Cast=2)

FAST = [("910A", False), ("910A", True), ("910B AllFinite", False), ("910B IsFinite", True), ("GPU", False)]


def steps(*devices):
    """Parametrize over these devices, each alone and as one of several ranks; all but a few are left to slow runs."""
    return pytest.mark.parametrize("device, together", [
        pytest.param(device, together, id=f"{device} {'distributed' if together else 'alone'}",
                     marks=() if (device, together) in FAST else pytest.mark.slow)
        for device in devices for together in (False, True)])


every_device = steps(*DEVICES)
every_register = steps("910A", "910B saturation")
authors = pytest.mark.parametrize("package", [ms_lossscale, nn], ids=["ours", "MindSpore's"])


class Network(nn.Cell):
    """A layer computed in float16, a float32 layer, a weight that is float16 itself, and a float16 loss."""

    def __init__(self):
        super().__init__()
        self.half = nn.Dense(4, 8, has_bias=False).to_float(ms.float16)
        self.full = nn.Dense(8, 2)
        self.gain = Parameter(Tensor(np.ones(8), ms.float16), name="gain")

    def construct(self, x, label):
        hidden = ops.relu(self.half(x)) * self.gain
        loss = ((self.full(ops.cast(hidden, ms.float32)) - label) ** 2).mean()
        return ops.cast(loss, ms.float16)


@functools.cache
def compiled(device, together, package=ms_lossscale):
    """Compile the step of a package for a device, once for all tests."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    network = Network()
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    update_cell = package.DynamicLossScaleUpdateCell(2.0**12, 2, 4)
    with on(device), distributed() if together else nullcontext():
        step = package.TrainOneStepWithLossScaleCell(network, optimizer, update_cell).set_train()
    graph = compile_step(step, Tensor(np.ones((3, 4)), ms.float32), Tensor(np.ones((3, 2)), ms.float32))
    ms.set_context(mode=before)
    return graph


def first_and_last_clear(graph):
    """Return the two clearings in the order in which they must run."""
    assert len(graph.named(CLEAR)) == 2
    one, other = graph.named(CLEAR)
    return (one, other) if one in graph.ancestors(other) else (other, one)


@every_device
def test_the_step_looks_for_overflow_with_the_devices_operators_and_no_others(device, together):
    every = {name for looking in LOOKING.values() for name in looking}
    used = compiled(device, together).operators()
    assert {name: used[name] for name in every if used[name]} == LOOKING[device]
    theirs = compiled(device, together, nn).operators()
    assert {name for name in every if theirs[name]} == set(LOOKING[device])


@every_device
def test_the_forward_and_the_backward_pass_are_mindspores_and_run_once(device, together):
    ours, theirs = compiled(device, together), compiled(device, together, nn)
    extra = Counter({CLEAR: 1}) if CLEAR in LOOKING[device] else Counter()
    # MindSpore multiplies a float16 gradient by a float16 reciprocal: one cast where this package has two.
    assert ours.entry.count(ours.passes()) == theirs.entry.count(theirs.passes()) + extra + Counter(Cast=1)


@every_register
def test_every_operator_of_both_passes_waits_for_the_first_clearing(device, together):
    step = compiled(device, together)
    clear, _ = first_and_last_clear(step.entry)
    early = [n for n in step.passes() if n != clear and clear not in step.entry.ancestors(n)]
    # Left are the cast of the one weight that is float32 and computed with in float16, and what depends on nothing.
    assert [step.entry.nodes[n].op for n in early if step.entry.ancestors(n)] == ["Cast"]
    assert {a for n in early for a in step.entry.ancestors(n) if a.startswith("%para")} == {"%para4_half.weight"}


@every_register
def test_nothing_is_computed_before_the_first_clearing(device, together):
    graph = compiled(device, together).entry
    clear, _ = first_and_last_clear(graph)
    assert graph.operators(graph.ancestors(clear)) == []


@every_register
def test_the_register_is_read_after_loss_gradients_unscaling_and_reduction(device, together):
    step = compiled(device, together)
    (get,) = step.entry.named(GET)
    assert len(step.passes()) > 30
    assert set(step.passes()) <= step.entry.ancestors(get)


@every_register
def test_the_register_is_cleared_once_more_between_its_reading_and_the_gate(device, together):
    step = compiled(device, together)
    (get,) = step.entry.named(GET)
    _, last_clear = first_and_last_clear(step.entry)
    assert get in step.entry.ancestors(last_clear)
    assert last_clear in step.entry.ancestors(step.gate()[0])
    flag_reductions = flag_reduction(step.entry, device)
    assert set(flag_reductions) <= step.entry.ancestors(last_clear)


def flag_reduction(graph, device):
    """Return the reductions over ranks of what the detector found."""
    found = set(graph.named(*set(LOOKING[device]) - {CLEAR}))
    return [n for n in graph.named("AllReduce") if found & graph.ancestors(n)]


@every_device
def test_the_flag_is_reduced_once_over_the_ranks_as_float32_and_not_at_all_alone(device, together):
    step = compiled(device, together)
    reductions = flag_reduction(step.entry, device)
    assert len(step.entry.named("AllReduce")) == (5 if together else 0)
    assert len(reductions) == (1 if together else 0)
    for reduction in reductions:
        assert "Float32" in step.entry.nodes[reduction].output
        assert reduction in step.entry.ancestors(step.gate()[0])


@every_device
def test_the_gate_waits_for_the_loss_and_every_gradient_as_the_optimizer_takes_it(device, together):
    step = compiled(device, together)
    assert len(set(step.gradients())) == 4
    condition = step.gate()[0]
    assert set(step.gradients()) <= step.entry.ancestors(condition)


@every_device
@authors
def test_the_optimizer_runs_only_in_the_branch_without_overflow(device, together, package):
    step = compiled(device, together, package)
    condition, (_, if_true), (_, if_false) = step.gate()
    assert step.entry.nodes[condition].op == "LogicalNot"
    assert if_true.count(if_true.operators()) == {"ApplyMomentum": 4, "AssignAdd": 1}  # the last is global_step
    assert if_false.operators() == []
    assert step.entry.named("ApplyMomentum") == []


@every_device
@authors
def test_nothing_but_the_overflow_flag_gates(device, together, package):
    step = compiled(device, together, package)
    assert [len(graph.named("Switch")) for graph in step.graphs.values()] == [1, 0, 0]


@every_device
def test_the_step_has_no_more_operators_than_mindspores_and_the_closed_list(device, together):
    ours, theirs = compiled(device, together).operators(), compiled(device, together, nn).operators()
    saved = sum(theirs[name] - ours[name] for name in FLAG_OPERATORS)
    surplus = ours - theirs - EXTRAS - Counter(dict.fromkeys(FLAG_OPERATORS, 99))
    assert set(surplus) <= {"Cast"}  # of what the register holds, before its reduction over the ranks
    assert sum(surplus.values()) <= saved
    assert sum(ours.values()) <= sum(theirs.values()) + sum(EXTRAS.values())
