"""Pairs: baseline and ours in turn in one process, so that a machine that slows down slows both."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SAMPLE = 2e-3  # seconds a sample lasts at least
MOST_PAIRS = 41
FEWEST_PAIRS = 5
NOISY = 1.2  # upper over lower quartile of a ratio

synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None


@dataclass(frozen=True)
class Pairs:
    """Seconds a call, medians; the ratio is the median of the ratios by pair, with its quartiles."""

    baseline: float
    ours: float
    ratio: float
    ratio_low: float
    ratio_high: float
    pairs: int


def sample(run: Callable, repeats: int) -> float:
    synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    synchronize()
    return (time.perf_counter() - begin) / repeats


def pairs(baseline: Callable, ours: Callable, seconds: float, rest: float = 0.0) -> Pairs:
    """Times the two in turn for about `seconds`, with a rest before each: two thread pools that spin for work after
    their own would take each other's cores."""
    repeats = [max(1, round(SAMPLE / min(sample(run, 1) for _ in range(3)))) for run in (baseline, ours)]
    times = []
    end = time.perf_counter() + seconds
    while len(times) < FEWEST_PAIRS or (time.perf_counter() < end and len(times) < MOST_PAIRS):
        pair = []
        for run, count in zip((baseline, ours), repeats, strict=True):
            time.sleep(rest)
            run()
            pair.append(sample(run, count))
        times.append(tuple(pair))
    return summary(times)


def summary(times: list[tuple[float, float]]) -> Pairs:
    ratios = [a / b for a, b in times]
    low, middle, high = statistics.quantiles(ratios, n=4)
    theirs, ours = (statistics.median(t) for t in zip(*times, strict=True))
    return Pairs(theirs, ours, middle, low, high, len(times))


def error(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    return [(r.double() - e).abs().max().item() for r, e in zip(results, exact, strict=True)]


def relative(results: list[Tensor], exact: list[Tensor]) -> list[float]:
    """The errors at the size of each result, or at 1 where that is less."""
    scales = [max(1.0, e.abs().max().item()) for e in exact]
    return [difference / scale for difference, scale in zip(error(results, exact), scales, strict=True)]


def wrong(ours: list[Tensor], theirs: list[Tensor], exact: list[Tensor]) -> str | None:
    """What is wrong with our results: an error over twice torch.nn's (three times for gradients, which come after the
    output), beyond a floor of eight roundings at the size of the result. None if nothing is."""
    for k, (mine, torchs) in enumerate(zip(error(ours, exact), error(theirs, exact), strict=True)):
        floor = 8 * torch.finfo(ours[k].dtype).eps * max(1.0, exact[k].abs().max().item())
        if not mine <= (3 if k else 2) * torchs + floor:
            return f"result {k}: error {mine:.1e}, torch.nn's {torchs:.1e}"
    return None
