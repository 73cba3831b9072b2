"""LossScaleMonitor: its lines, its history and event files are right, cheap, and outlive a crash."""

import json
import re
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore_version import V200
from poisoned import batch, with_loss

from ms_lossscale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    LossScaleMonitor,
    Model,
    TrainOneStepWithLossScaleCell,
    TrainStep,
    load_checkpoint,
)
from ms_lossscale import callback as callback_file
from ms_lossscale.history import History, read_history

INF = float("inf")
X = np.ones((4, 3), np.float32)


def make_step(scale=1024.0, kind=TrainOneStepWithLossScaleCell, **options):
    network = with_loss()
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    return kind(network, optimizer, DynamicLossScaleUpdateCell(scale, 2, 1000), **options)


def make_model(manager=None):
    network = nn.Dense(3, 2, weight_init="zeros")
    optimizer = nn.Momentum(network.trainable_params(), 0.125, 0.5)
    return Model(network, nn.MSELoss(), optimizer,
                 loss_scale_manager=manager or DynamicLossScaleManager(1024.0, 2, 1000))


def train(model, labels, *callbacks):
    y = np.concatenate([np.full((4, 2), label, np.float32) for label in labels])
    data = NumpySlicesDataset((np.tile(X, (len(labels), 1)), y), ["x", "y"], shuffle=False).batch(4)
    model.train(1, data, list(callbacks), dataset_sink_mode=False)


def without_loss(lines):
    return [re.sub(r"loss \S+ \| ", "", line) for line in lines]


class CountedReads:
    """Counts how often the monitor waits for the device."""

    def __init__(self, monkeypatch):
        self.reads = 0
        read = callback_file.read

        def counted(step):
            self.reads += 1
            return read(step)

        monkeypatch.setattr(callback_file, "read", counted)


class Fake:
    """A step whose counters a test moves by hand."""

    def __init__(self, **options):
        self.step = make_step(**options)

    def move(self, applied, skipped, in_a_row, scale):
        for name, by in (("applied_steps", applied), ("skipped_steps", skipped)):
            counter = getattr(self.step, name)
            counter.set_data(counter + by)
        self.step.consecutive_overflows.set_data(Tensor(in_a_row, ms.int32))
        self.step.set_sense_scale(Tensor(scale, ms.float32))


class Context:
    """What Model hands to a callback."""

    def __init__(self, step, sink=True):
        self.arguments = Arguments(train_network=step, cur_step_num=0, net_outputs=Tensor(0.5, ms.float32),
                                   dataset_sink_mode=sink)

    def original_args(self):
        return self.arguments


class Arguments(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


# Lines.

def test_model_gets_a_line_every_interval_and_a_summary(mode, capsys):
    train(make_model(), [1, INF, 1, 1, INF], LossScaleMonitor(2))
    assert without_loss(capsys.readouterr().out.splitlines()) == [
        "step 2 | scale 2**9 | applied 1, skipped 1 | 1 overflow in a row",
        "step 4 | scale 2**9 | applied 2, skipped 0 | 0 overflows in a row",
        "step 5 | scale 2**8 | applied 0, skipped 1 | 1 overflow in a row",
        "loss scaling: 5 steps, 3 applied, 2 skipped (40 %); scale 2**8, seen from 2**8 to 2**10"]


def test_a_loop_of_ones_own_gets_the_same(mode, capsys):
    step = make_step()
    with LossScaleMonitor(2, diagnose_after=None) as monitor:
        for number in (0.0, INF, INF):
            inputs = batch("first", number)
            monitor.step(step, step(*inputs), inputs)
    assert without_loss(capsys.readouterr().out.splitlines()) == [
        "step 2 | scale 2**9 | applied 1, skipped 1 | 1 overflow in a row",
        "step 3 | scale 2**8 | applied 0, skipped 1 | 2 overflows in a row",
        "loss scaling: 3 steps, 1 applied, 2 skipped (66.7 %); scale 2**8, seen from 2**8 to 2**10"]


def test_the_device_is_read_only_when_a_line_is_due(mode, monkeypatch):
    counted, model = CountedReads(monkeypatch), make_model()
    train(model, [1] * 9, LossScaleMonitor(4, quiet=True))
    assert counted.reads == 1 + 2 + 1  # at the start, after 4 and 8, at the end


def test_in_a_data_sink_the_numbers_are_those_of_the_whole_sink(capsys):
    fake, monitor = Fake(), LossScaleMonitor(100)
    context = Context(nn.SequentialCell(fake.step))  # in a sink the step is inside another cell
    fake.move(70, 5, 0, 1024.0)  # what a checkpoint brought
    monitor.on_train_begin(context)
    for skipped in (3, 60, 0):
        fake.move(60 - skipped, skipped, skipped, 512.0)
        context.arguments.cur_step_num += 60
        monitor.on_train_step_end(context)
    monitor.on_train_end(context)
    assert [line.split(" | ")[0] + ": " + line.split(" | ")[3] for line in capsys.readouterr().out.splitlines()
            if line.startswith("step")] == ["step 195: applied 57, skipped 63", "step 255: applied 60, skipped 0"]


def test_while_everything_overflows_lines_grow_rare_but_the_history_does_not(tmp_path, capsys):
    fake, monitor = Fake(), LossScaleMonitor(1, history=tmp_path / "h.jsonl", diagnose_after=None)
    for number in range(100):
        fake.move(0, 1, number + 1, 1.0)
        monitor.step(fake.step)
    fake.move(1, 0, 0, 1.0)
    monitor.step(fake.step)
    monitor.close()
    shown = [line.split(" | ")[0] for line in capsys.readouterr().out.splitlines()]
    assert shown[:-1] == [f"step {number}" for number in (1, 2, 4, 8, 16, 32, 64, 101)]
    assert len(read_history(tmp_path / "h.jsonl")) == 101


def test_quiet_prints_nothing(mode, capsys):
    train(make_model(), [1, INF], LossScaleMonitor(1, quiet=True))
    assert capsys.readouterr().out == ""


def test_an_error_in_training_still_gives_the_summary_and_closes_the_files(tmp_path, capsys):
    model = make_model(DynamicLossScaleManager(1024.0))
    model.train_network.watch.guard.limit = 2
    model.train_network.watch._interval = 1
    with pytest.raises(RuntimeError, match="3 steps in a row"):
        train(model, [INF] * 5, LossScaleMonitor(1, history=tmp_path / "h.jsonl", diagnose_after=None))
    assert "loss scaling: 3 steps, 0 applied, 3 skipped (100 %)" in capsys.readouterr().out


# History.

def test_a_record_holds_the_numbers_of_its_line_and_is_strict_json(mode, tmp_path):
    path = tmp_path / "deep" / "h.jsonl"
    train(make_model(), [1, INF], LossScaleMonitor(1, history=path, quiet=True))
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert records[1] == {"step": 2, "loss": "inf", "scale": 512.0, "applied": 0, "skipped": 1,
                          "consecutive_overflows": 1}
    assert records[0]["applied"] == 1 and records[0]["loss"] > 0
    assert read_history(path)[1]["loss"] == INF


def test_a_resumed_training_goes_on_in_the_history_without_a_step_twice(mode, tmp_path):
    path = str(tmp_path / "h.jsonl")
    model = make_model()
    train(model, [1, INF, 1], LossScaleMonitor(1, history=path, quiet=True))
    ms.save_checkpoint(model.train_network, str(tmp_path / "step.ckpt"))
    train(model, [1, 1], LossScaleMonitor(1, history=path, quiet=True))  # lost in a crash, but for the history
    again = make_model()
    load_checkpoint(again.train_network, str(tmp_path / "step.ckpt"))
    train(again, [INF, 1, 1], LossScaleMonitor(1, history=path, quiet=True))
    records = read_history(path)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    assert [record["skipped"] for record in records] == [0, 1, 0, 1, 0, 0]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b"\x00\xff", b'{"step": 3}'], ids=["text", "bytes", "no newline"])
def test_a_line_torn_by_a_crash_is_left_out_and_dropped_on_reopening(torn, tmp_path):
    path = tmp_path / "h.jsonl"
    whole = b'{"step": 1, "loss": 1.0}\n{"step": 2, "loss": "nan"}\n'
    path.write_bytes(whole + torn)
    assert [record["step"] for record in read_history(path)] == [1, 2]
    history = History(path, last_step=2)
    history.write({"step": 3, "loss": 0.5})
    history.close()
    assert path.read_bytes() == whole + b'{"step": 3, "loss": 0.5}\n'


def test_every_record_is_in_the_file_as_soon_as_it_is_written(tmp_path):
    history = History(tmp_path / "h.jsonl", last_step=0)
    history.write({"step": 1})
    assert [record["step"] for record in read_history(tmp_path / "h.jsonl")] == [1]
    history.close()


def test_a_new_training_keeps_the_history_of_the_old(tmp_path):
    path = tmp_path / "h.jsonl"
    path.write_bytes(b'{"step": 1}\n')
    History(path, last_step=0).close()
    assert (path.read_bytes(), (tmp_path / "h.jsonl.old").read_bytes()) == (b"", b'{"step": 1}\n')


# TensorBoard.

def scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    reader = EventAccumulator(str(folder)).Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


@pytest.mark.skipif(V200, reason="tensorboard is checked with a newer protobuf")
def test_tensorboards_own_reader_finds_scale_skipped_steps_and_norm(tmp_path):
    fake = Fake(kind=TrainStep, clip_norm=1.0)
    fake.step.clip_by_norm.global_norm.set_data(Tensor(2.5, ms.float32))
    with LossScaleMonitor(1, tensorboard=tmp_path / "tb", quiet=True) as monitor:
        for applied, scale in ((0, 512.0), (1, 512.0), (0, 256.0)):
            fake.move(applied, 1 - applied, 1 - applied, scale)
            monitor.step(fake.step, Tensor(0.5, ms.float32))
    assert scalars(tmp_path / "tb") == {
        "loss_scale/scale": [(1, 512.0), (2, 512.0), (3, 256.0)],
        "loss_scale/skipped_steps": [(1, 1.0), (2, 1.0), (3, 2.0)],
        "loss_scale/loss": [(1, 0.5), (2, 0.5), (3, 0.5)],
        "loss_scale/gradient_norm": [(1, 2.5), (2, 2.5), (3, 2.5)]}


@pytest.mark.skipif(V200, reason="tensorboard is checked with a newer protobuf")
def test_a_resumed_training_hides_the_steps_it_repeats_from_tensorboard(tmp_path):
    fake = Fake()
    for start, steps in ((0, 4), (2, 1)):
        fake.step.applied_steps.set_data(Tensor(start, ms.int32))
        with LossScaleMonitor(1, tensorboard=tmp_path / "tb", quiet=True) as monitor:
            for _ in range(steps):
                fake.move(1, 0, 0, 512.0)
                monitor.step(fake.step)
    assert [step for step, _ in scalars(tmp_path / "tb")["loss_scale/scale"]] == [1, 2, 3]


# Diagnosis.

def test_after_k_overflows_in_a_row_it_diagnoses_the_batch_once(mode, capsys):
    train(make_model(), [1] + [INF] * 5, LossScaleMonitor(1, diagnose_after=3))
    out = capsys.readouterr().out
    assert out.count("3 steps in a row overflowed.") == 1
    assert out.count("Diagnosis after step 4") == out.count("Diagnosis") == 1
    assert "not a loss-scale problem; first non-finite: input 1, before the forward pass" in out


def test_without_the_batch_it_says_how_to_ask(capsys):
    fake, monitor = Fake(), LossScaleMonitor(1, diagnose_after=2)
    for number in range(3):
        fake.move(0, 1, number + 1, 1.0)
        monitor.step(fake.step)
    assert capsys.readouterr().out.count("To learn why: print(ms_lossscale.diagnose(step, *batch)).") == 1


def test_clean_steps_are_not_diagnosed(mode, monkeypatch):
    monkeypatch.setattr(callback_file, "diagnose", lambda *inputs: pytest.fail("diagnosed"))
    train(make_model(), [1, INF, 1, INF], LossScaleMonitor(1, diagnose_after=2, quiet=True))


# Wrong use.

@pytest.mark.parametrize("options, kind", [
    ({"interval": 0}, ValueError), ({"interval": 1.5}, TypeError), ({"diagnose_after": 0}, ValueError),
    ({"quiet": 1}, TypeError)], ids=str)
def test_a_wrong_argument_is_refused(options, kind):
    with pytest.raises(kind, match="For 'LossScaleMonitor', "):
        LossScaleMonitor(**options)


def test_a_training_without_loss_scaling_is_refused():
    plain = SimpleNamespace(original_args=lambda: Arguments(train_network=nn.Dense(2, 2), cur_step_num=0))
    with pytest.raises(TypeError, match="Use Model of ms_lossscale with a loss_scale_manager"):
        LossScaleMonitor().on_train_begin(plain)
