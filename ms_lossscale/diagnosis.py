"""What a diagnosis found, and what follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from ms_lossscale.gradient_figures import GradientFigures, Range

MOST_LINES = 8


@dataclass(frozen=True)
class Run:
    """One forward and backward pass: the scale, the loss, and the figures of every gradient, times the scale."""

    scale: float
    loss: float
    gradients: tuple[GradientFigures, ...]

    @property
    def finite(self) -> bool:
        """Whether no gradient holds NaN or Inf."""
        return all(gradient.finite for gradient in self.gradients)

    @property
    def largest(self) -> float:
        """The largest gradient, scale taken out."""
        return max((gradient.largest for gradient in self.gradients), default=0.0) / self.scale


@dataclass(frozen=True)
class Diagnosis:
    """
    What :func:`ms_lossscale.diagnose` returns; its text says it all.

    Attributes:
        step (int): The steps done before.
        at_scale (Run): The batch at the present scale; `at_scale.gradients` has the figures of each parameter.
        at_one (Run): The batch at scale 1: what a training without loss scaling has.
        loss_finite (bool): Whether the loss was finite at the present scale.
        conclusion (str): What follows.
        first_not_finite (str): Where the first NaN or Inf arises if it does at scale 1; else None.
        advised_scale (float): The scale to start from; None if no scale helps.
        evidence (str): What the advice rests on.
        vanishing (tuple of str): The parameters of which most of the gradient vanishes at the present scale.
        asked (Range): The dtype whose range counts.
        saturates (bool): Whether the device clamps at a dtype's largest number instead of making Inf.
    """

    step: int
    at_scale: Run
    at_one: Run
    loss_finite: bool
    conclusion: str
    first_not_finite: str | None
    advised_scale: float | None
    evidence: str
    vanishing: tuple[str, ...]
    asked: Range
    saturates: bool

    @property
    def suspects(self) -> tuple[GradientFigures, ...]:
        """The gradients with NaN or Inf, or, where the device saturates, with elements at the limit."""
        return suspects_in(self.at_scale, self.saturates)

    def __str__(self) -> str:
        scale = self.at_scale.scale
        lines = [f"Diagnosis after step {self.step}, loss scale {scale:g}",
                 f"  loss: {self.at_scale.loss:g}, {'finite' if self.loss_finite else 'not finite'}",
                 f"  {self.conclusion}"]
        if self.suspects:
            lines.append(f"  gradients that are not finite: {len(self.suspects)} of {len(self.at_scale.gradients)}")
            lines += shortened([f"    {each.name}: {each.nan} NaN, {each.inf} Inf, {each.at_limit} at the limit, of "
                                f"{each.elements}" for each in self.suspects])
        lines.append(f"  zero or below the normal range of {self.asked.name}: at scale 1, at scale {scale:g}")
        pairs = sorted(zip(self.at_one.gradients, self.at_scale.gradients), key=lambda pair: -pair[0].below)
        lines += shortened([f"    {one.name}: {one.below:.1%} (zero {one.zero:.1%}), {now.below:.1%} "
                            f"(zero {now.zero:.1%})" for one, now in pairs])
        return "\n".join([*lines, f"  {self.evidence}"])


def suspects_in(run: Run, saturates: bool) -> tuple[GradientFigures, ...]:
    """Return the gradients of a run that overflowed, or may have."""
    return tuple(each for each in run.gradients if not each.finite or (saturates and each.at_limit))


def shortened(lines: list[str]) -> list[str]:
    """Return the first lines, and how many more there are."""
    more = len(lines) - MOST_LINES
    return lines if more <= 0 else [*lines[:MOST_LINES], f"    and {more} more"]
