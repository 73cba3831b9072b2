"""``python -m ms_lossscale demo``: its table, picture and options, and that scaling wins back what float16 loses."""

import os
import re
import subprocess
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from ms_lossscale.commands import demo

RUNS = ("float32", "float16", "scaled")


@pytest.fixture
def short(monkeypatch):
    """Make an epoch six steps, and batches and held-out scenes small."""
    monkeypatch.setattr(demo, "STEPS_PER_EPOCH", 6)
    monkeypatch.setattr(demo, "BATCH", 4)
    monkeypatch.setattr(demo, "HELD_OUT_SCENES", 8)
    before = ms.get_context("mode")
    yield
    ms.set_context(mode=before)


def figures(text):
    """Return the table that was printed, a dict of the three columns a row."""
    rows = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    return {row[0]: dict(zip(RUNS, row[1:])) for row in rows if len(row) == 4}


@pytest.mark.parametrize("mode", ["graph", pytest.param("pynative", marks=pytest.mark.slow)])
def test_it_trains_three_times_and_shows_them_side_by_side(short, mode, capsys, tmp_path):
    assert demo.main(["--epochs", "2", "--mode", mode, "--output", str(tmp_path / "new")]) == 0
    text = capsys.readouterr().out
    shown = figures(text)
    assert [shown["steps applied"][run] for run in ("float32", "float16")] == ["12", "12"]
    skipped = int(shown["steps skipped"]["scaled"])
    assert skipped >= 1
    assert shown["steps applied"]["scaled"] == str(12 - skipped)
    assert shown["scale at start"] == {"float32": "-", "float16": "-", "scaled": "2**24"}
    assert shown["scale, lowest"]["scaled"] == shown["scale at end"]["scaled"] == f"2**{24 - skipped}"
    assert all(0 < float(value) < 1 for value in shown["train loss, last epoch"].values())
    assert all(0 < float(value) < 10 for value in shown["held-out count error"].values())
    picture = tmp_path / "new" / "demo.png"
    assert picture.read_bytes().startswith(b"\x89PNG") and f"Picture: {picture}" in text


@pytest.mark.slow
def test_the_fixed_manager_keeps_the_scale_it_is_given(short, capsys, tmp_path):
    assert demo.main(["--epochs", "1", "--manager", "fixed", "--scale", "4096", "--output", str(tmp_path)]) == 0
    shown = figures(capsys.readouterr().out)
    assert {shown[row]["scaled"] for row in shown if row.startswith("scale")} == {"2**12"}
    assert shown["steps applied"]["scaled"] == "6"


def test_the_seed_decides_scenes_and_weights():
    first, again, other = (demo.make_data(seed)[1] for seed in (3, 3, 4))
    assert all(np.array_equal(one, two) for one, two in zip(first, again))
    assert not np.array_equal(first[0], other[0])


def test_a_density_map_sums_to_the_number_of_digits():
    _, maps = demo.make_scenes(np.ones((3, 8, 8), np.float32), 50, np.random.default_rng(0))
    counts = maps.sum((1, 2, 3))
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-3)
    assert set(np.rint(counts)) <= set(range(1, demo.MOST_DIGITS + 1)) and len(set(np.rint(counts))) > 3


@pytest.mark.parametrize("arguments, said", [
    (["--epochs", "0"], "--epochs: must be 1 or more, but got 0"), (["--epochs", "two"], "--epochs"),
    (["--seed", "-1"], "--seed: must be from 0"), (["--manager", "none"], "--manager"), (["--mode", "eager"], "--mode"),
    (["--scale", "nan"], "--scale: For 'DynamicLossScaleManager'"), (["--scale", "0.5"], "--scale"),
    (["--manager", "fixed", "--scale", "-1"], "--scale: For 'FixedLossScaleManager'"),
    (["--output", "taken"], "--output")], ids=" ".join)
def test_a_wrong_option_is_refused_by_name(arguments, said, capsys, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(SystemExit) as stop:
        demo.main(arguments)
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch, capsys, tmp_path):
    found = demo.importlib.util.find_spec
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "tqdm" else found(name))
    assert demo.main(["--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == 'The demo needs tqdm: pip install "ms_lossscale[demo]"\n'


def demonstrated(folder):
    """Return what the demo prints at its full length; DEMO_OUTPUT names a file with it if it was just run."""
    if "DEMO_OUTPUT" in os.environ:
        return Path(os.environ["DEMO_OUTPUT"]).read_text(encoding="utf-8")
    return subprocess.run([sys.executable, "-m", "ms_lossscale", "demo", "--output", str(folder)],
                          capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_float16_alone_ends_with_a_worse_loss_and_scaling_wins_it_back(tmp_path):
    losses = {run: float(value) for run, value in figures(demonstrated(tmp_path))["train loss, last epoch"].items()}
    assert losses["float16"] > 1.25 * max(losses["float32"], losses["scaled"])
    assert losses["scaled"] < 1.25 * losses["float32"]
