"""Draws gradients.png: the gradients of a real network, and what float16 keeps of them.

The network marks where in a scene of four handwritten digits each class of digit is. Run it with:
python docs_en/figures/gradients.py docs_en/figures/gradients.png docs_zh/figures/gradients.png
"""

import sys

import matplotlib
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from sklearn.datasets import load_digits

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SIZE, BATCH, CHANNELS, STEPS, LOG2_SCALE = 32, 32, 8, 10, 12
SMALLEST, SMALLEST_NORMAL = -24, -14


def scenes(rng, digits):
    """Return a batch of scenes and, for each class, a bump where a digit of it is."""
    images, rows = digits.images / 16, np.arange(SIZE)
    x = np.zeros((BATCH, 1, SIZE, SIZE), np.float32)
    y = np.zeros((BATCH, 10, SIZE, SIZE), np.float32)
    for scene in range(BATCH):
        for corner in range(4):
            digit = rng.integers(len(images))
            top, left = (16 * part + rng.integers(9) for part in divmod(corner, 2))
            x[scene, 0, top:top + 8, left:left + 8] = images[digit]
            distance = (rows[:, None] - top - 3.5) ** 2 + (rows - left - 3.5) ** 2
            y[scene, digits.target[digit]] += np.exp(-distance / 2)
    return Tensor(x), Tensor(y)


class Network(nn.Cell):
    """Convolutions with a loss; `probes` are zeros added to the activations, to get the gradients there."""

    def __init__(self):
        super().__init__()
        sizes = [1, *[CHANNELS] * 4]
        self.layers = nn.CellList([nn.SequentialCell(nn.Conv2d(before, after, 3, has_bias=True), nn.ReLU())
                                   for before, after in zip(sizes, sizes[1:])])
        self.head = nn.Conv2d(CHANNELS, 10, 3, has_bias=True)
        self.loss = nn.MSELoss()

    def construct(self, x, y, probes):
        for layer, probe in zip(self.layers, probes):
            x = layer(x) + probe
        return self.loss(self.head(x), y)


def gradients():
    """Return the gradients of each layer's activations after a short training in float32."""
    ms.set_seed(0)
    rng, digits, network = np.random.default_rng(0), load_digits(), Network()
    probes = Tensor(np.zeros((4, BATCH, CHANNELS, SIZE, SIZE), np.float32))
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 2e-3)).set_train()
    for _ in range(STEPS):
        step(*scenes(rng, digits), probes)
    return ops.GradOperation(get_all=True)(network)(*scenes(rng, digits), probes)[2].asnumpy()


def draw(layers, paths):
    figure, axes = plt.subplots(2, 1, figsize=(7, 5), sharex=True, sharey=True)
    for axis, shift in zip(axes, (0, LOG2_SCALE)):
        logs = [np.log2(np.abs(layer[layer != 0])) + shift for layer in layers]
        lost = np.mean(np.concatenate(logs) < SMALLEST - 1)
        print(f"scale 2**{shift}: {100 * lost:.0f}% become 0 in float16; by layer",
              *(f"{100 * np.mean(log < SMALLEST - 1):.0f}%" for log in logs))
        axis.axvspan(-50, SMALLEST - 1, color="tab:red", alpha=0.15)
        axis.axvspan(SMALLEST - 1, SMALLEST_NORMAL, color="tab:orange", alpha=0.15)
        axis.hist(logs, bins=np.arange(-50, 17, 0.5), histtype="step", linewidth=1.5,
                  label=[f"layer {number}" for number in range(1, 5)])
        axis.set(xlim=(-45, 16), ylabel="gradients", yticks=[],
                 title=f"loss scale {'1' if shift == 0 else f'$2^{{{shift}}}$'}: {100 * lost:.0f}% become 0")
    axes[0].legend(loc="upper right", fontsize="small")
    axes[1].set_xlabel(r"$\log_2|$gradient$|$    red: 0 in float16    orange: float16 keeps fewer bits")
    figure.tight_layout()
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    draw(gradients(), sys.argv[1:])
