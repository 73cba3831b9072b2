"""Broken steps and detectors: each is caught by the checks that the real ones pass."""

import contextlib
import functools
import importlib.util
import inspect
import sys
from pathlib import Path
from unittest import mock

import device_checks as checks
import mindspore as ms
import pytest
import test_device_ir as graph_checks
from device_checks import ASIDE, BACKWARD, REDUCTION, Training, history
from mindspore_version import needs_dump

from ms_lossscale import gradients, train_step
from ms_lossscale.overflow import detector, register

FORWARD_PASS = "        loss = self.network(*inputs)\n"
BACKWARD_PASS = "        grads = self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss))\n"
UNSCALE_AND_REDUCE = "        grads = self.grad_reducer(self.unscale(grads))\n"
LOOK = "        overflow = self.get_overflow_status(ops.depend(status, loss), grads)\n"
PLAIN_PASSES = "        else:\n" + "".join("    " + line for line in (UNSCALE_AND_REDUCE, LOOK))
ONE_PASS = """        if self._in_one_pass:
            grads, overflow = self._unscale_and_check(grads, self.scale_sense)
"""
GATE = "        if not self.process_loss_scale(overflow):\n            loss = ops.depend(loss, self.optimizer(grads))\n"
START = "        status, inputs = self.start_overflow_check(self.scale_sense, inputs)\n"
CLEAR_AND_TIE = "        return ops.depend(status, cleared), _after(cleared, compute_input)\n"
SUM_THE_FLAGS = "            flags = self.sum_over_ranks(ops.cast(flags, ms.float32))\n"


@contextlib.contextmanager
def mutation(module, old, new, folder):
    """Let the classes and functions of a module run with one piece of its source replaced."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1, "the source has changed: write this mutation anew"
    name = f"mutant_of_{module.__name__.split('.')[-1]}"
    path = folder / f"{name}.py"
    path.write_text(source.replace(old, new), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    mutant = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutant)
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.dict(sys.modules, {name: mutant}))  # graph mode looks names up there
        for original in vars(module).values():
            if inspect.isclass(original) and original.__module__ == module.__name__:
                for function in changed_functions(original, getattr(mutant, original.__name__)):
                    patches.enter_context(mock.patch.object(original, function.__name__, function))
        for user, function in users_of_changed_functions(module, mutant):
            patches.enter_context(mock.patch.object(user, function.__name__, function))
        yield


def users_of_changed_functions(module, mutant):
    """Return (module, function) for every module of the package that holds a function whose source is changed."""
    found = []
    for name, original in vars(module).items():
        if inspect.isfunction(original) and original.__module__ == module.__name__ \
                and inspect.getsource(original) != inspect.getsource(getattr(mutant, name)):
            found += [(user, getattr(mutant, name)) for user in list(sys.modules.values())
                      if getattr(user, "__name__", "").startswith("ms_lossscale") and vars(user).get(name) is original]
    return found


def changed_functions(original, mutant):
    """Return the methods of a mutant class whose source is not the original's."""
    functions = [value for value in vars(mutant).values() if inspect.isfunction(value)]
    return [f for f in functions if inspect.getsource(f) != inspect.getsource(vars(original)[f.__name__])]


def caught_by(check, name, *arguments, ranks=False):
    """Return a function that runs a check of the simulated devices on a fresh training."""
    return lambda: check(Training(name, ranks=ranks), *arguments)


def caught_in_the_graph_by(check, together=False):
    """Return a function that runs a check of the compiled step for a 910A, compiled afresh."""

    def run():
        with mock.patch.object(graph_checks, "compiled", graph_checks.compiled.__wrapped__):
            check("910A", together)

    return run


@functools.cache
def on_cpu(mode):
    """The training on the CPU's own path, before anything is broken."""
    return history(Training("CPU"), 8)


def differs_from_the_cpu_path():
    checks.check_the_history_equals(Training("910A"), on_cpu(ms.get_context("mode")), 8)


skips = checks.check_overflow_skips_the_step_and_the_next_is_applied
RUN = {  # each is tried in both modes
    "no first clearing": (
        register, "cleared = self.clear_status(status)", "cleared = status",
        caught_by(checks.check_a_flag_from_before_is_ignored, "910A")),
    "cleared between forward and backward": (
        train_step, START + FORWARD_PASS,
        FORWARD_PASS + "        status, loss = self.start_overflow_check(loss, loss)\n",
        caught_by(skips, "910A", ASIDE)),
    "cleared after a forward pass that runs once more": (
        train_step, START + FORWARD_PASS, FORWARD_PASS + START.replace("self.scale_sense, inputs", "loss, inputs"),
        caught_by(checks.check_the_forward_pass_runs_once_and_is_watched, "910A")),
    "register read before the gradients": (
        train_step, BACKWARD_PASS + ONE_PASS + PLAIN_PASSES,
        LOOK.replace("grads)", "loss)") + BACKWARD_PASS + UNSCALE_AND_REDUCE,
        caught_by(skips, "910A", BACKWARD)),
    "cleared before it is read": (
        register, "flags = self.get_status(status)",
        "flags = self.get_status(ops.depend(status, self.clear_status(status)))",
        caught_by(skips, "910B saturation", BACKWARD)),
    "no last clearing": (
        register, "return ops.depend(overflow, self.clear_status(status))", "return overflow",
        caught_by(checks.check_the_register_is_clean_before_the_gate, "910A")),
    "the register's flag not reduced over the ranks": (
        register, SUM_THE_FLAGS, SUM_THE_FLAGS.replace("self.sum_over_ranks", ""),
        caught_by(checks.check_an_overflow_of_another_rank_skips_the_step, "910A", ranks=True)),
    "no flag reduced over the ranks": (
        detector, "return self.allreduce(count) if self.distributed else count", "return count",
        caught_by(checks.check_an_overflow_of_another_rank_skips_the_step, "GPU", ranks=True)),
    "the gate inverted": (
        train_step, "if not self.process_loss_scale", "if self.process_loss_scale",
        caught_by(checks.check_a_clean_step_is_applied, "910A")),
    "the scale updated before the gradients are unscaled": (
        train_step, ONE_PASS + PLAIN_PASSES + GATE.split("\n")[0] + "\n",
        LOOK + "        gate = self.process_loss_scale(overflow)\n" + UNSCALE_AND_REDUCE + "        if not gate:\n",
        differs_from_the_cpu_path),
    "checked before the reduction": (
        train_step, ONE_PASS + PLAIN_PASSES,
        "        grads = self.unscale(grads)\n" + LOOK + "        grads = self.grad_reducer(grads)\n",
        caught_by(skips, "910B IsFinite", REDUCTION)),
    "one gradient left out": (
        detector, "self.hyper_map(values, grads)", "self.hyper_map(values, grads[1:])",
        caught_by(skips, "910B IsFinite", REDUCTION)),
    "the register's flag reduced in a dtype that wraps": (
        register, "ops.cast(flags, ms.float32)", "ops.cast(flags, ms.int8)",
        caught_by(checks.check_an_overflow_of_another_rank_skips_the_step, "910A", 256, ranks=True)),
    "the optimizer outside the branch": (
        train_step, GATE, GATE.replace("        if not", "        gate =").replace("):\n    ", ")\n"),
        caught_by(skips, "910A", BACKWARD)),
}
COMPILE = {  # these only lack an edge of the graph: a run may be right by luck, PYNATIVE always is
    "the inputs not tied to the first clearing": (
        register, CLEAR_AND_TIE, "        return ops.depend(status, cleared), compute_input\n",
        caught_in_the_graph_by(graph_checks.test_every_operator_of_both_passes_waits_for_the_first_clearing)),
    "the seed not tied to the first clearing": (
        gradients, "scale = ops.depend(scale if ops.shape(scale) == () else ops.reshape(scale, ()), loss)",
        "scale = ops.reshape(scale, ())",
        caught_in_the_graph_by(graph_checks.test_every_operator_of_both_passes_waits_for_the_first_clearing)),
    "the reading not tied to the gradients": (
        register, "        status = ops.depend(status, compute_output)\n", "",
        caught_in_the_graph_by(graph_checks.test_the_register_is_read_after_loss_gradients_unscaling_and_reduction)),
    "the last clearing not tied to the reduced flag": (
        register, "        status = ops.depend(status, overflow)\n", "",
        caught_in_the_graph_by(graph_checks.test_the_register_is_cleared_once_more_between_its_reading_and_the_gate,
                               together=True)),
    "the gate not tied to the last clearing": (
        register, "return ops.depend(overflow, self.clear_status(status))",
        "self.clear_status(status)\n        return overflow",
        caught_in_the_graph_by(graph_checks.test_the_register_is_cleared_once_more_between_its_reading_and_the_gate)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_broken_step_fails_a_check_of_the_simulated_devices(name, mode, tmp_path):
    module, old, new, check = RUN[name]
    on_cpu(mode)
    with mutation(module, old, new, tmp_path), pytest.raises(AssertionError):
        check()


@needs_dump
@pytest.mark.parametrize("name", COMPILE)
def test_a_missing_edge_fails_a_check_of_the_compiled_step(name, tmp_path):
    module, old, new, check = COMPILE[name]
    with mutation(module, old, new, tmp_path), pytest.raises(AssertionError):
        check()


@pytest.mark.slow
def test_the_real_step_passes_every_check_that_catches_a_mutant(mode):
    for _, _, _, check in RUN.values():
        check()
