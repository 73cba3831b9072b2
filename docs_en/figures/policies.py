"""Draws policies.png: what each policy makes of the same overflows. The scales are the package's own.

python docs_en/figures/policies.py docs_en/figures/policies.png docs_zh/figures/policies.png
"""

import sys

import matplotlib
import numpy as np

from ms_lossscale import DynamicLossScaleManager, FixedLossScaleManager

matplotlib.use("Agg")
from matplotlib import pyplot as plt

# One alone; three in a row; every other step; one on the step at which the scale would grow; a long calm.
OVERFLOWS = (6, 18, 19, 20, 34, 36, 38, 46)
STEPS, WINDOW, START = 80, 8, 2.0**10
POLICIES = {
    "FixedLossScaleManager(2**10)": None,
    f"DynamicLossScaleManager(2**10, 2, {WINDOW})": {},
    "..., growth_factor=4": {"growth_factor": 4},
    "..., hysteresis=2": {"hysteresis": 2},
    "..., hysteresis=2, consecutive_hysteresis=True": {"hysteresis": 2, "consecutive_hysteresis": True},
    "..., min_loss_scale=2**8, max_loss_scale=2**11": {"min_loss_scale": 2**8, "max_loss_scale": 2**11},
}
LINE, OVERFLOW = "#0072B2", "#E69F00"  # told apart by readers who see fewer colours, and in grey


def scales(options):
    """Return the scale that each step uses."""
    fixed = options is None
    manager = FixedLossScaleManager(START) if fixed else DynamicLossScaleManager(START, 2, WINDOW, **options)
    used = []
    for step in range(1, STEPS + 1):
        used.append(manager.get_loss_scale())
        manager.update_loss_scale(step in OVERFLOWS)
    return np.log2(used)


def draw(paths):
    figure, axes = plt.subplots(len(POLICIES), 1, figsize=(8, 10), sharex=True, sharey=True)
    steps = np.arange(1, STEPS + 1)
    for axis, (name, options) in zip(axes, POLICIES.items()):
        for step in OVERFLOWS:
            axis.axvspan(step - 0.5, step + 0.5, color=OVERFLOW, alpha=0.55, linewidth=0)
        for bound in ("min_loss_scale", "max_loss_scale"):
            if options and bound in options:
                axis.axhline(np.log2(options[bound]), color="0.45", linestyle="--", linewidth=1)
        axis.step(steps, scales(options), where="mid", color=LINE, linewidth=2)
        axis.set_title(name, loc="left", family="monospace", fontsize=10)
        axis.set(yticks=range(4, 17, 4), ylim=(2.5, 17), xlim=(0.5, STEPS + 0.5))
        axis.set_yticklabels([f"$2^{{{power}}}$" for power in range(4, 17, 4)])
        axis.grid(axis="y", color="0.85", linewidth=0.8)
        axis.set_axisbelow(True)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[-1].set_xlabel("step        orange: the step overflowed        blue: the scale it used")
    figure.tight_layout()
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(sys.argv[1:])
