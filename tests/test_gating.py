"""On overflow nothing that the optimizer owns changes, whichever gradient overflowed; the next clean step trains on."""

import functools
from typing import NamedTuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore_version import V200
from poisoned import (
    OPTIMIZERS,
    PLACES,
    Network,
    PoisonedLoss,
    batch,
    bits,
    changed,
    counters,
    gated,
    numbers,
    with_loss,
)

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    SeedOverflowWarning,
    TrainOneStepWithLossScaleCell,
    build_train_network,
)

INF, NAN = float("inf"), float("nan")
# What poisons each step: overflow at the first, a middle and consecutive steps, each kind in each place.
PLAN = (("first", INF), None, ("middle", -INF), None, ("last", NAN), ("first", -INF), ("first", NAN), ("middle", INF),
        ("middle", NAN), ("last", INF), ("last", -INF), None)
FAST = [("Momentum", False), ("Adam", False), ("scheduled Momentum", True)]
SLOW = [(name, norm) for name in OPTIMIZERS for norm in (False, True) if (name, norm) not in FAST]
every_optimizer = pytest.mark.parametrize(
    ("optimizer", "batch_norm"), FAST + [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW])


class Seen(NamedTuple):
    """One step of a training: what poisoned it, what it said, and what the optimizer owned before and after."""

    poison: tuple
    overflow: bool
    before: dict
    after: dict
    counters: tuple


@functools.cache
def trained(mode, optimizer, batch_norm):
    """Return what was seen of a training by `PLAN`, and what the optimizer owned after its clean steps alone."""
    ms.set_seed(1)
    network = with_loss(batch_norm)
    step = TrainOneStepWithLossScaleCell(network, OPTIMIZERS[optimizer](network.trainable_params()),
                                         FixedLossScaleUpdateCell(1024.0)).set_train()
    start = {parameter: parameter.asnumpy().copy() for parameter in step.get_parameters()}
    seen = []
    for number, poison in enumerate(PLAN):
        before = gated(step)
        overflow = step(*batch(*(poison or ()), seed=number))[1]
        seen.append(Seen(poison, *numbers(overflow), before, gated(step), counters(step)))
    for parameter, value in start.items():
        ops.assign(parameter, Tensor(value))  # set_data would leave the graph the storage it knows
    for number, poison in enumerate(PLAN):
        if poison is None:
            step(*batch(seed=number))
    return seen, gated(step)


class TestOverflow:
    """Each optimizer, with and without BatchNorm, in both modes."""

    @every_optimizer
    def test_is_told_apart_from_a_clean_step(self, mode, optimizer, batch_norm):
        seen, _ = trained(mode, optimizer, batch_norm)
        assert [step.overflow for step in seen] == [poison is not None for poison in PLAN]

    @every_optimizer
    def test_changes_no_parameter_moment_power_global_step_or_learning_rate(self, mode, optimizer, batch_norm):
        seen, _ = trained(mode, optimizer, batch_norm)
        assert {step.poison: changed(step.before, step.after) for step in seen if step.poison} == \
            {poison: set() for poison in PLAN if poison}

    @every_optimizer
    def test_is_followed_by_a_clean_step_that_trains_every_weight(self, mode, optimizer, batch_norm):
        seen, _ = trained(mode, optimizer, batch_norm)
        weights = {"first.weight", "middle.weight", "last.weight", "last.bias"}
        assert all(weights <= changed(step.before, step.after) for step in seen if step.poison is None)

    @every_optimizer
    def test_leaves_the_training_bit_for_bit_as_if_it_had_not_been(self, mode, optimizer, batch_norm):
        seen, without_overflow = trained(mode, optimizer, batch_norm)
        assert changed(seen[-1].after, without_overflow) == set()

    def test_of_each_kind_of_state_is_looked_at(self, mode):
        def names(optimizer, batch_norm):
            return {name.split(".")[0] for name in trained(mode, optimizer, batch_norm)[0][0].before}

        assert {"moment1", "moment2", "beta1_power", "beta2_power", "global_step", "learning_rate", "first",
                "norm"} <= names("listed Adam", True)
        assert {"moments", "global_step"} <= names("scheduled Momentum", True)
        assert {"accum", "stat"} <= names("SGD", False)
        assert {"adam_m", "adam_v"} <= names("AdamWeightDecay", False)

    def test_is_counted(self, mode):
        seen, _ = trained(mode, "Adam", False)
        applied = skipped = in_a_row = 0
        for step in seen:
            applied, skipped, in_a_row = \
                (applied, skipped + 1, in_a_row + 1) if step.poison else (applied + 1, skipped, 0)
            assert step.counters == (applied, skipped, in_a_row)


class Slope(nn.Cell):
    """The weight times the input: the gradient is the input."""

    def __init__(self, shape=()):
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(shape), ms.float32), name="weight")

    def construct(self, x):
        return (self.weight * x).sum()


class TestScheduledLearningRate:
    def test_moves_with_applied_steps_only(self, mode):
        network = Slope((1,))
        optimizer = nn.SGD(network.trainable_params(), [1.0, 0.5, 0.25, 0.125])
        step = TrainOneStepWithLossScaleCell(network, optimizer, Tensor(8.0, ms.float32))
        moves = []
        for x in (INF, 1.0, NAN, -INF, 1.0, 1.0, INF, 1.0):
            before = network.weight.asnumpy().item()
            step(Tensor([x], ms.float32))
            moves.append(before - network.weight.asnumpy().item())
        assert moves == [0, 1.0, 0, 0, 0.5, 0.25, 0, 0.125]


LEVELS = ["O0",
          pytest.param("O1", marks=[pytest.mark.slow,
                                    pytest.mark.skipif(V200, reason="MindSpore 2.0.0 cannot build level O1")]),
          pytest.param("O2", marks=pytest.mark.slow), "O3"]


# Enough to back off from 2**24, and then to train.
UNPOISONED = 12


@functools.cache
def trained_at(mode, level):
    """Return the steps from scale 2**24 on: `UNPOISONED` ones, then one poisoned in each place, then a clean one."""
    ms.set_seed(1)
    network = Network(batch_norm=True)
    step = build_train_network(network, OPTIMIZERS["Momentum"](network.trainable_params()), PoisonedLoss(network),
                               level=level, loss_scale_manager=DynamicLossScaleManager(2**24, 2, 1000))
    seen = []
    for args in [()] * UNPOISONED + list(zip(PLACES, (INF, -INF, NAN))) + [()]:
        before = gated(step)
        loss, overflow, scale = step(*batch(*args))
        seen.append((*numbers(overflow, scale, loss), changed(before, gated(step))))
    return seen


@pytest.mark.parametrize("level", LEVELS)
class TestEveryAmpLevel:
    def test_skips_an_overflow_in_one_gradient(self, mode, level):
        for overflow, _, _, moved in trained_at(mode, level)[UNPOISONED:-1]:
            assert overflow
            assert moved == set()

    def test_trains_at_the_clean_step_after_it(self, mode, level):
        overflow, _, _, moved = trained_at(mode, level)[-1]
        assert not overflow
        assert {"first.weight", "middle.weight", "last.weight"} <= moved

    def test_backs_off_from_2_to_the_24_exactly_while_float16_gradients_overflow(self, mode, level):
        start = trained_at(mode, level)[:UNPOISONED]
        overflows = [overflow for overflow, *_ in start]
        count = sum(overflows)
        assert overflows == [True] * count + [False] * (UNPOISONED - count)
        assert [scale for _, scale, *_ in start[:count]] == [2.0**(23 - step) for step in range(count)]
        assert (count > 0) == (level != "O0")  # float32 carries 2**24

    def test_trains_once_the_scale_fits(self, mode, level):
        start = trained_at(mode, level)[:UNPOISONED]
        losses = [loss for overflow, _, loss, _ in start if not overflow]
        assert losses[-1] < losses[0]
        assert all(bool(moved) != overflow for overflow, *_, moved in start)


class HalfNetwork(nn.Cell):
    """float16 weights, activations and gradients, and a float32 loss."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 2, weight_init=Tensor(np.eye(2, 3), ms.float32)).to_float(ms.float16)
        for parameter in self.trainable_params():
            parameter.set_dtype(ms.float16)

    def construct(self, x):
        return ops.cast(self.dense(x), ms.float32).mean()


class TestFloat16:
    def test_gradients_back_off_to_the_largest_scale_that_fits(self, mode):
        network = HalfNetwork()
        step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params(), 2.0**-5),
                                             DynamicLossScaleUpdateCell(2.0**24, 2, 1000)).set_train()
        x = Tensor(np.full((4, 3), 2.0), ms.float32)
        before = gated(step)
        # A weight's gradient is the scale times 4 rows * 2 / 8 outputs, so 2**15 is the first to fit float16.
        for power in range(24, 15, -1):
            _, overflow, scale = step(x)
            assert numbers(overflow, scale) == (True, 2.0**(power - 1))
        assert changed(before, gated(step)) == set()
        assert numbers(*step(x)[1:]) == (False, 2.0**15)
        weight = network.dense.weight.asnumpy()
        assert weight.dtype == np.float16
        np.testing.assert_array_equal(weight, (np.eye(2, 3) - 2.0**-5).astype(np.float16))

    def test_loss_backs_off_to_the_largest_seed_that_fits(self, mode):
        network = nn.SequentialCell(nn.Dense(3, 1, weight_init="ones"), nn.Flatten()).to_float(ms.float16)
        step = TrainOneStepWithLossScaleCell(network, nn.Momentum(network.trainable_params(), 0.01, 0.9),
                                             DynamicLossScaleUpdateCell(2.0**24, 2, 1000)).set_train()
        x = Tensor(np.full((1, 3), 0.25), ms.float32)
        with pytest.warns(SeedOverflowWarning, match="The loss is float16"):
            overflows = [numbers(step(x)[1])[0]]
        overflows += [numbers(step(x)[1])[0] for _ in range(11)]
        assert overflows == [True] * 9 + [False] * 3
        assert numbers(step.scale_sense) == (2.0**15,)


SCALES = {
    "Tensor of shape ()": lambda: Tensor(64.0, ms.float32),
    "Tensor of shape (1,)": lambda: Tensor([64.0], ms.float32),
    "fixed cell": lambda: FixedLossScaleUpdateCell(64.0),
    "dynamic cell": lambda: DynamicLossScaleUpdateCell(64.0, 2, 2),
}


@pytest.mark.parametrize("scale", SCALES)
class TestEveryKindOfScale:
    def test_counts_skips_and_reports(self, mode, scale):
        """A weight of shape (), whose gradient must keep that shape whatever the shape of the scale."""
        network = Slope()
        step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params(), 0.5), SCALES[scale]())
        shape = (1,) if scale == "Tensor of shape (1,)" else ()
        expected_scale, clean, weight = 64.0, 0, 1.0
        expected_counters = [0, 0, 0]
        held = []
        for x in (INF, 2.0, 2.0, NAN, -INF, 2.0, 2.0, 2.0):
            bad = not np.isfinite(x)
            loss, overflow, reported = step(Tensor(x, ms.float32))
            # The loss of the forward pass, not scaled; the flag; the scale the next step will use.
            np.testing.assert_equal(*numbers(loss), x * weight)
            clean = 0 if bad else clean + 1
            if scale == "dynamic cell":
                expected_scale *= 0.5 if bad else 2.0 if clean == 2 else 1.0
                clean %= 2
            weight -= 0.0 if bad else 0.5 * x
            expected_counters = [expected_counters[0] + (not bad), expected_counters[1] + bad,
                                 expected_counters[2] + 1 if bad else 0]
            assert numbers(overflow, reported) == (bad, expected_scale)
            assert (overflow.dtype, overflow.shape) == (ms.bool_, ())
            assert (reported.dtype, reported.shape) == (ms.float32, shape)
            assert network.weight.shape == ()
            assert numbers(network.weight, step.scale_sense) == (weight, expected_scale)
            assert counters(step) == tuple(expected_counters)
            held.append((reported, expected_scale))
        # Snapshots: what was returned earlier has not moved with the live scale.
        assert [numbers(reported)[0] for reported, _ in held] == [number for _, number in held]

    def test_set_sense_scale_takes_effect_at_the_next_step(self, mode, scale):
        network = Slope((2,))
        step = TrainOneStepWithLossScaleCell(network, nn.SGD(network.trainable_params(), 1.0), SCALES[scale]())
        x = Tensor([4.0, 1.0], ms.float32)
        assert numbers(step(x)[1])[0] is False
        step.set_sense_scale(Tensor(np.full(step.scale_sense.shape, 2.0**126), ms.float32))
        assert numbers(step(x)[1])[0] is True  # 4 * 2**126 is no float32
        step.set_sense_scale(Tensor(np.full(step.scale_sense.shape, 2.0), ms.float32))
        assert numbers(*step(x)[1:])[0] is False
        np.testing.assert_array_equal(network.weight.asnumpy(), [1 - 2 * 4.0, 1 - 2 * 1.0])


class PublicRecipe(TrainOneStepWithLossScaleCell):
    """A step of one's own, as model repositories write it: the check started after the loss, a sens of its own."""

    def __init__(self, network, optimizer, scale_sense):
        super().__init__(network, optimizer, scale_sense)
        self.cast = ops.Cast()
        self.loss_scale = None
        if self.loss_scaling_manager:
            self.loss_scale = Parameter(Tensor(scale_sense.get_loss_scale(), ms.float32), name="loss_scale")

    def divide(self, grads, scale):
        """Divide by the scale, as those repositories do."""
        return self.hyper_map(ops.partial(_divide, scale), grads)

    def construct(self, x, label, sens=None):
        loss = self.network(x, label)
        scaling_sens = self.loss_scale if sens is None else sens
        status, scaling_sens = self.start_overflow_check(loss, scaling_sens)
        seed = ops.ones_like(loss) * ops.cast(scaling_sens, ops.dtype(loss))
        grads = self.grad(self.network, self.weights)(x, label, seed)
        grads = self.grad_reducer(self.divide(grads, scaling_sens))
        cond = self.get_overflow_status(status, grads)
        overflow = cond
        if sens is None:
            overflow = self.loss_scaling_manager(self.loss_scale, cond)
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond, scaling_sens.value()


class ClippedRecipe(PublicRecipe):
    """Its subclass: clips by the global norm, counts with the documented method, returns a fourth output."""

    def construct(self, x, label, sens=None):
        loss = self.network(x, label)
        status, _ = self.start_overflow_check(loss, x)
        grads = self.grad(self.network, self.weights)(x, label, self.scaled_seed(loss))
        grads = ops.clip_by_global_norm(self.grad_reducer(self.divide(grads, self.scale_sense)), 0.1)
        cond = self.get_overflow_status(status, grads)
        overflow = self.process_loss_scale(cond)
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, cond, self.scale_sense.value(), overflow


_divide = ops.MultitypeFuncGraph("divide")


@_divide.register("Tensor", "Tensor")
def _divide_tensor(scale, grad):
    return grad * ops.cast(ops.Reciprocal()(scale), ops.dtype(grad))


class TestSubclass:
    @pytest.mark.parametrize("recipe", [PublicRecipe, ClippedRecipe])
    def test_with_a_construct_of_its_own_skips_and_trains(self, mode, recipe):
        network = with_loss()
        step = recipe(network, OPTIMIZERS["Adam"](network.trainable_params()),
                      DynamicLossScaleUpdateCell(1024.0, 2, 2)).set_train()
        scales = []
        for poison in (("first", INF), None, ("middle", NAN), ("last", -INF), None, None):
            before = gated(step)
            _, overflow, _, *rest = step(*batch(*(poison or ())))
            assert all(numbers(flag) == (poison is not None,) for flag in (overflow, *rest))
            assert bool(changed(before, gated(step))) == (poison is None)
            scales.append(numbers(step.loss_scale if recipe is PublicRecipe else step.scale_sense)[0])
        assert scales == [512.0, 512.0, 256.0, 128.0, 128.0, 256.0]
        assert counters(step) == ((0, 0, 0) if recipe is PublicRecipe else (3, 3, 0))

    def test_of_a_subclass_may_extend_construct_through_super(self, mode):
        network = with_loss()
        step = Doubled(network, OPTIMIZERS["Momentum"](network.trainable_params()), Tensor(8.0, ms.float32)).set_train()
        # Another network: MindSpore 2.0.0 takes the first gradient of one that was called before from that call.
        loss = with_loss()(*batch())
        before = gated(step)
        doubled, overflow, _ = step(*batch("last", NAN))
        assert numbers(overflow) == (True,)
        assert changed(before, gated(step)) == set()
        doubled, overflow, _ = step(*batch())
        assert numbers(doubled, overflow) == (2 * numbers(loss)[0], False)
        assert changed(before, gated(step)) >= {"first.weight", "last.bias"}


class Logged(TrainOneStepWithLossScaleCell):
    """A subclass that only calls its parent's construct."""

    def construct(self, *inputs):
        return super(Logged, self).construct(*inputs)  # noqa: UP008  graph mode needs the class


class Doubled(Logged):
    """A subclass of a subclass."""

    def construct(self, *inputs):
        loss, overflow, scale = super(Doubled, self).construct(*inputs)  # noqa: UP008
        return loss * 2, overflow, scale


class SparseNetwork(nn.Cell):
    """An embedding whose gradient is a RowTensor in a graph, and a layer on it."""

    def __init__(self, lookup):
        super().__init__()
        self.lookup = lookup
        self.layer = nn.Dense(4, 3, weight_init=Tensor(np.eye(3, 4), ms.float32), bias_init="zeros")

    def construct(self, rows, factor):
        return ops.square(self.layer(self.lookup(rows)) - 1.0).mean() * factor


class TableLookup(nn.Cell):
    """The lookup operator on a Parameter."""

    def __init__(self):
        super().__init__()
        self.table = Parameter(Tensor(np.arange(40).reshape(10, 4) / 40, ms.float32), name="table")
        self.embedding_lookup = ops.EmbeddingLookup()

    def construct(self, rows):
        return self.embedding_lookup(self.table, rows, 0)


LOOKUPS = {"operator": TableLookup,
           "layer": lambda: nn.EmbeddingLookup(10, 4, param_init=Tensor(np.arange(40).reshape(10, 4) / 40, ms.float32),
                                               target="CPU")}
SPARSE_OPTIMIZERS = {
    "Adam": lambda params: nn.Adam(params, 0.1),
    "LazyAdam": lambda params: nn.LazyAdam(params, 0.1),
    "FTRL": lambda params: nn.FTRL(params, learning_rate=0.1),
}
SPARSE_CASES = [("operator", "LazyAdam"), ("layer", "Adam"),
                *[pytest.param(*case, marks=pytest.mark.slow)
                  for case in [("operator", "Adam"), ("operator", "FTRL"), ("layer", "LazyAdam"), ("layer", "FTRL")]]]


class TestRowTensor:
    """
    MindSpore produces RowTensor gradients on CPU in GRAPH mode only.

    In PYNATIVE mode it hands its own optimizers a tuple (2.0.0) or the values alone (2.10), which they refuse;
    SparseGatherV2 has no CPU kernel in either.
    """

    @pytest.mark.parametrize(("lookup", "optimizer"), SPARSE_CASES)
    def test_gradient_that_overflows_changes_nothing_and_training_goes_on(self, graph_mode, lookup, optimizer):
        network = SparseNetwork(LOOKUPS[lookup]())
        step = TrainOneStepWithLossScaleCell(network, SPARSE_OPTIMIZERS[optimizer](network.trainable_params()),
                                             DynamicLossScaleUpdateCell(1024.0, 2, 2)).set_train()
        rows = Tensor([1, 2, 2, 7], ms.int32)
        scales = []
        for factor in (INF, 1.0, NAN, -INF, 1.0, 1.0):
            before = gated(step)
            _, overflow, scale = step(rows, Tensor(factor, ms.float32))
            assert numbers(overflow)[0] == (not np.isfinite(factor))
            moved = changed(before, gated(step))
            assert moved == set() if numbers(overflow)[0] else {"layer.weight", table_name(network)} <= moved
            scales.append(*numbers(scale))
        assert scales == [512.0, 512.0, 256.0, 128.0, 128.0, 256.0]
        assert counters(step) == (3, 3, 0)

    def test_gradient_trains_as_a_plain_step_does(self, graph_mode):
        ours, plain = SparseNetwork(TableLookup()), SparseNetwork(TableLookup())
        steps = [TrainOneStepWithLossScaleCell(ours, nn.LazyAdam(ours.trainable_params(), 0.1),
                                               Tensor(1024.0, ms.float32)).set_train(),
                 nn.TrainOneStepCell(plain, nn.LazyAdam(plain.trainable_params(), 0.1)).set_train()]
        for step in steps:
            for rows in ([1, 2, 2, 7], [0, 0, 9, 3], [7, 1, 1, 1]):
                step(Tensor(rows, ms.int32), Tensor(1.0, ms.float32))
        assert bits(ours.trainable_params()) == bits(plain.trainable_params())


def table_name(network):
    """Return the name of the table's Parameter."""
    return next(p.name for p in network.trainable_params() if p.name.startswith("lookup"))
