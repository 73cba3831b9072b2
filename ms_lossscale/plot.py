"""plot_history: a picture of the loss, the loss scale and the skipped steps of one training or several."""

from __future__ import annotations

import os
from os import PathLike

import numpy as np

from ms_lossscale.history import read_history

# Of Okabe and Ito: colour-blind eyes tell them apart. Dashes help in black and white.
COLOURS = ("#0072B2", "#D55E00", "#000000", "#CC79A7", "#009E73", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")
MOST_POINTS, MOST_CROSSES = 800, 30


def plot_history(*paths, output="history.png"):
    """
    Draw what :class:`LossScaleMonitor` wrote: the loss, the scale on a logarithmic axis, and the skipped steps.

    A long history is drawn in 800 pieces: the mean and the range of the loss, the range of the scale, and a mark for
    each piece with a skipped step. Skipped steps are crosses on the scale, too, if there are at most 30 of them.
    It needs ``ms_lossscale[plot]``.

    Args:
        paths (str): The history files; one colour and one kind of line for each.

    Keyword Args:
        output (str): The picture to write; its suffix says the format. Default: ``"history.png"`` .

    Returns:
        str, `output`.

    Raises:
        ValueError: If there is no file, or one that holds no record.

    Supported Platforms:
        ``Ascend`` ``GPU`` ``CPU``

    Examples:
        >>> import json
        >>> from ms_lossscale import plot_history
        >>> with open("history.jsonl", "w") as file:
        ...     for step, scale in enumerate((512.0, 256.0, 256.0), 1):
        ...         skipped = int(step < 3)
        ...         print(json.dumps({"step": step, "loss": 0.5, "scale": scale, "applied": 1 - skipped,
        ...                           "skipped": skipped}), file=file)
        >>> print(plot_history("history.jsonl", output="history.png"))
        history.png
    """
    if not paths:
        raise ValueError("For 'plot_history', 'paths' must be one history file or more, but got none.")
    histories = {name: columns(path) for name, path in zip(_names(paths), paths)}
    figure = _draw(histories)
    figure.savefig(output, dpi=150)
    return os.fspath(output)


def columns(path: str | PathLike) -> dict[str, np.ndarray]:
    """Return the records of a history as one array a field; a step that is there twice counts once, the last."""
    records = {record["step"]: record for record in read_history(path)}
    if not records:
        raise ValueError(f"For 'plot_history', 'paths' must be histories of a LossScaleMonitor, but {path} holds no "
                         "record.")
    rows = [records[step] for step in sorted(records)]
    return {name: np.array([np.nan if row.get(name) is None else row[name] for row in rows], float)
            for name in ("step", "loss", "scale", "applied", "skipped")}


def pieces(length: int, most: int) -> list[slice]:
    """Return at most `most` slices of nearly equal length that cover `length` records."""
    edges = np.unique(np.linspace(0, length, min(length, most) + 1).astype(int))
    return [slice(start, end) for start, end in zip(edges[:-1], edges[1:])]


def thinned(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return (steps, mean, lowest, highest) of the finite values in each piece; NaN where there is none."""
    places, means, lows, highs = [], [], [], []
    for piece in pieces(len(steps), MOST_POINTS):
        finite = values[piece][np.isfinite(values[piece])]
        places.append(steps[piece][-1])
        means.append(finite.mean() if finite.size else np.nan)
        lows.append(finite.min(initial=np.inf) if finite.size else np.nan)
        highs.append(finite.max(initial=-np.inf) if finite.size else np.nan)
    return tuple(np.array(column) for column in (places, means, lows, highs))


def skipped_so_far(history: dict) -> tuple[np.ndarray, ...]:
    """Return (step, steps skipped up to it, whether any was skipped in this piece) at the end of each piece."""
    ends = np.array([piece.stop - 1 for piece in pieces(len(history["step"]), MOST_POINTS)])
    totals = np.cumsum(history["skipped"])[ends]
    return history["step"][ends], totals, np.diff(totals, prepend=0) > 0


def _draw(histories):
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("A picture needs matplotlib: pip install 'ms_lossscale[plot]'",
                                  name="matplotlib") from error
    figure = Figure(figsize=(9, 8), layout="constrained")
    above, middle, below = figure.subplots(3, sharex=True, height_ratios=(5, 4, 2))
    crosses = sum((history["skipped"] > 0).sum() for history in histories.values()) <= MOST_CROSSES
    for number, (name, history) in enumerate(histories.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        _draw_loss(above, history, style, name)
        _draw_scale(middle, history, style, crosses)
        _draw_skipped(below, history, style)
    losses = np.concatenate([history["loss"] for history in histories.values()])
    losses = losses[np.isfinite(losses)]
    if losses.size and losses.min() > 0 and losses.max() > 20 * losses.min():
        above.set_yscale("log")
    above.set_ylabel("loss")
    middle.set_yscale("log", base=2)
    middle.set_ylabel("loss scale")
    below.set(xlabel="step", ylabel="steps skipped so far")
    above.legend(frameon=False, loc="upper right")
    for axes in (above, middle, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.02)
    below.set_ylim(bottom=0)
    below.yaxis.get_major_locator().set_params(integer=True)
    below.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _draw_loss(axes, history, style, name):
    steps, means, lows, highs = thinned(history["step"], history["loss"])
    if len(steps) < len(history["step"]):
        axes.fill_between(steps, lows, highs, color=style["color"], alpha=0.2, linewidth=0)
    share = 100 * history["skipped"].sum() / max((history["applied"] + history["skipped"]).sum(), 1)
    marker = {"marker": "o", "markersize": 4} if len(steps) <= 30 else {}
    axes.plot(steps, means, **style, **marker, label=f"{name}: {share:.3g} % of steps skipped")


def _draw_scale(axes, history, style, crosses):
    steps, _, lows, highs = thinned(history["step"], history["scale"])
    axes.fill_between(steps, lows, highs, step="post", color=style["color"], alpha=0.35, linewidth=0)
    axes.step(steps, highs, where="post", **style)
    skipped = history["skipped"] > 0
    if crosses and skipped.any():
        axes.plot(history["step"][skipped], history["scale"][skipped], "x", color=style["color"], markersize=7,
                  markeredgewidth=2, label="skipped")
        axes.legend(*[each[:1] for each in axes.get_legend_handles_labels()], frameon=False, loc="upper right")


def _draw_skipped(axes, history, style):
    steps, totals, marked = skipped_so_far(history)
    axes.step(steps, totals, where="post", **style)
    axes.plot(steps[marked], totals[marked], "|", color=style["color"], markersize=9, markeredgewidth=1.5)


def _names(paths):
    """Return short names that tell the paths apart."""
    texts = [os.fspath(path) for path in paths]
    short = [os.path.basename(text) for text in texts]
    names = short if len(set(short)) == len(short) else texts
    return names if len(set(names)) == len(names) else [f"{name} ({place})" for place, name in enumerate(names, 1)]
