"""``python -m ms_lossscale demo``: count digits in float32, in float16, and in float16 with loss scaling."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import sys
import warnings
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Callback

from ms_lossscale import DynamicLossScaleManager, FixedLossScaleManager, Model, NoLossScaleWarning

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}
EXTRAS = ("matplotlib", "sklearn", "tqdm")
SIDE, DIGIT, GAP, SPREAD, MOST_DIGITS = 32, 8, 6, 3.0, 6  # the first four in pixels
BATCH, STEPS_PER_EPOCH, HELD_OUT_SCENES = 32, 80, 256
LEARNING_RATE = 3e-3
SCALE_WINDOW = 100  # MindSpore's 2000 clean steps are longer than this whole training
COLOURS = ("#000000", "#D55E00", "#0072B2")  # of Okabe and Ito: colour-blind eyes tell them apart


class Counter(nn.Cell):
    """Five 3x3 convolutions that turn a scene into a density map, whose sum is the number of digits."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, channels, 3, has_bias=True), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(channels, channels, 3, has_bias=True), nn.ReLU()]
        self.layers = nn.SequentialCell(*layers, nn.Conv2d(channels, 1, 3, has_bias=True))

    def construct(self, scenes):
        return self.layers(scenes)


class History(Callback):
    """Keeps each step's loss and whether it was skipped, and the scale before the first step and after each."""

    def __init__(self, bar) -> None:
        super().__init__()
        self.losses, self.skipped, self.scales = [], [], []
        self.count_error = math.nan
        self._bar = bar

    def on_train_begin(self, run_context) -> None:
        step = run_context.original_args().train_network
        if hasattr(step, "scale_sense"):
            self.scales.append(step.scale_sense.asnumpy().item())

    def on_train_step_end(self, run_context) -> None:
        outputs = run_context.original_args().net_outputs
        loss, overflow, scale = outputs if isinstance(outputs, tuple) else (outputs, None, None)
        self.losses.append(loss.asnumpy().item())
        self.skipped.append(overflow is not None and bool(overflow.asnumpy()))
        if scale is not None:
            self.scales.append(scale.asnumpy().item())
        self._bar.set_postfix(loss=f"{self.losses[-1]:.1e}", skipped=sum(self.skipped), refresh=False)
        self._bar.update()


def main(argv: list[str] | None = None) -> int:
    """Run the three trainings, print the table and write the picture; return 0, or 1 if a package is missing."""
    missing = [name for name in EXTRAS if importlib.util.find_spec(name) is None]
    options = _options(argv)
    if missing:
        print(f'The demo needs {" and ".join(missing)}: pip install "ms_lossscale[demo]"', file=sys.stderr)
        return 1
    # On a CPU with AVX-512 the oneDNN inside MindSpore 2.10 takes its reference convolution, 50 times slower.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")
    ms.set_context(mode=MODES[options.mode])
    training, held_out = make_data(options.seed)
    print(f"Counting handwritten digits by density maps: {options.epochs * STEPS_PER_EPOCH} steps, "
          f"seed {options.seed}, {options.mode} mode", flush=True)
    runs = {}
    for name, level, manager in (("float32", "O0", None), ("float16", "O3", None),
                                 (f"float16, {options.manager} scale", "O3", options.loss_scale_manager)):
        runs[name] = train(name, level, manager, training, held_out, options)
    picture = options.output / "demo.png"
    draw(runs, picture)
    print(f"\n{table(runs)}\n\nPicture: {picture}")
    return 0


def make_data(seed: int) -> tuple[tuple, tuple]:
    """Return training and held-out (scenes, maps); the held-out scenes are made of digits never trained on."""
    from sklearn.datasets import load_digits

    rng = np.random.default_rng(seed)
    digits = rng.permutation(load_digits().images.astype(np.float32) / 16)
    fifth = len(digits) // 5
    return (make_scenes(digits[fifth:], BATCH * STEPS_PER_EPOCH, rng),
            make_scenes(digits[:fifth], HELD_OUT_SCENES, rng))


def make_scenes(digits: np.ndarray, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return scenes of one to six digits, and their density maps: for each digit a Gaussian that sums to 1."""
    scenes, maps = np.zeros((2, count, 1, SIDE, SIDE), np.float32)
    for scene, density in zip(scenes[:, 0], maps[:, 0]):
        for top, left in _places(rng):
            patch = scene[top:top + DIGIT, left:left + DIGIT]
            np.maximum(patch, digits[rng.integers(len(digits))], out=patch)
            density += np.outer(_bell(top), _bell(left))
    return scenes, maps


def _places(rng):
    """Return where the digits start: they may touch, and overlap by up to two pixels."""
    places = []
    for _ in range(rng.integers(1, MOST_DIGITS + 1)):
        place = rng.integers(SIDE - DIGIT + 1, size=2)
        while any(np.abs(place - other).max() < GAP for other in places):
            place = rng.integers(SIDE - DIGIT + 1, size=2)
        places.append(place)
    return places


def _bell(start):
    distance = np.arange(SIDE) - (start + (DIGIT - 1) / 2)
    bell = np.exp(-(distance / SPREAD) ** 2 / 2)
    return bell / bell.sum()


def train(name: str, level: str, manager, training: tuple, held_out: tuple, options) -> History:
    """Train one network from the same weights on the same batches as the others; return its history."""
    from tqdm import tqdm

    ms.set_seed(options.seed)
    network = Counter()
    steps = options.epochs * STEPS_PER_EPOCH
    rates = nn.cosine_decay_lr(0.0, LEARNING_RATE, steps, STEPS_PER_EPOCH, options.epochs)
    optimizer = nn.Adam(network.trainable_params(), rates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoLossScaleWarning)  # one run goes without, to show what is lost
        model = Model(network, nn.MSELoss(), optimizer, amp_level=level, loss_scale_manager=manager)
    batches = NumpySlicesDataset(training, ["scenes", "maps"], shuffle=False).batch(BATCH)
    with tqdm(total=steps, desc=f"{name:<23}", unit="step") as bar:
        history = History(bar)
        model.train(options.epochs, batches, callbacks=history, dataset_sink_mode=False)
    history.count_error = count_error(model, *held_out)
    return history


def count_error(model: Model, scenes: np.ndarray, maps: np.ndarray) -> float:
    """Return by how many digits the count in a scene is off, on average."""
    predicted = [model.predict(Tensor(scenes[start:start + BATCH])).asnumpy() for start in range(0, len(scenes), BATCH)]
    counts = np.concatenate(predicted).sum((1, 2, 3), dtype=np.float64)
    return float(np.abs(counts - maps.sum((1, 2, 3), dtype=np.float64)).mean())


def table(runs: dict[str, History]) -> str:
    """Return the runs side by side, a line a figure."""
    figures = {
        "steps applied": lambda run: str(run.skipped.count(False)),
        "steps skipped": lambda run: str(run.skipped.count(True)),
        "scale at start": lambda run: _scale(run.scales[0]) if run.scales else "-",
        "scale, lowest": lambda run: _scale(min(run.scales)) if run.scales else "-",
        "scale, highest": lambda run: _scale(max(run.scales)) if run.scales else "-",
        "scale at end": lambda run: _scale(run.scales[-1]) if run.scales else "-",
        "train loss, last epoch": lambda run: f"{np.mean(run.losses[-STEPS_PER_EPOCH:]):.2e}",
        "held-out count error": lambda run: f"{run.count_error:.3f}",
    }
    rows = [("", list(runs))] + [(label, [show(run) for run in runs.values()]) for label, show in figures.items()]
    widths = [max(len(row[1][column]) for row in rows) + 3 for column in range(len(runs))]
    return "\n".join(f"{label:<23}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths))
                     for label, cells in rows)


def _scale(scale):
    mantissa, exponent = math.frexp(scale)
    return f"2**{exponent - 1}" if mantissa == 0.5 else f"{scale:g}"


def draw(runs: dict[str, History], path: Path) -> None:
    """Write the picture: loss, loss scale and skipped steps over time."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, middle, below) = plt.subplots(3, sharex=True, figsize=(8, 7.5), height_ratios=(5, 3, 2),
                                                  layout="constrained")
    for colour, (name, run) in zip(COLOURS, runs.items()):
        steps = np.arange(1, len(run.losses) + 1)
        above.plot(steps, run.losses, color=colour, alpha=0.2, linewidth=0.8)
        above.plot(steps, _smooth(run.losses), color=colour, label=f"{name}: count off by {run.count_error:.2f}")
        if run.scales:
            middle.step(steps, run.scales[:-1], color=colour, where="mid")
        below.plot(steps, np.cumsum(run.skipped), color=colour)
    above.set(yscale="log", ylabel="training loss", title="Counting digits by density maps")
    above.legend(frameon=False)
    middle.set_yscale("log", base=2)
    middle.set_ylabel("loss scale")
    below.set(xlabel="step", ylabel="steps skipped so far")
    for axes in (above, middle, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _smooth(losses, window=20):
    """Return at each step the mean of the last `window` losses that are there."""
    sums = np.cumsum([0.0, *losses])
    first = np.maximum(np.arange(len(losses)) + 1 - window, 0)
    return (sums[1:] - sums[first]) / (np.arange(len(losses)) + 1 - first)


def _options(argv):
    parser = argparse.ArgumentParser(
        prog="python -m ms_lossscale demo",
        description="Train a network that counts handwritten digits in float32, in float16, and in float16 with loss "
                    "scaling; print the three side by side and write a picture.")
    parser.add_argument("--epochs", type=int, default=5, help=f"epochs of {STEPS_PER_EPOCH} steps (default: 5)")
    parser.add_argument("--manager", choices=("dynamic", "fixed"), default="dynamic", help="default: dynamic")
    parser.add_argument("--scale", type=float, help="the loss scale to start from; default: the manager's own")
    parser.add_argument("--mode", choices=MODES, default="graph", help="MindSpore's mode (default: graph)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and scenes (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("."), help="folder for the picture (default: this one)")
    options = parser.parse_args(argv)
    if options.epochs < 1:
        parser.error(f"argument --epochs: must be 1 or more, but got {options.epochs}")
    if not 0 <= options.seed < 2**32:
        parser.error(f"argument --seed: must be from 0 to 2**32 - 1, but got {options.seed}")
    try:
        options.loss_scale_manager = _manager(options.manager, options.scale)
        options.output.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        name = "--scale" if isinstance(error, ValueError) else "--output"
        parser.error(f"argument {name}: {error}")
    return options


def _manager(kind, scale):
    scale = () if scale is None else (scale,)
    if kind == "fixed":
        return FixedLossScaleManager(*scale)
    return DynamicLossScaleManager(*scale, scale_window=SCALE_WINDOW)
