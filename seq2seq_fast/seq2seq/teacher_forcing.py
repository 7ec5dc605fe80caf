"""Teacher forcing: its schedules, and the coins of a batch (scheduled sampling, Bengio et al., arXiv 1506.03099)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Schedule = Callable[[int], float]


def constant(ratio: float) -> Schedule:
    """`ratio` at every step."""
    _check_ratio("ratio", ratio)
    return lambda step: ratio


def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` at step 0 to `end` at step `steps`, in a straight line, and `end` from then on."""
    _check_ratio("start", start)
    _check_ratio("end", end)
    if steps < 1:
        raise ValueError(f"steps: expected 1 or more, got {steps}")
    return lambda step: start + (end - start) * min(step / steps, 1.0)


def exponential(k: float) -> Schedule:
    """k ** step, with 0 < k < 1."""
    if not 0 < k < 1:
        raise ValueError(f"k: expected more than 0 and less than 1, got {k}")
    return lambda step: k**step


def inverse_sigmoid(k: float) -> Schedule:
    """k / (k + exp(step / k)), with k >= 1: near 1 for about k ln k steps, then falling to 0."""
    if not k >= 1:
        raise ValueError(f"k: expected 1 or more, got {k}")
    # as a sigmoid of the logarithms, which does not overflow
    return lambda step: 1 / (1 + math.exp(min(step / k - math.log(k), 700.0)))


def ratio_at(teacher_forcing: float | Schedule, step: int) -> float:
    """The ratio of a step.

    Raises:
        ValueError: it is out of [0, 1].
    """
    ratio = teacher_forcing(step) if callable(teacher_forcing) else teacher_forcing
    _check_ratio("teacher_forcing", ratio, f" at step {step}" if callable(teacher_forcing) else "")
    return ratio


def _check_ratio(name: str, ratio: float, when: str = "") -> None:
    if not 0 <= ratio <= 1:
        raise ValueError(f"{name}: expected a ratio from 0 to 1, got {ratio}{when}")


def draws(ratio: float, steps: int, shape: tuple[int, ...], layers: int, dropout: float, like: Tensor):
    """What a loop over the steps draws from torch's generator, drawn ahead in its order.

    A loop's step draws the masks between its layers, each (B, H), and then a coin, `torch.rand(()) < ratio`: whether
    the next input is the target. With a ratio of 0 or 1 there are no coins to flip.

    Returns:
        (T) bool on the CPU, whether the input after each step is the target; and for each gap between two layers the
        masks (T, B, H), or None without dropout.
    """
    if layers == 1 or not dropout:
        # the numbers of so many calls, in one
        return _forced(ratio, steps), None
    forced, masks = [], [[] for _ in range(layers - 1)]
    for _ in range(steps):
        for of_layer in masks:
            of_layer.append(torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - dropout))
        forced.append(_forced(ratio, 1))
    kept = 1 - dropout
    masks = [torch.stack(of_layer) for of_layer in masks]
    return torch.cat(forced), [of_layer.div_(kept) if kept else of_layer for of_layer in masks]


def _forced(ratio: float, steps: int) -> Tensor:
    if 0 < ratio < 1:
        return torch.rand(steps) < ratio
    return torch.full((steps,), ratio == 1)
