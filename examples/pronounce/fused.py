"""The same model on seq2seq_fast: its layers, and each of its searches, in eval mode, as one operator."""

import torch
from torch import Tensor

import seq2seq_fast.nn
from seq2seq_fast.functional import Decoder, Found, Memory, beam_search, greedy_search

from .model import LONGER, Pronouncer
from .words import BOS, EOS, PAD


class FusedPronouncer(Pronouncer):
    def __init__(self, *sizes, **options):
        super().__init__(seq2seq_fast.nn, *sizes, **options)

    def pronounce(self, letters: Tensor, lengths: Tensor) -> Tensor:
        return self.search(greedy_search, letters, lengths).tokens

    def beam(self, letters: Tensor, lengths: Tensor, beams: int) -> Tensor:
        return self.search(beam_search, letters, lengths, beams=beams).tokens[:, 0]

    @torch.no_grad()
    def search(self, search, letters: Tensor, lengths: Tensor, **options) -> Found:
        """What a search of seq2seq_fast.functional finds."""
        hx, outputs, _ = self.encode(letters, lengths)
        weights = list(self.decoder.parameters())
        decoder = Decoder(self.cell, weights, self.output.weight, self.output.bias, self.phonemes.weight)
        memory = Memory(outputs, outputs, lengths=lengths)
        longest = letters.size(1) + LONGER
        return search(decoder, BOS, hx, longest, eos=EOS, pad=PAD, memory=memory, **options)
