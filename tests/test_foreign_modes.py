"""Training modes that only MindSpore's own cells serve: on Ascend and GPU they get them, with one warning."""

import warnings

import pytest
from devices import machine
from mindspore import context, nn
from mindspore_version import V200
from test_model import FOREIGN, foreign_arguments, graph  # noqa: F401

from ms_lossscale import DynamicLossScaleManager, Model, build_train_network, model

TARGETS = [("Ascend", "910B"), ("GPU", "")]
by_target = pytest.mark.parametrize("target, chip", TARGETS, ids=[target for target, _ in TARGETS])


class Native:
    """Stands in for MindSpore's builders, and remembers what they were asked for."""

    def __init__(self, monkeypatch):
        self.asked = []
        self.built = nn.Dense(1, 1)
        monkeypatch.setattr(model, "native_build_train_network", self.build)
        monkeypatch.setattr(model.NativeModel, "_build_train_network", self.build_for_model())

    def build(self, *arguments, **options):
        self.asked.append(options["loss_scale_manager"])
        return self.built

    def build_for_model(self):
        def build(wrapper):
            self.asked.append(wrapper._loss_scale_manager)
            return self.built

        return build


@pytest.fixture
def native(monkeypatch):
    return Native(monkeypatch)


@by_target
@pytest.mark.parametrize("name", FOREIGN)
def test_build_train_network_leaves_the_mode_to_mindspore_with_one_warning(name, target, chip, native, graph):  # noqa: F811
    arguments = foreign_arguments(name)
    with machine(target, chip), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = build_train_network(**arguments)
    assert step is native.built
    assert native.asked == [arguments["loss_scale_manager"]]
    told = [str(warning.message) for warning in caught if "loss scaling with" in str(warning.message).lower()]
    assert len(told) == 1
    assert name in told[0]
    assert "overflow check and step counters are not in use" in told[0]


@by_target
@pytest.mark.parametrize("name", [name for name in FOREIGN if "parallel" not in name])
def test_model_leaves_the_mode_to_mindspore_with_one_warning(name, target, chip, native, graph):  # noqa: F811
    arguments = foreign_arguments(name)
    with machine(target, chip), pytest.warns(RuntimeWarning, match="is done by MindSpore's own cells") as caught:
        trained = Model(**arguments)
    assert trained.train_network is native.built
    assert native.asked == [arguments["loss_scale_manager"]]
    assert len([warning for warning in caught if name in str(warning.message)]) == 1


@pytest.mark.skipif(V200, reason="2.0.0 builds a data-parallel step in a running job alone")
@by_target
def test_data_parallel_is_no_such_mode(target, chip, native, monkeypatch, recwarn):
    """It gets this package's own step, built for the target."""
    monkeypatch.setattr(model, "native_build_train_network",
                        lambda network, optimizer, *rest, **options: nn.TrainOneStepCell(network, optimizer))
    arguments = foreign_arguments("boost level O1")
    arguments.update(boost_level="O0", loss_scale_manager=DynamicLossScaleManager(64))
    context.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True, device_num=2)
    try:
        with machine(target, chip):
            step = build_train_network(**arguments)
    finally:
        context.reset_auto_parallel_context()
    assert type(step).__module__.startswith("ms_lossscale")
    assert step.detector.distributed
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]
