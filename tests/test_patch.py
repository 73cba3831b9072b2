"""patch(): MindSpore's names are ours while it holds, however they were imported, and are MindSpore's after."""

import ast
import contextlib
import copy
import importlib
import importlib.util
import inspect
import pickle
import sys
import threading
import types
import warnings
from pathlib import Path

import mindspore
import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops
from mindspore.dataset import NumpySlicesDataset

import ms_lossscale
from ms_lossscale import patch

# Other tests derive from MindSpore's step on purpose; the tests of the warning look at it themselves.
pytestmark = pytest.mark.filterwarnings("ignore:Derived from MindSpore's TrainOneStepWithLossScaleCell")

MANAGERS = ("LossScaleManager", "FixedLossScaleManager", "DynamicLossScaleManager")
CELLS = ("FixedLossScaleUpdateCell", "DynamicLossScaleUpdateCell", "TrainOneStepWithLossScaleCell")
# Every module of MindSpore that offers one of the names, read from 2.0.0 and 2.10.0.
EXPORTS = [
    *[(module, "Model") for module in ("mindspore", "mindspore.train", "mindspore.train.model")],
    *[(module, "build_train_network")
      for module in ("mindspore", "mindspore.amp", "mindspore.train", "mindspore.train.amp")],
    *[(module, name) for name in MANAGERS
      for module in ("mindspore", "mindspore.amp", "mindspore.train", "mindspore.train.loss_scale_manager")],
    ("mindspore.train.amp", "LossScaleManager"),
    ("mindspore.train.amp", "DynamicLossScaleManager"),
    *[(module, name) for name in CELLS
      for module in ("mindspore.nn", "mindspore.nn.wrap", "mindspore.nn.wrap.loss_scale")],
    *[("mindspore.amp", name) for name in ("LossScaler", "StaticLossScaler", "DynamicLossScaler", "all_finite")],
]
# In dicts, because patch() would redirect a name of this module, too.
NATIVE = {name: getattr(importlib.import_module(module), name) for module, name in EXPORTS}
NATIVE_MODULES = {"step": importlib.import_module("mindspore.nn.wrap.loss_scale")}
OURS = {name: getattr(ms_lossscale, name) for name in NATIVE}
X = np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32)
INF = np.inf


def imported(module, name):
    """What every way of import gives for a name of a module."""
    found = {}
    exec(f"from {module} import {name} as by_name\n"
         f"import {module} as bound\n"
         f"import {module}\n"
         f"import importlib, sys\n"
         f"by_path, by_alias = {module}.{name}, bound.{name}\n"
         f"by_importlib = importlib.import_module('{module}').{name}\n"
         f"by_sys_modules = sys.modules['{module}'].{name}\n", found)
    if module == "mindspore.nn.wrap.loss_scale":  # "from mindspore import *" fails in MindSpore itself
        exec(f"from {module} import *\nby_star = {name}", found)
    return {way: value for way, value in found.items() if way.startswith("by_")}


def assert_names_are(expected):
    for module, name in EXPORTS:
        for way, value in imported(module, name).items():
            assert value is expected[name], f"{module}.{name} by {way}"


def snapshot():
    """Every name of every module of MindSpore, of this file and of the temporary modules."""
    return {name: dict(vars(module)) for name, module in list(sys.modules.items())
            if isinstance(module, types.ModuleType) and name.split(".")[0] in ("mindspore", __name__, "user_code")}


def assert_unchanged(before):
    after = snapshot()
    assert before.keys() <= after.keys()
    for module, names in before.items():
        assert names.keys() <= after[module].keys()
        assert not [name for name, value in names.items() if after[module][name] is not value], module
        added = {name for name in after[module].keys() - names.keys() if f"{module}.{name}" not in sys.modules}
        assert not added - {"__warningregistry__"}, module
    assert sys.modules["mindspore.nn.wrap.loss_scale"] is NATIVE_MODULES["step"]


@pytest.fixture
def write_module(tmp_path, monkeypatch):
    """Return a function that writes a module of a user's and imports it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(source, name="user_code"):
        (tmp_path / f"{name.rpartition('.')[2]}.py").write_text(inspect.cleandoc(source), encoding="utf-8")
        importlib.invalidate_caches()
        written.append(name)
        return importlib.import_module(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)


USER_CODE = """
    import mindspore as ms
    import mindspore.nn.wrap.loss_scale as m
    from mindspore import amp, nn, train
    from mindspore import Model, FixedLossScaleManager as Fixed
    from mindspore.amp import DynamicLossScaler, all_finite, build_train_network
    from mindspore.nn import FixedLossScaleUpdateCell
    from mindspore.nn.wrap import loss_scale
    from mindspore.nn.wrap.loss_scale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell as Step
    from mindspore.train.loss_scale_manager import DynamicLossScaleManager, LossScaleManager
    from mindspore.nn.wrap.loss_scale import _grad_scale, TrainOneStepCell
    mine = "mine"
"""


def seen_by(module):
    """MindSpore's names as a module with USER_CODE sees them."""
    return {
        "Model": {module.Model, module.ms.Model, module.train.Model},
        "build_train_network": {module.build_train_network, module.amp.build_train_network},
        "LossScaleManager": {module.LossScaleManager, module.amp.LossScaleManager},
        "FixedLossScaleManager": {module.Fixed, module.train.FixedLossScaleManager},
        "DynamicLossScaleManager": {module.DynamicLossScaleManager, module.ms.DynamicLossScaleManager},
        "FixedLossScaleUpdateCell": {module.FixedLossScaleUpdateCell, module.m.FixedLossScaleUpdateCell},
        "DynamicLossScaleUpdateCell": {module.DynamicLossScaleUpdateCell, module.nn.DynamicLossScaleUpdateCell},
        "TrainOneStepWithLossScaleCell": {module.Step, module.m.TrainOneStepWithLossScaleCell,
                                          module.loss_scale.TrainOneStepWithLossScaleCell,
                                          module.nn.TrainOneStepWithLossScaleCell},
        "LossScaler": {module.amp.LossScaler},
        "StaticLossScaler": {module.amp.StaticLossScaler},
        "DynamicLossScaler": {module.DynamicLossScaler},
        "all_finite": {module.all_finite, module.amp.all_finite},
    }


def singletons(names):
    return {name: {value} for name, value in names.items()}


def test_every_name_is_ours_by_every_way_of_import():
    assert_names_are(NATIVE)
    with patch():
        assert_names_are(OURS)
    assert_names_are(NATIVE)


def test_a_call_holds_until_it_is_undone():
    held = patch()
    try:
        assert_names_are(OURS)
    finally:
        held.undo()
    assert_names_are(NATIVE)


def test_no_module_of_mindspore_keeps_a_native_name_but_the_one_that_defines_the_cells():
    natives = {id(value): name for name, value in NATIVE.items()}
    with patch():
        kept = [f"{module}.{natives[id(value)]}" for module, names in snapshot().items()
                for value in names.values() if id(value) in natives and module.split(".")[0] == "mindspore"]
        assert vars(NATIVE_MODULES["step"]).items() >= {name: NATIVE[name] for name in CELLS}.items()
    assert kept == []


def test_a_module_imported_before_sees_ours_and_gets_its_own_back(write_module):
    module = write_module(USER_CODE)
    before = dict(vars(module))
    assert seen_by(module) == singletons(NATIVE)
    with patch():
        assert seen_by(module) == singletons(OURS)
        assert (module.mine, module.TrainOneStepCell) == ("mine", nn.TrainOneStepCell)
    assert dict(vars(module)) == before and seen_by(module) == singletons(NATIVE)


def test_a_module_imported_meanwhile_sees_ours_and_keeps_what_it_imported(write_module):
    with patch():
        module = write_module(USER_CODE)
        assert seen_by(module) == singletons(OURS)
        assert module._grad_scale is vars(module.m)["_grad_scale"] is vars(NATIVE_MODULES["step"])["_grad_scale"]
    assert module.Model is OURS["Model"] and module.Step is OURS["TrainOneStepWithLossScaleCell"]
    assert module.nn.TrainOneStepWithLossScaleCell is NATIVE["TrainOneStepWithLossScaleCell"]


def test_a_part_of_mindspore_first_imported_meanwhile_is_restored(write_module, tmp_path, monkeypatch):
    monkeypatch.setattr(mindspore, "__path__", [*mindspore.__path__, str(tmp_path)])
    try:
        with patch():
            part = write_module(USER_CODE, "mindspore.late_part")
            assert seen_by(part) == singletons(OURS)
        assert seen_by(part) == singletons(NATIVE)
        assert part.m is part.loss_scale is NATIVE_MODULES["step"]
    finally:
        del mindspore.late_part


def test_mindspores_thor_model_is_never_derived_from_ours(monkeypatch):
    name = "mindspore.train.train_thor.model_thor"
    importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)
    with patch():
        assert OURS["Model"] not in importlib.import_module(name).ModelThor.__mro__


def test_the_stand_in_for_the_defining_module_offers_all_that_the_module_offers():
    native = dict(vars(NATIVE_MODULES["step"]))
    with patch():
        module = importlib.import_module("mindspore.nn.wrap.loss_scale")
        assert module is not NATIVE_MODULES["step"]
        differing = {name for name, value in native.items() if getattr(module, name) is not value}
        assert vars(module).keys() == native.keys() <= set(dir(module))
    assert differing == set(CELLS)


def test_what_a_module_rebinds_meanwhile_stays(write_module):
    module = write_module("from mindspore import Model, FixedLossScaleManager, DynamicLossScaleManager")
    with patch():
        module.Model = "mine"
        del module.FixedLossScaleManager
    assert module.Model == "mine" and not hasattr(module, "FixedLossScaleManager")
    assert module.DynamicLossScaleManager is NATIVE["DynamicLossScaleManager"]


def test_a_name_that_was_ours_before_stays_ours(write_module):
    module = write_module("from ms_lossscale import Model, patch")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(mindspore.nn, "DynamicLossScaleUpdateCell", OURS["DynamicLossScaleUpdateCell"])
        with patch():
            assert module.Model is OURS["Model"]
        assert module.Model is OURS["Model"]
        assert mindspore.nn.DynamicLossScaleUpdateCell is OURS["DynamicLossScaleUpdateCell"]


def test_nested_calls_are_counted_and_only_the_last_end_restores():
    before = snapshot()
    outer = patch()
    with patch():
        inner = patch()
        outer.undo()
        assert_names_are(OURS)
    assert_names_are(OURS)
    outer.undo()
    outer.undo()
    assert_names_are(OURS)
    inner.undo()
    inner.undo()
    assert_unchanged(before)
    with patch():
        assert_names_are(OURS)
    assert_unchanged(before)


def test_one_patch_can_be_entered_again():
    before = snapshot()
    again = patch()
    for _ in range(2):
        with again as entered:
            assert entered is again and mindspore.Model is OURS["Model"]
        assert_unchanged(before)


def test_an_exception_leaves_everything_restored(write_module):
    write_module(USER_CODE)
    before = snapshot()
    with pytest.raises(ZeroDivisionError), patch():
        with patch():
            pass
        importlib.import_module("mindspore.train.callback._landscape")
        assert_names_are(OURS)
        raise ZeroDivisionError
    assert_unchanged(before)


def test_our_objects_pass_for_mindspores_by_every_name():
    network, optimizer = dense()
    with patch():
        step = ms.build_train_network(network, optimizer, nn.MSELoss(), loss_scale_manager=ms.FixedLossScaleManager())
        objects = {
            "Model": [ms.Model(network)],
            "LossScaleManager": [ms.FixedLossScaleManager(), amp.DynamicLossScaleManager()],
            "FixedLossScaleManager": [ms.FixedLossScaleManager()],
            "DynamicLossScaleManager": [ms_lossscale.DynamicLossScaleManager()],
            "FixedLossScaleUpdateCell": [ms.FixedLossScaleManager().get_update_cell(), step.loss_scaling_manager],
            "DynamicLossScaleUpdateCell": [ms.DynamicLossScaleManager().get_update_cell()],
            "TrainOneStepWithLossScaleCell": [step],
            "LossScaler": [amp.StaticLossScaler(8), ms_lossscale.DynamicLossScaler(8, 2, 2)],
            "StaticLossScaler": [ms_lossscale.StaticLossScaler(8)],
            "DynamicLossScaler": [amp.DynamicLossScaler(8, 2, 2)],
        }
        assert objects.keys() == {name for name, ours in OURS.items() if isinstance(ours, type)}
        for module, name in EXPORTS:
            for thing in objects.get(name, ()):
                for way, value in imported(module, name).items():
                    assert isinstance(thing, value) and issubclass(type(thing), value), f"{module}.{name} by {way}"
        assert isinstance(step, nn.TrainOneStepCell) and isinstance(step, nn.Cell)


def test_managers_and_update_cells_copy_and_managers_pickle_while_patched():
    with patch():
        manager = amp.DynamicLossScaleManager(16, 2, 3)
        manager.update_loss_scale(True)
        for twin in (copy.deepcopy(manager), pickle.loads(pickle.dumps(manager))):
            assert isinstance(twin, ms.DynamicLossScaleManager) and (twin.loss_scale, twin.cur_iter) == (8, 2)
        fixed = pickle.loads(pickle.dumps(ms.FixedLossScaleManager(8)))
        for cell in (manager.get_update_cell(), fixed.get_update_cell()):
            twin = copy.deepcopy(cell)
            assert isinstance(twin, type(cell)) and twin.get_loss_scale() == 8
    assert pickle.loads(pickle.dumps(manager)).loss_scale == 8


def test_no_part_of_the_package_that_loads_later_imports_a_name_that_patch_replaces():
    package = Path(ms_lossscale.__file__).parent
    for file in [package / "__main__.py", *package.glob("commands/*.py")]:
        imports = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
                   if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mindspore"]
        assert not {alias.name for node in imports for alias in node.names} & NATIVE.keys(), file.name


def derive(name, base=NATIVE["TrainOneStepWithLossScaleCell"], module="somebodys.code"):
    return type(name, (base,), {"__module__": module})


def test_a_class_derived_from_mindspores_step_before_is_named_in_a_warning():
    parent, twin, part = derive("Parent"), derive("Parent"), derive("Part", module="mindspore.part")
    early = derive("Child", parent)
    with pytest.warns(RuntimeWarning, match=r"somebodys\.code\.Child, somebodys\.code\.Parent") as caught, \
            patch(), patch():
        assert early.__mro__[2] is NATIVE["TrainOneStepWithLossScaleCell"]
    assert len(caught) == 1 and caught[0].filename == __file__
    assert twin and part
    named = str(caught[0].message).partition(": ")[2].partition(". Call")[0].split(", ")
    assert len(named) == len(set(named))
    assert not [name for name in named if name.split(".")[0] in ("mindspore", "ms_lossscale")]


def test_a_warning_that_is_an_error_leaves_nothing_patched():
    early, before = derive("Early"), snapshot()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match=early.__qualname__):
            patch()
    assert_unchanged(before)
    with patch():
        assert_names_are(OURS)
    assert_unchanged(before)


def test_classes_derived_meanwhile_are_not_warned_of():
    with patch():
        late = derive("DerivedInTime", nn.TrainOneStepWithLossScaleCell)
    assert issubclass(late, OURS["TrainOneStepWithLossScaleCell"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with patch():
            pass
    assert "DerivedInTime" not in str([warning.message for warning in caught])


class Hostile:
    """Whatever is done to it raises, but for looking at what it is."""

    def __eq__(self, other):
        raise RuntimeError("compared")

    __hash__ = None

    def __bool__(self):
        raise RuntimeError("asked for its truth")

    def __getattr__(self, name):
        raise RuntimeError(f"asked for {name}")


class Waking(types.ModuleType):
    """A lazy module: it must not be woken."""

    def __getattribute__(self, name):
        raise RuntimeError("woken")

    def __setattr__(self, name, value):
        raise RuntimeError("written to")


class Posing:
    """No module, and not even willing to say so."""

    @property
    def __class__(self):
        raise RuntimeError("asked for its class")


class OwnDict(types.ModuleType):
    @property
    def __dict__(self):
        raise RuntimeError("asked for its names")


def test_strange_things_among_the_modules_do_no_harm_and_come_to_none(write_module, tmp_path, monkeypatch):
    module = write_module("from mindspore import Model")
    module.hostile, module.array = Hostile(), np.zeros(3)
    waking, own_dict = Waking("strange_waking"), OwnDict("strange_dict")
    names = vars(types.ModuleType)["__dict__"].__get__
    for strange in (waking, own_dict):
        names(strange)["Model"] = NATIVE["Model"]
    (tmp_path / "strange_lazy.py").write_text("raise RuntimeError('loaded')", encoding="utf-8")
    spec = importlib.util.find_spec("strange_lazy")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(lazy)
    for name, value in {"none": None, "hostile": Hostile(), "posing": Posing(), "lazy": lazy, "waking": waking,
                        "dict": own_dict, "empty": types.ModuleType.__new__(types.ModuleType), "number": 5}.items():
        monkeypatch.setitem(sys.modules, f"strange_{name}", value)
    monkeypatch.setitem(sys.modules, "strange_alias", NATIVE_MODULES["step"])
    with patch():
        assert_names_are(OURS)
        assert vars(NATIVE_MODULES["step"]).items() >= {name: NATIVE[name] for name in CELLS}.items()
        assert [names(each)["Model"] for each in (module, waking, own_dict)] == [OURS["Model"]] * 3
    assert [names(each)["Model"] for each in (module, waking, own_dict)] == [NATIVE["Model"]] * 3
    assert type(lazy).__name__ == "_LazyModule"
    assert_names_are(NATIVE)


@pytest.fixture
def often():
    """Let threads take turns as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_share_one_redirection(often):
    before, failures = snapshot(), []
    start = threading.Barrier(8)
    shared = [patch() for _ in range(20)]

    def work():
        start.wait()
        for each in shared:
            each.undo()
            with patch():
                for module, name in EXPORTS:
                    if getattr(sys.modules[module], name) is not OURS[name]:
                        failures.append(f"{module}.{name}")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert_unchanged(before)
    with patch():
        assert_names_are(OURS)
    assert_unchanged(before)


class Hesitant(patch):
    """After looking at its state it waits a moment for another thread to look, too."""

    meeting = threading.Barrier(2)

    @property
    def _active(self):
        seen = self.__dict__.get("state", False)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.meeting.wait(0.5)
        return seen

    @_active.setter
    def _active(self, value):
        self.__dict__["state"] = value


def test_two_threads_end_one_patch_once():
    with patch():
        hesitant = Hesitant()
        hesitant.meeting.reset()
        threads = [threading.Thread(target=hesitant.undo) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert_names_are(OURS)
    assert_names_are(NATIVE)


def dense():
    weight = np.linspace(-0.5, 0.5, 6).reshape(2, 3).astype(np.float32)
    network = nn.Dense(3, 2, weight_init=Tensor(weight), bias_init="zeros")
    return network, nn.Momentum(network.trainable_params(), 0.125, 0.5)


def batches(*labels):
    y = np.concatenate([np.full((4, 2), label, np.float32) for label in labels])
    return NumpySlicesDataset((np.tile(X, (len(labels), 1)), y), ["x", "label"], shuffle=False).batch(4)


SCRIPT = """
    import mindspore as ms
    from mindspore import nn, ops
    from mindspore.train import Callback, Model
    from mindspore.nn.wrap.loss_scale import DynamicLossScaleUpdateCell, _grad_scale
    from mindspore.train.loss_scale_manager import DynamicLossScaleManager, FixedLossScaleManager


    class Step(nn.TrainOneStepWithLossScaleCell):
        def __init__(self, network, optimizer, scale_sense):
            super(Step, self).__init__(network, optimizer, scale_sense)

        def construct(self, x, label):
            loss = self.network(x, label)
            status, sens = self.start_overflow_check(loss, self.scale_sense)
            grads = self.grad(self.network, self.weights)(x, label, ops.cast(sens, ops.dtype(loss)))
            grads = self.hyper_map(ops.partial(_grad_scale, self.scale_sense), grads)
            grads = self.grad_reducer(grads)
            overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
            if not overflow:
                loss = ops.depend(loss, self.optimizer(grads))
            return loss, overflow, self.scale_sense


    class Log(Callback):
        def __init__(self):
            super(Log, self).__init__()
            self.lines = []

        def step_end(self, run_context):
            _, overflow, scale = run_context.original_args().net_outputs
            self.lines.append((bool(overflow.asnumpy()), float(scale.asnumpy())))


    def train(kind, network, optimizer, data):
        log, loss = Log(), nn.MSELoss()
        if kind == "step":
            cell = DynamicLossScaleUpdateCell(loss_scale_value=64, scale_factor=2, scale_window=2)
            model = Model(Step(nn.WithLossCell(network, loss), optimizer, cell))
        else:
            manager = FixedLossScaleManager(64) if kind == "fixed" else DynamicLossScaleManager(64, 2, 2)
            model = Model(network, loss_fn=loss, optimizer=optimizer, loss_scale_manager=manager)
        model.train(1, data, callbacks=[log], dataset_sink_mode=False)
        return log.lines
"""
FLAGS = [False, True, False, False]


@pytest.mark.parametrize("kind, scales", [("fixed", [64, 64, 64, 64]), ("dynamic", [64, 32, 32, 64]),
                                          ("step", [64, 32, 32, 64])])
def test_a_script_of_the_usual_shape_trains_while_patched(kind, scales, mode, write_module):
    with patch():
        script = write_module(SCRIPT, f"script_{kind}_{mode}")
        network, optimizer = dense()
        lines = script.train(kind, network, optimizer, batches(1, INF, 2, 3))
    assert lines == list(zip(FLAGS, scales))
    assert np.isfinite(network.weight.asnumpy()).all()


class NativeStep(NATIVE["TrainOneStepWithLossScaleCell"]):
    """MindSpore's own step, looking at the gradients in the way that every version can on CPU."""

    def start_overflow_check(self, pre_cond, compute_input):
        return Tensor([0] * 8, ms.int32), compute_input

    def get_overflow_status(self, status, compute_output):
        finite = ops.isfinite(compute_output[0]).all()
        for grad in compute_output[1:]:
            finite = ops.logical_and(finite, ops.isfinite(grad).all())
        return ops.logical_not(finite)


def test_mindspores_own_classes_construct_and_run_while_patched(mode):
    network, optimizer = dense()
    with patch():
        cell = NATIVE["DynamicLossScaleUpdateCell"](64, 2, 2)
        assert NATIVE["FixedLossScaleUpdateCell"](8).get_loss_scale() == 8
        assert NATIVE["FixedLossScaleManager"](8).get_loss_scale() == 8
        assert NATIVE["DynamicLossScaleManager"](8).get_loss_scale() == 8
        scaler = NATIVE["DynamicLossScaler"](8, 2, 1)
        scaler.adjust(Tensor(False))
        assert scaler.scale_value.asnumpy() == NATIVE["StaticLossScaler"](4).scale_value.asnumpy()
        step = NativeStep(nn.WithLossCell(network, nn.MSELoss()), optimizer, cell)
        seen = []
        for label in (1, INF, 2, 3):
            _, overflow, scale = step(Tensor(X), Tensor(np.full((4, 2), label, np.float32)))
            seen.append((bool(overflow.asnumpy()), float(scale.asnumpy())))
    assert seen == list(zip(FLAGS, [64, 32, 32, 64]))


def test_mindspores_own_model_and_managers_from_before_train_while_patched():
    ms.set_context(mode=ms.PYNATIVE_MODE)

    class EarlyModel(NATIVE["Model"]):
        pass

    class EarlyManager(NATIVE["FixedLossScaleManager"]):
        pass

    for model_class in (NATIVE["Model"], EarlyModel, OURS["Model"]):
        for manager in (NATIVE["DynamicLossScaleManager"](64, 2, 2), EarlyManager(64)):
            network, optimizer = dense()
            with patch():
                model = model_class(network, nn.MSELoss(), optimizer, loss_scale_manager=manager)
                model.train(1, batches(1, INF), dataset_sink_mode=False)
            step = model.train_network
            assert type(step) is OURS["TrainOneStepWithLossScaleCell"]
            assert (step.applied_steps.asnumpy(), step.skipped_steps.asnumpy()) == (1, 1)
