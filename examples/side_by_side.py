"""Trains models of one program side by side, from the same weights, batches and coins; one table at the end."""

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from tabulate import tabulate
from tqdm import trange


@dataclass
class Racer:
    """A model in training, its losses and the seconds its steps took."""

    name: str
    model: torch.nn.Module
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return sorted(self.seconds)[len(self.seconds) // 2]


def race(
    models: dict[str, torch.nn.Module],
    loss_of: Callable[[torch.nn.Module, tuple], torch.Tensor],
    batches: Iterator[tuple],
    steps: int,
    *,
    seed: int,
    learning_rate: float,
    clip: float | None = 1.0,
) -> list[Racer]:
    """The models take turns: step by step the same batch, and the same state of torch's generator before it."""
    racers = [Racer(name, model) for name, model in models.items()]
    optimizers = [torch.optim.Adam(racer.model.parameters(), learning_rate, fused=True) for racer in racers]
    for step in trange(steps, unit="step", disable=None):
        batch = next(batches)
        for racer, optimizer in zip(racers, optimizers, strict=True):
            torch.manual_seed(seed + step)
            start = time.perf_counter()
            loss = loss_of(racer.model, batch)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(racer.model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            racer.seconds.append(time.perf_counter() - start)
            racer.losses.append(loss.item())
    return racers


def table(racers: list[Racer]) -> str:
    """Losses and time of a step, and how far each is from the first."""
    first = racers[0]
    rows = [
        {
            "": racer.name,
            "first loss": racer.losses[0],
            "last loss": racer.losses[-1],
            "largest difference": max(abs(a - b) for a, b in zip(racer.losses, first.losses, strict=True)),
            "ms a step": 1e3 * racer.median,
            "times as fast": first.median / racer.median,
        }
        for racer in racers
    ]
    return tabulate(rows, headers="keys", floatfmt=("", ".4f", ".4f", ".1e", ".2f", ".2f"), tablefmt="github")


def parser(text: str, steps: int) -> argparse.ArgumentParser:
    """The options every example has."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=at_least_one, default=steps, help="of training on each engine (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and coins (%(default)s)")
    threads = torch.get_num_threads()
    parser.add_argument("--threads", type=at_least_one, default=threads, help="(%(default)s)")
    return parser


def at_least_one(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)
