"""Every argument of every public name is refused with one clear sentence when it is wrong, and changes nothing."""

import gc
import inspect
import os
import pathlib
import pickle
import sys
from decimal import Decimal
from fractions import Fraction

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, amp, nn, ops
from mindspore_version import V200

import ms_lossscale
from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
    LossScaleManager,
    StaticLossScaler,
    TrainOneStepWithLossScaleCell,
    load_checkpoint,
)

BFLOAT16 = [ms.bfloat16] if hasattr(ms, "bfloat16") else []
INF, NAN = float("inf"), float("nan")
X = Tensor(np.ones((2, 2)), ms.float32)
STEP = "TrainOneStepWithLossScaleCell"
LOSS_ALONE = "must return the loss alone, a float Tensor,"


class Net(nn.Cell):
    """Returns its loss in the `form` asked for; the only good form is "loss"."""

    def __init__(self, form="loss"):
        super().__init__()
        self.dense = nn.Dense(2, 1, weight_init="ones", bias_init="zeros")
        self.form = form

    def construct(self, x):
        loss = self.dense(x).mean()
        if self.form == "tuple":
            return loss, x
        if self.form == "dict":
            return {"loss": loss}
        if self.form == "nothing":
            return None
        if self.form == "number":
            return 1.0
        if self.form == "int":
            return ops.cast(loss, ms.int32)
        if self.form == "bool":
            return loss > 0
        return loss


def make_optimizer(network):
    return nn.Momentum(network.trainable_params(), 0.125, 0.5)


def make_step(scale_sense=None, form="loss", **options):
    network = Net(form)
    scale_sense = Tensor(8.0) if scale_sense is None else scale_sense
    return TrainOneStepWithLossScaleCell(network, make_optimizer(network), scale_sense, **options)


def refusal(call, kind, who, argument, must="must be"):
    """Return the one sentence that `call` refuses its argument with."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert caught.type is kind
    assert text.startswith(f"For '{who}', '{argument}' {must} "), text
    assert ", but " in text and text.endswith(".") and "\n" not in text and "  " not in text, text
    assert len(text) < 320 and " at 0x" not in text and "()." not in text.partition(", but ")[0], text
    return text


def parameters(*cells):
    return {name: value.asnumpy().tolist() for cell in cells for name, value in cell.parameters_dict().items()}


# Numbers.

NOT_NUMBERS = {
    "None": None, "True": True, "numpy True": np.bool_(True), "str": "8", "bytes": b"8", "numpy str": np.str_("8"),
    "complex": 8 + 0j, "numpy complex": np.complex64(8), "Decimal": Decimal(8), "Fraction": Fraction(8),
    "array": np.array(8.0), "array of one": np.array([8.0]), "int array": np.array(8), "Tensor": Tensor(8.0),
    "Tensor of one": Tensor([8], ms.int32), "Parameter": Parameter(Tensor(8.0), name="eight"),
    "list": [8], "tuple": (8,), "dict": {}, "class": int, "object": object(), "function": len,
    "manager": FixedLossScaleManager(8), "cell": FixedLossScaleUpdateCell(8), "timedelta": np.timedelta64(8, "s"),
    "datetime": np.datetime64("2020-01-01"),
}
NOT_FINITE = {"NaN": NAN, "Inf": INF, "-Inf": -INF, "numpy NaN": np.float32(NAN), "numpy Inf": np.float16(INF),
              "long Inf": np.longdouble(INF), "1e4000": np.longdouble("1e4000")}
TOO_LARGE = {"10**400": 10**400, "10**5000": 10**5000, "2**128": 2**128, "1e300": 1e300, "3.5e38": 3.5e38}
TOO_SMALL = {"0": 0, "-0.0": -0.0, "-1": -1, "-10**400": -10**400, "1e-50": 1e-50, "numpy 0": np.int8(0),
             "numpy -1": np.float64(-1)}
BELOW_ONE = {"0.5": 0.5, "half": np.float16(0.5), "just below 1": np.nextafter(1.0, 0.0)}
TOO_LARGE_INT = {"2**31": 2**31, "10**400": 10**400, "uint64": np.uint64(2**63)}
FLOATS = {"8.0": 8.0, "float32": np.float32(8), "NaN": NAN, "Inf": INF, "half": np.float16(0.5)}

# For a kind of number: what is of a wrong type, and what is of a wrong value.
AT_LEAST_ONE = (NOT_NUMBERS, {**NOT_FINITE, **TOO_LARGE, **TOO_SMALL, **BELOW_ONE})
POSITIVE = (NOT_NUMBERS, {**NOT_FINITE, **TOO_LARGE, **TOO_SMALL})
AT_MOST_ONE = (NOT_NUMBERS, {**NOT_FINITE, **TOO_LARGE, **TOO_SMALL, "above": 1.001})
POSITIVE_INT = ({**NOT_NUMBERS, **FLOATS}, {**TOO_LARGE_INT, "0": 0, "-1": -1, "numpy 0": np.int8(0)})
NATURAL_INT = ({**NOT_NUMBERS, **FLOATS}, {**TOO_LARGE_INT, "-1": -1})
BOOL = ({**{key: value for key, value in NOT_NUMBERS.items() if "True" not in key}, "0": 0, "1": 1, "1.0": 1.0,
         "int8": np.int8(1), "bool Tensor": Tensor(True), "bool array": np.array(True)}, {})
MANAGER, CELL = "DynamicLossScaleManager", "DynamicLossScaleUpdateCell"


def with_documented(cls, name):
    """Return what builds `cls` from its documented arguments, one of them or an extra given by `name`."""
    if cls is TrainOneStepWithLossScaleCell:
        return lambda value: make_step(**{name: value})
    return lambda value: cls(**{**DOCUMENTED[cls], name: value})


DOCUMENTED = {
    FixedLossScaleManager: {"loss_scale": 8},
    FixedLossScaleUpdateCell: {"loss_scale_value": 8},
    DynamicLossScaleManager: {"init_loss_scale": 8, "scale_factor": 2, "scale_window": 5},
    DynamicLossScaleUpdateCell: {"loss_scale_value": 8, "scale_factor": 2, "scale_window": 5},
}
WRONG = {
    "loss_scale": AT_LEAST_ONE, "init_loss_scale": AT_LEAST_ONE, "loss_scale_value": AT_LEAST_ONE,
    "scale_factor": AT_LEAST_ONE, "scale_window": POSITIVE_INT, "drop_overflow_update": BOOL,
    "min_loss_scale": POSITIVE, "max_loss_scale": AT_LEAST_ONE, "growth_factor": AT_LEAST_ONE,
    "backoff_factor": AT_MOST_ONE, "hysteresis": NATURAL_INT, "consecutive_hysteresis": BOOL,
    "max_consecutive_overflows": POSITIVE_INT, "check_interval": POSITIVE_INT, "fit_loss_dtype": BOOL,
}
MAY_BE_NONE = ("growth_factor", "backoff_factor", "max_consecutive_overflows")
# (who, argument): how to give it a value, and what is of a wrong type and of a wrong value.
NUMBERS = {
    (cls.__name__, name): (with_documented(cls, name), WRONG.get(name))
    for cls in (*DOCUMENTED, TrainOneStepWithLossScaleCell) for name in inspect.signature(cls).parameters
    if name not in ("network", "optimizer", "scale_sense")}
NUMBERS["FixedLossScaleUpdateCell", "loss_scale_value"] = (FixedLossScaleUpdateCell, POSITIVE)
IDS = [f"{who}-{name}" for who, name in NUMBERS]


@pytest.mark.parametrize("who, name", NUMBERS, ids=IDS)
def test_a_wrong_number_is_refused(who, name):
    give, (types, values) = NUMBERS[who, name]
    for kind, wrong in ((TypeError, types), (ValueError, values)):
        for value in wrong.values():
            if value is None and name in MAY_BE_NONE:
                give(value)
                continue
            text = refusal(lambda value=value: give(value), kind, who, name)
            if isinstance(value, float):
                assert f"but got {float(value)!r}." in text


NATIVE = {
    ("FixedLossScaleManager", "loss_scale"): amp.FixedLossScaleManager,
    ("FixedLossScaleUpdateCell", "loss_scale_value"): nn.FixedLossScaleUpdateCell,
    (MANAGER, "init_loss_scale"): amp.DynamicLossScaleManager,
    (MANAGER, "scale_factor"): lambda value: amp.DynamicLossScaleManager(8, value),
    (MANAGER, "scale_window"): lambda value: amp.DynamicLossScaleManager(8, 2, value),
}


@pytest.mark.parametrize("who, name", NATIVE)
def test_where_mindspore_raises_ours_raises_the_same(who, name):
    give, (types, values) = NUMBERS[who, name]
    raised = 0
    for value in (*types.values(), *values.values()):
        if isinstance(value, np.integer):
            continue  # MindSpore takes none of NumPy's
        try:
            NATIVE[who, name](value)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            refusal(lambda value=value: give(value), kind, who, name)
            raised += 1
        except (AttributeError, ArithmeticError, RuntimeError):
            pass  # an accident in MindSpore, not a check
    assert raised >= 10 or who == "FixedLossScaleUpdateCell"


NUMPY_FLOATS = [np.float16, np.float32, np.float64, np.longdouble]
NUMPY_INTS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("kind", [*NUMPY_FLOATS, *NUMPY_INTS, int, float], ids=lambda kind: kind.__name__)
def test_numpy_numbers_are_taken_where_pythons_are(kind):
    eight, two, one = kind(8), kind(2), kind(1)
    bounds = {"min_loss_scale": one, "max_loss_scale": kind(64), "growth_factor": two, "backoff_factor": one}
    assert FixedLossScaleManager(eight).get_update_cell().get_loss_scale() == 8
    for options in ({}, bounds):
        manager = DynamicLossScaleManager(eight, two, **options)
        cell = DynamicLossScaleUpdateCell(eight, two, 5, **options)
        for _ in range(2):
            manager.update_loss_scale(True)
        assert manager.get_loss_scale() == (8 if options else 2)
        assert manager.get_update_cell().get_loss_scale() == manager.get_loss_scale()
        assert (cell.scale_factor.asnumpy(), cell.growth_factor.asnumpy()) == (2, 2)
    if kind not in (*NUMPY_FLOATS, float):
        manager = DynamicLossScaleManager(8, 2, two, hysteresis=one, max_consecutive_overflows=kind(3))
        for overflow in (True, True, False, False):
            manager.update_loss_scale(overflow)
        assert manager.get_loss_scale() == 8
        for _ in range(300):  # beyond the range of an int8
            manager.update_loss_scale(False)
        assert manager.cur_iter == 305
        assert DynamicLossScaleUpdateCell(8, 2, two, hysteresis=one).scale_window.asnumpy() == 2
        make_step(max_consecutive_overflows=kind(3), check_interval=two)


@pytest.mark.parametrize("factor", [1, 1.0, 1.0001, 1.5, 2**0.5, 3000])
def test_a_factor_from_one_on_is_taken(factor):
    assert DynamicLossScaleManager(8, factor).scale_factor == factor
    assert DynamicLossScaleUpdateCell(8, factor, 5).scale_factor.asnumpy() == np.float32(factor)


def test_at_the_largest_fixed_scale_gradients_arrive(mode):
    step = make_step(Tensor(2.0**126, ms.float32))
    scale = Tensor(2.0**126, ms.float32)
    assert step.unscale((scale,))[0].asnumpy() == 1
    assert StaticLossScaler(2.0**126).unscale(scale).asnumpy() == 1


def test_the_ends_of_the_ranges_are_taken():
    assert FixedLossScaleManager(1).get_loss_scale() == 1
    assert DynamicLossScaleManager(2.0**126, scale_window=2**31 - 1).get_loss_scale() == 2.0**126
    assert FixedLossScaleUpdateCell(2.0**-126).get_loss_scale() == 2.0**-126
    assert FixedLossScaleUpdateCell(2.0**126).get_loss_scale() == 2.0**126
    assert DynamicLossScaleManager(0.25, min_loss_scale=0.125).get_loss_scale() == 0.25
    for call in (lambda: FixedLossScaleUpdateCell(np.nextafter(2.0**-126, 0)),
                 lambda: FixedLossScaleUpdateCell(np.nextafter(2.0**126, INF)),
                 lambda: FixedLossScaleManager(2.0**127),
                 lambda: make_step(Tensor(2.0**127, ms.float32)),
                 lambda: make_step(Tensor(8.0)).set_sense_scale(Tensor(2.0**127, ms.float32)),
                 lambda: DynamicLossScaleManager(np.nextafter(2.0**126, INF)),
                 lambda: DynamicLossScaleManager(8, min_loss_scale=16),
                 lambda: DynamicLossScaleManager(8, max_loss_scale=4),
                 lambda: DynamicLossScaleManager(8, min_loss_scale=8, max_loss_scale=4)):
        with pytest.raises(ValueError, match=r"must be a finite .*, but got"):
            call()


ONE_ON = "'loss_scale' must be a finite number in [1, 2**126], but got "
IN_FLOAT32 = " It is held in float32, which ends at 3.4028235e+38."


@pytest.mark.parametrize("give, expected", [
    (lambda: FixedLossScaleManager(0.5), ONE_ON + "0.5."),
    (lambda: FixedLossScaleManager(np.float32(0.5)), ONE_ON + "0.5."),
    (lambda: FixedLossScaleManager(True), ONE_ON + "True (bool)."),
    (lambda: FixedLossScaleManager(INF), ONE_ON + "inf."),
    (lambda: FixedLossScaleManager(3.5e38), ONE_ON + "3.5e+38."),
    (lambda: FixedLossScaleManager(10**400), ONE_ON + "an int of about 401 digits."),
    (lambda: DynamicLossScaleManager(8, 3.5e38),
     "'scale_factor' must be a finite number >= 1, but got 3.5e+38." + IN_FLOAT32),
    (lambda: FixedLossScaleManager(FixedLossScaleManager), ONE_ON + "the class FixedLossScaleManager."),
    (lambda: FixedLossScaleUpdateCell(1e-50),
     "'loss_scale_value' must be a finite number in [2**-126, 2**126], but got 1e-50."),
    (lambda: DynamicLossScaleManager(2**127),
     f"'init_loss_scale' must be a finite number in [1, 2**126], but got {2**127}. The bounds are the keywords "
     "'min_loss_scale' and 'max_loss_scale'."),
    (lambda: DynamicLossScaleManager(8, 2, 1.5), "'scale_window' must be an int in [1, 2147483647], but got 1.5."),
    (lambda: DynamicLossScaleManager(max_consecutive_overflows=0),
     "'max_consecutive_overflows' must be an int in [1, 2147483647] or None, but got 0."),
])
def test_the_sentence_says_rule_value_and_remedy(give, expected):
    with pytest.raises((TypeError, ValueError)) as caught:
        give()
    assert str(caught.value).partition(", ")[2] == expected


def test_a_refused_cell_leaves_no_complaint_behind(monkeypatch):
    left = []
    monkeypatch.setattr(sys, "unraisablehook", left.append)
    for call in (lambda: FixedLossScaleUpdateCell(0), lambda: DynamicLossScaleUpdateCell(0, 2, 5),
                 lambda: make_step(Tensor(0.0)), lambda: TrainOneStepWithLossScaleCell(None, None, None)):
        with pytest.raises((TypeError, ValueError)):
            call()
    gc.collect()
    assert left == []


# Tensors for a scale.

DTYPES = [ms.float16, ms.float32, ms.float64, *BFLOAT16, ms.int8, ms.int16, ms.int32, ms.int64,
          ms.uint8, ms.uint16, ms.uint32, ms.uint64]
NO_SCALE = {
    "bool": (TypeError, Tensor(True)), "bool of one": (TypeError, Tensor([True])),
    "complex": (TypeError, Tensor(np.complex64(8))),
    "two": (ValueError, Tensor([8.0, 8.0])), "one by one": (ValueError, Tensor([[8.0]])),
    "empty": (ValueError, Tensor(np.zeros(0, np.float32))),
    "NaN": (ValueError, Tensor(NAN)), "Inf": (ValueError, Tensor(INF)), "-Inf": (ValueError, Tensor([-INF])),
    "float16 Inf": (ValueError, Tensor(INF, ms.float16)), "0": (ValueError, Tensor(0.0)),
    "-1": (ValueError, Tensor(-1)),
    "int 0": (ValueError, Tensor([0], ms.int32)), "float64 1e300": (ValueError, Tensor(1e300, ms.float64)),
    "float64 1e-50": (ValueError, Tensor(1e-50, ms.float64)), "subnormal": (ValueError, Tensor(1e-40, ms.float32)),
    "None": (TypeError, None), "True": (TypeError, True), "int": (TypeError, 8), "float": (TypeError, 8.0),
    "NaN number": (TypeError, NAN), "str": (TypeError, "8"), "numpy number": (TypeError, np.float32(8)),
    "array": (TypeError, np.array([8.0])), "list": (TypeError, [8.0]), "Decimal": (TypeError, Decimal(8)),
    "Tensor class": (TypeError, Tensor), "cell class": (TypeError, FixedLossScaleUpdateCell),
    "manager": (TypeError, FixedLossScaleManager(8)),
    "MindSpore's manager": (TypeError, amp.DynamicLossScaleManager()),
    "manager class": (TypeError, FixedLossScaleManager),
}


@pytest.mark.parametrize("kind, scale", NO_SCALE.values(), ids=NO_SCALE)
def test_what_is_no_scale_is_refused_by_the_step_and_by_set_sense_scale(kind, scale):
    network = Net()
    refusal(lambda: TrainOneStepWithLossScaleCell(network, make_optimizer(network), scale), kind, STEP, "scale_sense")
    step = make_step(Tensor([16.0]))
    refusal(lambda: step.set_sense_scale(scale), kind, "set_sense_scale", "sens")
    assert step.scale_sense.asnumpy().tolist() == [16.0] and step.scale_sense.dtype == ms.float32


@pytest.mark.parametrize("kind, scale", NO_SCALE.values(), ids=NO_SCALE)
def test_a_scale_that_mindspores_step_refuses_is_refused_in_the_same_way(kind, scale):
    network = Net()
    try:
        nn.TrainOneStepWithLossScaleCell(network, make_optimizer(network), scale)
    except (TypeError, ValueError) as error:
        assert type(error) is kind


@pytest.mark.parametrize("wrong, remedy", [
    (8.0, "Wrap a number: Tensor(1024.0, mindspore.float32)."),
    (FixedLossScaleManager(8), "Pass its update cell: manager.get_update_cell()."),
    (FixedLossScaleUpdateCell, "Make an instance of it."),
])
def test_a_wrong_scale_is_answered_with_the_remedy(wrong, remedy):
    assert refusal(lambda: make_step(wrong), TypeError, STEP, "scale_sense").endswith(remedy)


def test_a_float64_scale_is_shown_as_it_was_given():
    assert "but got 1e+300." in refusal(lambda: make_step(Tensor(1e300, ms.float64)), ValueError, STEP, "scale_sense")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_a_scale_of_any_float_or_int_dtype_is_held_in_float32(dtype, shape):
    scale = Tensor(np.full(shape, 64), ms.float32).astype(dtype)
    step = make_step(scale)
    assert (step.scale_sense.dtype, step.scale_sense.shape) == (ms.float32, shape)
    assert step.get_loss_scale() == 64
    other = make_step(Tensor([2.0]))
    other.set_sense_scale(scale)
    assert (other.scale_sense.dtype, other.scale_sense.asnumpy().tolist()) == (ms.float32, [64])


# What a step is made of.

class NoParameters(nn.Cell):
    """Looks like an optimizer."""

    parameters = ParameterTuple(())


class ScaleOf(nn.Cell):
    """An update cell of someone's own, that gives `scale`."""

    def __init__(self, scale):
        super().__init__()
        self.scale = [scale]  # in a list, or a Cell would take it for a part of its own

    def get_loss_scale(self):
        return self.scale[0]


NO_NETWORK = [None, 8, 8.0, True, "network", Net, lambda x: x, FixedLossScaleManager(8), X, [Net()]]
NO_OPTIMIZER = [None, 8, 0.1, "Momentum", nn.Momentum, [], Net().trainable_params(), FixedLossScaleManager(8), X,
                Net(), FixedLossScaleUpdateCell(8)]


def test_what_is_no_network_is_refused():
    for wrong in NO_NETWORK:
        refusal(lambda wrong=wrong: TrainOneStepWithLossScaleCell(wrong, make_optimizer(Net()), Tensor(8.0)),
                TypeError, STEP, "network")


def test_what_is_no_optimizer_is_refused():
    for wrong in NO_OPTIMIZER:
        refusal(lambda wrong=wrong: TrainOneStepWithLossScaleCell(Net(), wrong, Tensor(8.0)),
                TypeError, STEP, "optimizer")


def test_an_optimizer_without_parameters_is_refused():
    refusal(lambda: TrainOneStepWithLossScaleCell(Net(), NoParameters(), Tensor(8.0)), ValueError, STEP, "optimizer")


def test_a_cell_that_gives_no_scale_is_refused():
    assert "'get_loss_scale'" in refusal(lambda: make_step(Net()), TypeError, STEP, "scale_sense")
    asked = "scale_sense.get_loss_scale()"
    for scale, kind in ((None, TypeError), ("8", TypeError), (True, TypeError), (Tensor(True), TypeError),
                        (NAN, ValueError), (INF, ValueError), (0, ValueError), (-8.0, ValueError), (1e-50, ValueError),
                        (10**400, ValueError), (Tensor(NAN), ValueError), (Tensor([8.0, 8.0]), ValueError)):
        refusal(lambda scale=scale: make_step(ScaleOf(scale)), kind, STEP, asked)
    cell = FixedLossScaleUpdateCell(8)
    cell.loss_scale_value = NAN
    refusal(lambda: make_step(cell), ValueError, STEP, asked)


@pytest.mark.parametrize("scale", [8, 8.0, np.float16(8), Tensor(8), Tensor([8.0])], ids=repr)
def test_a_cell_of_ones_own_may_give_a_number_or_a_tensor(scale):
    assert make_step(ScaleOf(scale)).get_loss_scale() == 8


def test_a_refused_step_leaves_its_parts_alone(monkeypatch):
    cell, network = DynamicLossScaleUpdateCell(8, 2, 5), Net()
    before = network.requires_grad

    def no_device():
        raise ValueError("no such device")

    with pytest.raises(TypeError):
        TrainOneStepWithLossScaleCell(network, None, cell)
    assert network.requires_grad == before
    monkeypatch.setattr("ms_lossscale.train_step.choose", no_device)
    with pytest.raises(ValueError, match="no such device"):
        TrainOneStepWithLossScaleCell(network, make_optimizer(network), cell)
    cell.loss_scale_value = 16
    assert cell.get_loss_scale() == 16, "it follows a step that was never built"


FORMS = {"tuple": "several outputs", "nothing": "no Tensor", "int": "Int32",
         "dict": "several outputs", "number": "no Tensor", "bool": "Bool"}


def test_a_network_that_returns_no_loss_is_refused_and_a_good_step_goes_on(mode):
    good = make_step(DynamicLossScaleUpdateCell(8, 2, 5))
    good(X)
    forms = list(FORMS)[:4 if mode == ms.GRAPH_MODE else None]  # a second each to compile
    for count, form in enumerate(forms, 2):
        bad = make_step(DynamicLossScaleUpdateCell(8, 2, 5), form)
        before = parameters(bad)
        text = refusal(lambda bad=bad: bad(X), TypeError, STEP, "network", LOSS_ALONE)
        assert f"but it returned {FORMS[form]}. Wrap it in a Cell that does." in text
        loss, overflow, scale = good(X)
        assert np.isfinite(loss.asnumpy()) and not overflow.asnumpy() and scale.asnumpy() == 8 * 2 ** (count // 5)
        assert good.applied_steps.asnumpy() == count
        if V200:
            bad.network(X)  # after any exception, MindSpore's own too, 2.0.0 cannot read a network before it runs again
        assert parameters(bad) == before
    fresh = make_step()
    assert not fresh(X)[1].asnumpy()


# Flags.

FLAGS = {"True": True, "1": 1, "numpy": np.bool_(True), "int8": np.int8(1), "uint64": np.uint64(1),
         "array": np.array(True), "array of one": np.array([1]), "Tensor": Tensor(True),
         "Tensor of one": Tensor([True]), "one by one": Tensor([[True]]), "int Tensor": Tensor(1, ms.int32)}
NO_FLAGS = {"None": (TypeError, None), "str": (TypeError, "True"), "1.0": (TypeError, 1.0), "NaN": (TypeError, NAN),
            "float32": (TypeError, np.float32(1)), "complex": (TypeError, 1j), "Decimal": (TypeError, Decimal(1)),
            "float Tensor": (TypeError, Tensor(1.0)), "list": (TypeError, [True]), "ragged": (TypeError, [[1], [2, 3]]),
            "dict": (TypeError, {}), "Tensor class": (TypeError, Tensor), "bool class": (TypeError, bool),
            "object": (TypeError, object()), "manager": (TypeError, FixedLossScaleManager(8)),
            "10**30": (TypeError, 10**30),
            "2": (ValueError, 2), "-1": (ValueError, -1), "int Tensor 2": (ValueError, Tensor(2, ms.int32)),
            "two": (ValueError, Tensor([True, False])), "empty": (ValueError, Tensor(np.zeros(0, np.bool_)))}


@pytest.mark.parametrize("flag", FLAGS.values(), ids=FLAGS)
def test_a_manager_takes_any_form_of_a_flag(flag):
    manager = DynamicLossScaleManager(8, 2, 1)
    manager.update_loss_scale(flag)
    assert (manager.get_loss_scale(), manager.bad_step) == (4, 1)


@pytest.mark.parametrize("flag", [False, 0, np.bool_(False), np.uint8(0), np.array([False]), Tensor(False),
                                  Tensor([0])], ids=repr)
def test_a_manager_takes_any_form_of_no_overflow(flag):
    manager = DynamicLossScaleManager(8, 2, 1)
    manager.update_loss_scale(flag)
    assert (manager.get_loss_scale(), manager.bad_step) == (16, 0)


@pytest.mark.parametrize("kind, flag", NO_FLAGS.values(), ids=NO_FLAGS)
def test_what_is_no_flag_is_refused_by_the_manager_and_changes_nothing(kind, flag):
    manager = DynamicLossScaleManager(8, 2, 1)
    before = pickle.dumps(manager)
    refusal(lambda: manager.update_loss_scale(flag), kind, "update_loss_scale", "overflow")
    assert pickle.dumps(manager) == before


def test_update_cells_take_any_form_of_a_flag(mode):
    cell, scale = DynamicLossScaleUpdateCell(8, 2, 1000), Parameter(Tensor(2.0**20, ms.float32), name="scale")
    for count, flag in enumerate(FLAGS.values(), 1):
        assert cell(scale, flag).asnumpy().tolist() is True
        assert scale.asnumpy() == 2.0 ** (20 - count)
        assert cell.last_overflow_iter.asnumpy() == count
    for flag in (False, 0, np.bool_(False), Tensor([False])):
        assert cell(scale, flag).asnumpy().tolist() is False
    assert scale.asnumpy() == 2.0 ** (20 - len(FLAGS))
    assert (cell.cur_iter.asnumpy(), cell.last_overflow_iter.asnumpy()) == (len(FLAGS) + 5, len(FLAGS))
    fixed = FixedLossScaleUpdateCell(8)
    assert [fixed(scale, flag).asnumpy().tolist() for flag in FLAGS.values()] == [True] * len(FLAGS)


def test_update_cells_refuse_what_is_no_flag_and_what_is_no_scale(mode):
    cell, fixed = DynamicLossScaleUpdateCell(8, 2, 1000), FixedLossScaleUpdateCell(8)
    scale = Parameter(Tensor(8.0, ms.float32), name="scale")
    cell(scale, False)
    before = parameters(cell)
    for kind, flag in NO_FLAGS.values():
        refusal(lambda flag=flag: cell(scale, flag), kind, CELL, "overflow")
        refusal(lambda flag=flag: fixed(scale, flag), kind, "FixedLossScaleUpdateCell", "overflow")
    for kind, wrong in ((TypeError, 8.0), (TypeError, None), (TypeError, "8"), (TypeError, np.array(8.0)),
                        (TypeError, Parameter(Tensor(8, ms.int32), name="int")), (TypeError, Parameter),
                        (TypeError, Parameter(Tensor(8, ms.float16), name="half")),
                        (TypeError, FixedLossScaleManager(8)),
                        (ValueError, Parameter(Tensor([8.0, 8.0], ms.float32), name="two"))):
        refusal(lambda wrong=wrong: cell(wrong, Tensor(True)), kind, CELL, "loss_scale")
    assert parameters(cell) == before and scale.asnumpy() == 8


def test_process_loss_scale_takes_flags_and_refuses_the_rest(mode):
    plain, moving = make_step(), make_step(DynamicLossScaleUpdateCell(2.0**20, 2, 1000))
    for step in (plain, moving):
        for count, flag in enumerate(FLAGS.values(), 1):
            assert step.process_loss_scale(flag).asnumpy().tolist() is True
            assert (step.skipped_steps.asnumpy(), step.consecutive_overflows.asnumpy()) == (count, count)
        before = parameters(step)
        for kind, flag in NO_FLAGS.values():
            refusal(lambda step=step, flag=flag: step.process_loss_scale(flag), kind, "process_loss_scale", "overflow")
        assert parameters(step) == before
    assert moving.get_loss_scale() == 2.0 ** (20 - len(FLAGS))


# Gradients and losses given to the methods for steps of one's own.

NO_GRADS = [None, 8.0, "grads", (None,), (X, None), [np.ones(2)], {"weight": X}, {X}, Tensor, (X, (X, "grads"))]


def test_what_is_no_gradient_is_refused(mode):
    step = make_step()
    for wrong in NO_GRADS:
        refusal(lambda wrong=wrong: step.get_overflow_status(Tensor([0] * 8), wrong), TypeError,
                "get_overflow_status", "compute_output")
        refusal(lambda wrong=wrong: step.unscale(wrong), TypeError, "unscale", "grads")
    for good in (X, (X,), [X, X], (X, (X, X)), (), []):
        assert not step.get_overflow_status(Tensor([0] * 8), good).asnumpy()
    assert step.get_overflow_status(Tensor([0] * 8), (X, Tensor([INF]))).asnumpy()
    assert step.unscale((X,))[0].asnumpy().tolist() == (X / 8).asnumpy().tolist()


def test_what_is_no_loss_gives_no_seed(mode):
    step = make_step()
    for wrong in (None, (X, X), Tensor(8)):
        refusal(lambda wrong=wrong: step.scaled_seed(wrong), TypeError, STEP, "network", LOSS_ALONE)
    assert step.scaled_seed(X).asnumpy().tolist() == (X * 8).asnumpy().tolist()


# State.

GOOD_STATE = DynamicLossScaleManager(8).state_dict()
NO_STATES = {
    "None": (TypeError, "state", None), "list": (TypeError, "state", []), "str": (TypeError, "state", "loss_scale"),
    "class": (TypeError, "state", dict), "empty": (ValueError, "state", {}),
    "unknown": (ValueError, "state", {**GOOD_STATE, "more": 1}), "number for a name": (ValueError, "state", {1: 2}),
    **{f"{name}: {value!r}": (kind, name, {**GOOD_STATE, name: value})
       for name in GOOD_STATE for kind, value in (
           (TypeError, None), (TypeError, "8"), (TypeError, True), (ValueError, -1),
           (ValueError if name == "loss_scale" else TypeError, NAN), (ValueError, 10**400))},
    "no step": (ValueError, "cur_iter", {**GOOD_STATE, "cur_iter": 0}),
}


@pytest.mark.parametrize("kind, name, state", NO_STATES.values(), ids=NO_STATES)
def test_what_is_no_state_is_refused_and_changes_nothing(kind, name, state):
    manager = DynamicLossScaleManager(32)
    manager.update_loss_scale(True)
    before = manager.state_dict()
    refusal(lambda: manager.load_state_dict(state), kind, "load_state_dict", name)
    assert manager.state_dict() == before


def test_a_manager_without_a_moving_scale_takes_back_its_own_state_only():
    for manager in (LossScaleManager(), FixedLossScaleManager(8)):
        who = "load_state_dict"
        manager.load_state_dict(manager.state_dict())
        refusal(lambda manager=manager: manager.load_state_dict(None), TypeError, who, "state")
        refusal(lambda manager=manager: manager.load_state_dict(GOOD_STATE), ValueError, who, "state")


def test_a_loaded_numpy_number_does_not_wrap():
    manager = DynamicLossScaleManager(8)
    manager.load_state_dict({**GOOD_STATE, "cur_iter": np.int8(127), "bad_step": np.uint8(255)})
    assert type(manager.cur_iter) is type(manager.bad_step) is int  # a NumPy 2 number would stay one, and wrap
    manager.update_loss_scale(True)
    assert (manager.cur_iter, manager.bad_step) == (128, 256)


def test_a_manager_follows_only_a_step():
    manager = DynamicLossScaleManager(8)
    for wrong in (None, 8, "step", Net(), TrainOneStepWithLossScaleCell, manager, manager.get_update_cell()):
        refusal(lambda wrong=wrong: manager.follow(wrong), TypeError, "follow", "train_step")
    manager.update_loss_scale(True)
    assert manager.get_loss_scale() == 4


# Checkpoints, Model, patch.

def test_what_is_no_step_or_no_path_is_refused_by_load_checkpoint():
    step = make_step()
    ms.save_checkpoint(step, "step.ckpt")
    for wrong in (None, 8, "step", Net(), TrainOneStepWithLossScaleCell, FixedLossScaleManager(8),
                  nn.SequentialCell(Net())):
        refusal(lambda wrong=wrong: load_checkpoint(wrong, "step.ckpt"), TypeError, "load_checkpoint", "step")
    for wrong in (None, 8, True, b"step.ckpt", ["step.ckpt"], pathlib.Path, step):
        refusal(lambda wrong=wrong: load_checkpoint(step, wrong), TypeError, "load_checkpoint", "path")
    assert load_checkpoint(step, pathlib.Path("step.ckpt")) == {}


def test_a_file_that_is_no_checkpoint_is_refused_as_by_mindspore():
    step = make_step()
    before = parameters(step)
    pathlib.Path("garbage.ckpt").write_bytes(b"garbage")
    pathlib.Path("step.txt").write_text("garbage")
    os.mkdir("folder.ckpt")
    for path in ("none.ckpt", "garbage.ckpt", "step.txt", ""):
        with pytest.raises(ValueError) as native:
            ms.load_checkpoint(path)
        with pytest.raises(ValueError) as ours:
            load_checkpoint(step, path)
        assert str(ours.value) == str(native.value) and "\n" not in str(ours.value)
    ms.save_checkpoint(Net(), "other.ckpt")
    text = refusal(lambda: load_checkpoint(step, "other.ckpt"), ValueError, "load_checkpoint", "path")
    assert "It lacks " in text
    assert parameters(step) == before


@pytest.mark.parametrize("who", ["Model", "build_train_network"])
def test_what_is_no_manager_is_refused(who):
    build = getattr(ms_lossscale, who)
    for wrong in (8, 8.0, True, "dynamic", FixedLossScaleManager, FixedLossScaleUpdateCell(8), Tensor(8.0), object()):
        network = Net()
        refusal(lambda network=network, wrong=wrong: build(
            network, optimizer=make_optimizer(network), loss_scale_manager=wrong), TypeError, who, "loss_scale_manager")


@pytest.mark.parametrize("who", ["Model", "build_train_network"])
def test_a_manager_that_gives_no_scale_is_refused(who):
    class Bad(LossScaleManager):
        def __init__(self, scale):
            self.scale = scale

        def get_loss_scale(self):
            return self.scale

    for kind, scale in ((TypeError, None), (TypeError, True), (TypeError, "8"), (TypeError, Tensor(True)),
                        (ValueError, 0), (ValueError, NAN), (ValueError, INF), (ValueError, Tensor([8.0, 8.0]))):
        network = Net()
        refusal(lambda network=network, scale=scale: getattr(ms_lossscale, who)(
            network, optimizer=make_optimizer(network), loss_scale_manager=Bad(scale)),
            kind, who, "loss_scale_manager.get_loss_scale()")


def test_patch_takes_no_arguments():
    with pytest.raises(TypeError, match="argument"):
        ms_lossscale.patch(True)
    assert amp.FixedLossScaleManager is not FixedLossScaleManager
