"""Training: one engine step by step on a clock of its own, and two engines in turn."""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import torch
from tqdm import tqdm

from .model import Pronouncer
from .words import Batch

BLOCK_SECONDS = 2.0
WARM_UP_STEPS = 3


class Learner:
    """A model in training, what each of its steps cost and how long it took."""

    def __init__(self, engine: str, model: Pronouncer, batches: Iterator[Batch], learning_rate: float):
        self.engine = engine
        self.model = model
        self.batches = batches
        self.optimizer = torch.optim.Adam(model.parameters(), learning_rate, fused=True)
        self.losses: list[float] = []
        self.clock: list[float] = []
        self.words = 0

    @property
    def seconds(self) -> float:
        """Spent in steps so far."""
        return self.clock[-1] if self.clock else 0.0

    @property
    def words_a_second(self) -> float:
        return self.words / self.seconds

    def recent_loss(self, until: int | None = None) -> float:
        """The mean of the last 100 losses, or of the 100 up to a step."""
        recent = self.losses[:until][-100:]
        return sum(recent) / len(recent)

    def warm_up(self, batch: Batch) -> None:
        """Steps that change nothing: first calls allocate and decide, and belong in no comparison."""
        for _ in range(WARM_UP_STEPS):
            self.model.loss(batch).backward()
            self.optimizer.zero_grad()

    def step(self) -> None:
        start = time.perf_counter()
        batch = next(self.batches)
        loss = self.model.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.clock.append(self.seconds + time.perf_counter() - start)
        self.words += len(batch)


def race(learners: list[Learner], *, seconds: float | None = None, steps: int | None = None) -> None:
    """Trains each for `seconds` on its own clock, or for `steps`, in short blocks in turn.

    So whatever else slows the machine down slows both. Ctrl-C ends the race where it stands.
    """
    total, unit = (steps, "steps") if steps else (seconds, "s")

    def done(learner: Learner) -> float:
        return len(learner.losses) if steps else min(learner.seconds, seconds)

    with ExitStack() as stack:
        bars = [stack.enter_context(progress_bar(learner.engine, total, unit)) for learner in learners]
        try:
            while any(done(learner) < total for learner in learners):
                for learner, bar in zip(learners, bars, strict=True):
                    block_end = learner.seconds + BLOCK_SECONDS
                    while done(learner) < total and learner.seconds < block_end:
                        learner.step()
                        show(learner, bar, done(learner))
        except KeyboardInterrupt:
            pass


def progress_bar(name: str, total: float, unit: str) -> tqdm:
    """Where the output is not a terminal there is none."""
    bar_format = "{desc:<17}{bar:20} {n:6.0f}/{total:.0f} " + unit + "{postfix}"
    return tqdm(desc=name, total=total, bar_format=bar_format, disable=None)


def show(learner: Learner, bar: tqdm, done: float) -> None:
    bar.set_postfix_str(f"loss {learner.recent_loss():.3f}, {learner.words_a_second:,.0f} words/s", refresh=False)
    bar.update(done - bar.n)
