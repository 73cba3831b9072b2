"""TrainStep's options on devices with an overflow register, and on several ranks."""

import mindspore as ms
import numpy as np
import pytest
from device_checks import APPLIED, ASIDE, BACKWARD, FORWARD, REDUCTION, SCALE, SKIPPED, Training
from devices import on
from front_end_graph import compile_step
from mindspore import Tensor, nn
from mindspore_version import needs_dump
from simulated_device import SimulatedDevice, join_ranks
from test_distributed import pytestmark as needs_msrun
from test_distributed import run_job

from ms_lossscale import TrainOneStepWithLossScaleCell, TrainStep


def training(name, **options):
    return Training(name, lambda *parts: TrainStep(*parts, **options))


register = pytest.mark.parametrize("name", ["910A", pytest.param("910B saturation", marks=pytest.mark.slow)])
SKIPPED_NOW, SKIPPED_BEFORE = SKIPPED, (False, False)


def window(step, *troubles):
    """Run one window, with overflow at one place or none in each micro-step; return what each call said and did."""
    return [step.run(*([place] if place else [])) for place in troubles]


@register
def test_a_register_raised_in_a_micro_step_drops_its_window_and_no_other(mode, name):
    step = training(name, accumulation_steps=2)
    step.device.raised = True  # by an evaluation before
    assert window(step, None, None) == [(False, False), APPLIED]
    for place in (FORWARD, BACKWARD, ASIDE):
        assert window(step, place, None) == [(True, False), SKIPPED_BEFORE], place
    assert window(step, None, ASIDE) == [(False, False), SKIPPED_NOW]
    assert window(step, None, REDUCTION) == [(False, False), SKIPPED_NOW]
    assert window(step, None, "optimizer") == [(False, False), APPLIED]
    assert step.device.raised  # by the optimizer
    assert window(step, None, None) == [(False, False), APPLIED]
    assert step.scale() == SCALE / 2**5


@pytest.mark.slow
@register
def test_a_register_raised_in_a_micro_step_drops_it_alone_if_asked(mode, name):
    step = training(name, accumulation_steps=2, drop_window=False)
    assert window(step, ASIDE, None) == [(True, False), APPLIED]
    assert window(step, BACKWARD, FORWARD) == [(True, False), SKIPPED_NOW]
    assert window(step, None, REDUCTION) == [(False, False), SKIPPED_NOW]
    assert window(step, None, None) == [(False, False), APPLIED]


@register
def test_gradients_that_saturate_are_skipped_and_not_clipped(mode, name):
    step = training(name, clip_norm=0.01)
    assert step.run(BACKWARD) == SKIPPED
    assert np.isfinite(step.step.get_global_norm())
    assert step.run(ASIDE) == step.run(REDUCTION) == SKIPPED
    before = step.state()
    assert step.run() == APPLIED
    assert 0 < step.step.get_global_norm() < 1e4
    moved = np.sqrt(sum(((old - new) ** 2).sum() for old, new in zip(before[:3], step.state()[:3])))
    assert moved == pytest.approx(0.05 * 0.01, rel=0.01)
    events = [event for event in step.device.events if event != "optimizer"]
    assert (events[0], events[-1], events.count("get")) == ("clear", "clear", 1)


class Ranks(SimulatedDevice):
    """The device of a rank that is told the sums of the others, in the order of its reductions."""

    others = ()

    def reduce_flag(self, flags):
        total = super().reduce_flag(flags)
        total.reshape(-1)[0] += self.others[self.events.count("reduce the flag") - 1]
        return total


def on_two_ranks(**options):
    """Return a training whose other rank keeps and overflows as `others` says: (kept, overflow)."""
    one = training("CPU", **options)
    one.device.__class__ = Ranks
    join_ranks(one.step, one.device)
    one.step.ranks = 2.0
    return one


def test_a_window_is_dropped_if_another_rank_overflowed_in_any_micro_step(mode):
    one = on_two_ranks(accumulation_steps=2)
    for others, told in (((2, 0), APPLIED), ((1, 0), SKIPPED_BEFORE), ((2, 1), SKIPPED_NOW)):
        assert one.run() == (False, False)
        assert "reduce the flag" not in one.device.events
        one.device.others = others
        assert one.run() == told
        assert one.device.events.count("reduce the flag") == 2
    assert one.step.accumulate.kept_micro_steps.asnumpy() == 0


@pytest.mark.slow
def test_the_mean_is_over_the_micro_steps_that_all_ranks_kept(mode):
    one = on_two_ranks(accumulation_steps=2, drop_window=False, clip_norm=1e-6)  # so that the weights stay
    norms = []
    for kept_by_other in (0, 3):
        one.device.others = (kept_by_other, 0)
        assert window(one, BACKWARD, None) == [(True, False), APPLIED]
        norms.append(one.step.get_global_norm())
    # The reduction over ranks stands still here: a sum divided by 1, and by 1 + 3.
    plain = training("CPU", clip_norm=1e-6)
    assert plain.run() == APPLIED
    assert norms == pytest.approx([2 * plain.step.get_global_norm(), plain.step.get_global_norm() / 2], rel=1e-3)
    one.device.others = (0, 0)
    assert window(one, BACKWARD, BACKWARD) == [(True, False), SKIPPED_NOW]


def compiled(kind, *scale, **options):
    """Return the front-end graph of a step on a device that looks at the gradients by IsFinite."""
    with on("910B IsFinite"):
        network = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
        network = nn.WithLossCell(network, nn.MSELoss())
        step = kind(network, nn.SGD(network.trainable_params(), 0.1), *scale, **options)
    return compile_step(step.set_train(), Tensor(np.ones((2, 3)), ms.float32), Tensor(np.ones((2, 2)), ms.float32))


@needs_dump
def test_clipping_by_norm_costs_no_check_of_its_own(graph_mode):
    assert compiled(TrainStep, Tensor(8.0)).operators()["IsFinite"] > 0
    assert compiled(TrainStep, Tensor(8.0), clip_value=1.0).operators()["IsFinite"] > 0
    assert compiled(TrainStep, Tensor(8.0), clip_norm=1.0).operators()["IsFinite"] == 0


@needs_dump
def test_without_scaling_nothing_is_multiplied_by_the_scale(graph_mode):
    with_scale = compiled(TrainOneStepWithLossScaleCell, Tensor(8.0)).operators()
    without, plain = compiled(TrainStep, scaling=False).operators(), compiled(nn.TrainOneStepCell).operators()
    assert with_scale["Reciprocal"] + with_scale["RealDiv"] > without["Reciprocal"] + without["RealDiv"]
    assert (without - plain)["Mul"] == 1  # of the counter of overflows in a row
    assert (with_scale - plain)["Mul"] > 1
    assert not {"Reciprocal", "RealDiv", "Div"} & set(without - plain)


@needs_msrun[0]
@needs_msrun[1]
def test_ranks_that_accumulate_and_clip_stay_equal_and_drop_the_same_windows(tmp_path):
    run_job(2, tmp_path, "accumulation_worker.py")
    for mode in ("graph", "pynative"):
        for way in ("window", "micro-step"):
            first, second = (np.load(tmp_path / f"{mode} {way} rank {rank}.npz") for rank in range(2))
            for name in set(first.files) - {"flags", "local"}:
                np.testing.assert_array_equal(first[name], second[name], err_msg=name)
            assert [bool(flag) for flag in first["flags"]] == [False, False, False, False]
            assert [bool(flag) for flag in second["flags"]] == [False, False, True, False]
            assert list(first["outcomes"]) == [0, 1, 0, 2 if way == "window" else 1]
            np.testing.assert_allclose(first["weights"], first["expected"], rtol=1e-5, atol=1e-6)
