"""The rule of the loss scale once more, from its description: what host, device and functional paths must do."""

from dataclasses import dataclass

import numpy as np
from numpy import float32


@dataclass
class ScaleOracle:
    """
    A loss scale in float32 that counts clean steps; nothing here is taken from the package.

    Overflow: the scale is multiplied by `shrink`, but not below `floor`; the first `spare` overflows are forgiven.
    `window` clean steps: it is multiplied by `grow`, but not beyond `cap`, and the spare overflows come back. With
    `every_clean_step_restores` they come back at any clean step.
    """

    scale: float
    grow: float = 2.0
    shrink: float = None
    window: int = 2000
    floor: float = 1.0
    cap: float = 2.0**126
    spare: int = 0
    every_clean_step_restores: bool = False

    def __post_init__(self):
        self.scale = float32(self.scale)
        self.grow = float32(self.grow)
        self.shrink = float32(1) / self.grow if self.shrink is None else float32(self.shrink)
        self.steps = self.clean = self.bad = self.forgiven = 0

    def step(self, overflow):
        """Count a step; return the scale after it."""
        self.steps += 1
        if overflow:
            self.clean, self.bad = 0, self.bad + 1
            if self.forgiven < self.spare:
                self.forgiven += 1
            else:
                self.scale = max(self.scale * self.shrink, float32(self.floor))
            return self.scale
        self.clean, self.bad = self.clean + 1, 0
        if self.every_clean_step_restores:
            self.forgiven = 0
        if self.clean == self.window:
            self.clean = self.forgiven = 0
            with np.errstate(over="ignore"):
                self.scale = min(self.scale * self.grow, float32(self.cap))
        return self.scale

    def numbers(self):
        """The state under the names of MindSpore's manager."""
        return {"loss_scale": self.scale, "cur_iter": self.steps + 1, "last_overflow_iter": self.steps - self.clean,
                "bad_step": self.bad, "tolerated_overflows": self.forgiven}

    def run(self, trace):
        """Return the scale after every step of `trace`."""
        return np.array([self.step(overflow) for overflow in trace], np.float32)


# Arguments as the package takes them, for an initial scale, and as the oracle does.
POLICIES = {
    "default": (2**24, (2, 20), {}),
    "window of one": (2**4, (2, 1), {}),
    "thousandth": (4, (3000, 7), {}),
    "factor 3": (3.0**7, (3, 5), {}),
    "factor 1.1": (1000.7, (1.1, 3), {}),
    "narrow": (3.3, (1.7, 2), {"min_loss_scale": 0.7, "max_loss_scale": 5.3}),
    "at the caps": (2.0**125, (2, 2), {"min_loss_scale": 2.0**-126}),
    "growth and backoff": (2**10, (2, 4), {"growth_factor": 1.5, "backoff_factor": 0.3}),
    "fast growth": (2**10, (2, 4), {"growth_factor": 1e30, "backoff_factor": 1e-30, "min_loss_scale": 1e-30}),
    "hysteresis": (2**12, (2, 6), {"hysteresis": 2}),
    "hysteresis in a row": (2**12, (1.9, 6), {"hysteresis": 2, "consecutive_hysteresis": True}),
    "hysteresis of one, growth 3": (2**12, (2, 3), {"hysteresis": 1, "growth_factor": 3, "max_loss_scale": 1e6}),
}


def oracle_of(policy):
    """Return the oracle for an entry of `POLICIES`."""
    scale, (factor, window), options = policy
    names = {"growth_factor": "grow", "backoff_factor": "shrink", "min_loss_scale": "floor", "max_loss_scale": "cap",
             "hysteresis": "spare", "consecutive_hysteresis": "every_clean_step_restores"}
    translated = {names[name]: value for name, value in options.items()}
    translated.setdefault("shrink", float32(1) / float32(factor))
    return ScaleOracle(scale, **{"grow": factor, "window": window, **translated})


def random_trace(steps, seed):
    """Return `steps` flags: calm and stormy stretches, so that a scale meets both bounds and everything between."""
    random = np.random.default_rng(seed)
    flags = []
    while len(flags) < steps:
        rate = random.choice([0.0, 0.02, 0.2, 0.5, 0.98])
        flags += list(random.random(random.integers(1, 400)) < rate)
    return [bool(flag) for flag in flags[:steps]]
