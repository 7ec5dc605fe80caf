"""What came of a race: two tables and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from tabulate import tabulate
from torch import Tensor

from .exam import ErrorRates
from .training import Learner

COLOURS = ("#8a8f98", "#d1495b")


@dataclass
class Result:
    """One engine's race: its training, its marks on the held-out words, its words a second of each way to decode."""

    learner: Learner
    errors: ErrorRates
    decoding: dict[str, float]


@dataclass
class Alignment:
    """A word: its letters, the phonemes said, and the part of each letter in each phoneme (U, T)."""

    letters: list[str]
    phonemes: list[str]
    alphas: Tensor


def comparison(results: list[Result]) -> str:
    """A table of the engines side by side."""
    a, b = (result.learner for result in results)
    both = steps_both_made(a, b)
    speeds = {
        "training, words/s": [result.learner.words_a_second for result in results],
        **{f"decoding, {way}, words/s": [result.decoding[way] for result in results] for way in results[0].decoding},
    }
    rows = [
        [f"steps in {a.seconds:,.0f} s and {b.seconds:,.0f} s", *(f"{len(x.losses):,}" for x in (a, b)), ""],
        [f"loss up to step {both:,}, mean of 100", *(f"{x.recent_loss(both):.4f}" for x in (a, b)), ""],
        *([name, *(f"{x:,.0f}" for x in pair), f"{pair[1] / pair[0]:.2f}x"] for name, pair in speeds.items()),
        ["phoneme error at the end", *(f"{result.errors.phonemes:.2%}" for result in results), ""],
        ["word error at the end", *(f"{result.errors.words:.2%}" for result in results), ""],
    ]
    return boxed(rows, ["", a.engine, b.engine, "ratio"])


def agreement(learner: Learner, other: Learner, in_float64: Learner) -> str:
    """A table of how far the losses of `other`, and of `learner` in float64, are from those of `learner`."""
    both, first = steps_both_made(learner, other), len(in_float64.losses)

    def difference(third: Learner, steps: int) -> str:
        largest, step = largest_difference(learner.losses, third.losses[:steps])
        return f"{largest:.0e} at step {step:,}"

    rows = [
        [
            f"in the first {steps:,} steps" if steps < both else f"in all {both:,} steps that both made",
            difference(other, steps),
            difference(in_float64, steps) if steps <= first else "",
        ]
        for steps in sorted({min(100, both), first, both})
    ]
    return boxed(rows, [f"losses: largest difference from {learner.engine}", other.engine, in_float64.engine])


def largest_difference(losses: list[float], others: list[float]) -> tuple[float, int]:
    """The largest relative difference over the steps that both made, and its step, counted from 1."""
    both_made = enumerate(zip(losses, others, strict=False), 1)
    return max((abs(a - b) / abs(a), step) for step, (a, b) in both_made)


def steps_both_made(a: Learner, b: Learner) -> int:
    return min(len(a.losses), len(b.losses))


def boxed(rows: list[list[str]], headers: list[str]) -> str:
    alignment = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers, tablefmt="rounded_outline", colalign=alignment, disable_numparse=True)


def figure(results: list[Result], alignment: Alignment, title: str, path: Path) -> None:
    """A PNG: both losses against time and against steps, the speeds, and what one word's phonemes attend to."""
    style = {
        "font.size": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
    }
    losses = [result.learner.losses for result in results]
    steps = [range(1, len(one) + 1) for one in losses]
    with matplotlib.rc_context(style):
        drawing = Figure(figsize=(17, 4.2), dpi=150, layout="constrained")
        drawing.suptitle(title, x=0.01, ha="left", fontweight="bold")
        by_time, by_step, speeds, attention = drawing.subplots(1, 4, width_ratios=(1, 1, 0.9, 0.9))
        by_time.set(title="The same time", xlabel="training time [s]")
        draw_losses(by_time, [result.learner.clock for result in results], losses)
        by_step.set(title="The same steps, the same losses", xlabel="step")
        by_step.xaxis.set_major_formatter("{x:,.0f}")
        draw_losses(by_step, steps, losses)
        draw_speeds(speeds, results)
        draw_alignment(attention, alignment)
        for axes in (by_time, by_step):
            axes.legend([result.learner.engine for result in results], frameon=False, loc="upper right")
        drawing.savefig(path)


def draw_losses(axes: Axes, xs: list[Sequence[float]], losses: list[list[float]]) -> None:
    """Each curve as means over neighbouring steps; the second is dashed, since it may lie on the first."""
    width = max(1, max(map(len, losses)) // 60)
    for x, y, colour, dashes in zip(xs, losses, COLOURS, ("-", (0, (4, 2))), strict=True):
        means = torch.tensor(y).split(width)
        middles = [min(start + width // 2, len(y) - 1) for start in range(0, len(y), width)]
        axes.plot([x[i] for i in middles], [m.mean() for m in means], color=colour, linestyle=dashes, lw=2)
    axes.set(yscale="log", ylabel="loss [nats per phoneme]")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.25)


def draw_speeds(axes: Axes, results: list[Result]) -> None:
    """Bars relative to the first engine: training and each way to decode need scales of their own."""
    ways = ["training", *results[0].decoding]
    speeds = [[result.learner.words_a_second, *result.decoding.values()] for result in results]
    for engine, of_engine in enumerate(speeds):
        ratios = [speed / first for speed, first in zip(of_engine, speeds[0], strict=True)]
        places = [0.2 - 0.4 * engine - way for way in range(len(ways))]
        bars = axes.barh(places, ratios, 0.36, color=COLOURS[engine])
        labels = [f"{speed:,.0f}/s  {ratio:.2f}x" for speed, ratio in zip(of_engine, ratios, strict=True)]
        axes.bar_label(bars, labels, padding=5)
    axes.set(title="Words a second", xlabel=f"times {results[0].learner.engine}")
    axes.set_yticks([-way for way in range(len(ways))], ways)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.margins(x=0.35)


def draw_alignment(axes: Axes, alignment: Alignment) -> None:
    """A heat map: a row a phoneme, a column a letter."""
    image = axes.imshow(alignment.alphas.numpy(), cmap="viridis", vmin=0, vmax=1, aspect="auto")
    axes.set_title("What it attends to")
    axes.set_xticks(range(len(alignment.letters)), alignment.letters)
    axes.set_yticks(range(len(alignment.phonemes)), alignment.phonemes)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.figure.colorbar(image, ax=axes, shrink=0.8)
