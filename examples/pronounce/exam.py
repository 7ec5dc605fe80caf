"""The exam: how many phonemes and words of the held-out words a model gets wrong, and how fast it answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .model import Pronouncer
from .words import EOS, PHONEMES, Batch, Examples, Pronunciations

BEAMS = 5
Answer = Callable[[Pronouncer, Batch], torch.Tensor]


def greedy(model: Pronouncer, batch: Batch) -> torch.Tensor:
    return model.pronounce(batch.letters, batch.lengths)


def beam(model: Pronouncer, batch: Batch) -> torch.Tensor:
    return model.beam(batch.letters, batch.lengths, BEAMS)


@dataclass
class ErrorRates:
    """phonemes: edits per phoneme of the reference; words: the part of the words not exactly right."""

    phonemes: float
    words: float

    def __str__(self) -> str:
        return f"phoneme error {self.phonemes:.2%}, word error {self.words:.2%}"


class Exam:
    """Words to pronounce, the longest first. Of a word with several pronunciations the nearest one counts."""

    def __init__(self, words: Pronunciations, batch_size: int):
        longest_first = sorted(words, key=len, reverse=True)
        self.references = [words[word] for word in longest_first]
        examples = Examples({word: words[word][:1] for word in longest_first})
        self.batches = [examples.batch(rows) for rows in torch.arange(len(examples)).split(batch_size)]

    def mark(self, model: Pronouncer, answer: Answer = greedy) -> ErrorRates:
        """The model's error rates, in eval mode."""
        model.eval()
        answers = [said for batch in self.batches for said in spelled_out(answer(model, batch))]
        model.train()
        nearest = [
            min(((edit_distance(said, reference), len(reference)) for reference in references), key=rate)
            for said, references in zip(answers, self.references, strict=True)
        ]
        edits, phonemes = map(sum, zip(*nearest, strict=True))
        return ErrorRates(edits / phonemes, sum(edits > 0 for edits, _ in nearest) / len(nearest))

    def alone(self, count: int) -> list[Batch]:
        """So many of the words, from the whole range of lengths, each in a batch of its own."""
        words = [(batch, row) for batch in self.batches for row in range(len(batch))]
        return [batch.alone(row) for batch, row in words[:: max(1, len(words) // count)][:count]]


def decode_in_turn(models: list[Pronouncer], batches: list[Batch], answer: Answer) -> tuple[list[float], float]:
    """Words a second of each model, batch by batch in turn, and the part of words they answer alike."""
    for model in models:
        model.eval()
    seconds = [0.0] * len(models)
    same = 0
    for batch in batches:
        answers = []
        for i, model in enumerate(models):
            start = time.perf_counter()
            said = answer(model, batch)
            seconds[i] += time.perf_counter() - start
            answers.append(spelled_out(said))
        same += sum(len(set(said)) == 1 for said in zip(*answers, strict=True))
    count = sum(map(len, batches))
    return [count / s for s in seconds], same / count


def spelled_out(phonemes: torch.Tensor) -> list[tuple[str, ...]]:
    """The names of (B, U) phonemes, each row up to its EOS."""
    rows = phonemes.tolist()
    return [tuple(PHONEMES[p] for p in row[: row.index(EOS) if EOS in row else None]) for row in rows]


def rate(edits_and_length: tuple[int, int]) -> float:
    return edits_and_length[0] / edits_and_length[1]


def edit_distance(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """The fewest insertions, deletions and replacements that make `b` of `a`."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]
