"""What the pages say of MindSpore, and of this package beside it, where no other test looks."""

import importlib.util
import sys

import mindspore as ms
import numpy as np
import pytest
from docs_source import ROOT, numbers
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore_version import V200
from poisoned import counters
from poisoned import numbers as values

from ms_lossscale import DynamicLossScaleUpdateCell, TrainOneStepWithLossScaleCell, build_train_network

INF = float("inf")
X, Y = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)


def parts():
    network = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
    return network, nn.SGD(network.trainable_params(), 0.1)


def built(kind=TrainOneStepWithLossScaleCell, cell=DynamicLossScaleUpdateCell):
    network, optimizer = parts()
    return kind(nn.WithLossCell(network, nn.MSELoss()), optimizer, cell(8, 2, 100))


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 does not build its step on CPU")
def test_mindspores_step_returns_its_live_parameter_in_pynative_mode_and_ours_never(mode):
    native, ours = built(nn.TrainOneStepWithLossScaleCell, nn.DynamicLossScaleUpdateCell), built()
    native.ascend_910b_target, native.enable_allfinite = True, False  # its Inf/NaN branch, which runs on CPU, too
    kept = [step(Tensor(X * INF), Tensor(Y))[2] for step in (native, ours)]
    assert values(*kept) == (4, 4)
    for step in (native, ours):
        step(Tensor(X * INF), Tensor(Y))[0].asnumpy()
    assert values(*kept) == (2 if mode == ms.PYNATIVE_MODE else 4, 4)


def test_mindspores_model_takes_a_step_as_its_network(mode):
    model = ms.Model(built())
    data = NumpySlicesDataset((np.concatenate([X, X * INF]), np.concatenate([Y, Y])), shuffle=False).batch(2)
    model.train(1, data, dataset_sink_mode=False)
    assert counters(model.train_network) == (1, 1, 1)


def test_mindspores_model_refuses_o2_on_cpu():
    with pytest.raises(ValueError, match="loss_scale_manager"):
        ms.Model(parts()[0], nn.MSELoss(), parts()[1], amp_level="O2")


class OwnUpdate(TrainOneStepWithLossScaleCell):
    """Calls the update cell itself, as subclasses for MindSpore's step do."""

    def construct(self, *inputs):
        loss = self.network(*inputs)
        grads = self.unscale(self.grad(self.network, self.weights)(*inputs, self.scaled_seed(loss)))
        overflow = self.get_overflow_status(loss, grads)
        return loss, self.loss_scaling_manager(self.scale_sense, overflow)


def test_a_subclass_that_calls_the_update_cell_itself_moves_the_scale_and_counts_nothing(mode):
    step = built(OwnUpdate)
    assert values(step(Tensor(X * INF), Tensor(Y))[1]) == (True,)
    assert (step.get_loss_scale(), counters(step)) == (4, (0, 0, 0))


class Bare(TrainOneStepWithLossScaleCell):
    def unscale(self, grads):
        return super().unscale(grads)


class DerivedFromBare(Bare):
    pass


class Named(TrainOneStepWithLossScaleCell):
    def unscale(self, grads):
        return super(Named, self).unscale(grads)  # noqa: UP008


class DerivedFromNamed(Named):
    pass


@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 follows the recursion until the process dies")
def test_super_without_arguments_finds_itself_in_a_graph_and_with_them_does_not(graph_mode):
    with pytest.raises(RuntimeError, match="call depth"):
        built(DerivedFromBare)(Tensor(X), Tensor(Y))
    assert values(built(DerivedFromNamed)(Tensor(X), Tensor(Y))[1]) == (False,)


def test_inputs_by_name_are_a_type_error(mode):
    with pytest.raises(TypeError, match="label"):
        built()(Tensor(X), label=Tensor(Y))


@pytest.mark.filterwarnings("ignore::ms_lossscale.NoLossScaleWarning")
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_these_levels_compute_the_loss_in_float32(level, graph_mode):
    step = build_train_network(*parts(), nn.MSELoss(), level=level, loss_scale_manager=None)
    assert step(Tensor(X), Tensor(Y)).dtype == ms.float32


@pytest.mark.slow
@pytest.mark.skipif(V200, reason="MindSpore 2.0.0 does not compile the loop of the picture's network")
def test_the_shares_of_lost_gradients_are_those_of_the_picture(graph_mode, monkeypatch):
    pytest.importorskip("matplotlib")
    path = ROOT / "docs_en" / "figures" / "gradients.py"
    spec = importlib.util.spec_from_file_location("gradients_figure", path)
    figure = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, figure)
    spec.loader.exec_module(figure)
    layers = [np.abs(layer[layer != 0]) for layer in figure.gradients()]
    lost = [np.mean(layer < 2.0**-25) for layer in layers]
    everywhere = np.mean(np.concatenate(layers) < 2.0**-25)
    assert {f"{100 * lost[0]:.0f}", f"{100 * everywhere:.0f}"} <= numbers(ROOT / "docs_en" / "concepts.md")
    assert 0 < np.mean(np.concatenate(layers) * 2.0**figure.LOG2_SCALE < 2.0**-25) < 0.001
