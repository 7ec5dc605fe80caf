"""The model, written once: `nn` is torch.nn or seq2seq_fast.nn. It decodes in a loop in Python."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .words import BOS, EOS, LETTERS, PAD, PHONEMES, Batch

LONGER = 8
"""A word has at most so many more phonemes than letters."""


class Pronouncer(torch.nn.Module):
    """Reads a word in both directions, then says its phonemes one by one, attending to the letters.

    Args:
        nn: the module to take the layers from.
        cell: "gru" or "lstm".
        embedding_size: E, of a letter and of a phoneme.
        hidden_size: H of the decoder; each direction of the encoder has H / 2.
        layers: of the encoder and of the decoder.
        dropout: of the embeddings and of what the output layer reads.
    """

    def __init__(self, nn, cell: str, embedding_size: int, hidden_size: int, layers: int, dropout: float = 0.0):
        super().__init__()
        recurrent = {"gru": nn.GRU, "lstm": nn.LSTM}[cell]
        self.cell = cell
        self.letters = nn.Embedding(len(LETTERS), embedding_size, padding_idx=PAD)
        self.encoder = recurrent(embedding_size, hidden_size // 2, layers, batch_first=True, bidirectional=True)
        self.phonemes = nn.Embedding(len(PHONEMES), embedding_size, padding_idx=PAD)
        self.decoder = recurrent(embedding_size, hidden_size, layers, batch_first=True)
        self.output = nn.Linear(2 * hidden_size, len(PHONEMES))
        self.dropout = nn.Dropout(dropout)

    def encode(self, letters: Tensor, lengths: Tensor):
        """What the decoder needs of (B, T) letters: its first state, the outputs (B, T, H), their padding."""
        packed = pack_padded_sequence(self.dropout(self.letters(letters)), lengths, batch_first=True)
        outputs, state = self.encoder(packed)
        outputs, _ = pad_packed_sequence(outputs, batch_first=True)
        state = tuple(map(join_directions, state)) if isinstance(state, tuple) else join_directions(state)
        return state, outputs, (letters == PAD).unsqueeze(1)

    def decode(self, phonemes: Tensor, state, outputs: Tensor, padding: Tensor):
        """Scores (B, U, 42) of what follows each of the (B, U) phonemes, and the state after the last."""
        queries, state = self.decoder(self.dropout(self.phonemes(phonemes)), state)
        alphas = (queries @ outputs.mT).masked_fill(padding, -torch.inf).softmax(-1)
        return self.output(self.dropout(torch.cat([alphas @ outputs, queries], -1))), state

    def loss(self, batch: Batch) -> Tensor:
        """Cross entropy of each phoneme given those before it, the mean over all that are not PAD."""
        scores, _ = self.decode(batch.phonemes[:, :-1], *self.encode(batch.letters, batch.lengths))
        return F.cross_entropy(scores.flatten(0, 1), batch.phonemes[:, 1:].flatten(), ignore_index=PAD)

    @torch.no_grad()
    def pronounce(self, letters: Tensor, lengths: Tensor) -> Tensor:
        """The likeliest phoneme, fed back, until every word of the batch has its EOS: (B, U)."""
        state, outputs, padding = self.encode(letters, lengths)
        phoneme = torch.full((len(letters), 1), BOS)
        ended = torch.zeros(len(letters), 1, dtype=torch.bool)
        said = []
        while not ended.all() and len(said) < letters.size(1) + LONGER:
            scores, state = self.decode(phoneme, state, outputs, padding)
            phoneme = scores.argmax(-1)
            ended |= phoneme == EOS
            said.append(phoneme)
        return torch.cat(said, 1)

    @torch.no_grad()
    def beam(self, letters: Tensor, lengths: Tensor, beams: int) -> Tensor:
        """The best of `beams` hypotheses a word, which grow until all have their EOS: (B, U)."""
        batch, vocabulary = len(letters), len(PHONEMES)
        state, outputs, padding = self.encode(letters, lengths)
        first = torch.arange(batch).unsqueeze(1) * beams
        state = rows_of(state, torch.arange(batch).repeat_interleave(beams))
        outputs, padding = (x.repeat_interleave(beams, 0) for x in (outputs, padding))
        phoneme = torch.full((batch * beams, 1), BOS)
        said = phoneme[:, :0]
        ended = torch.zeros(batch * beams, 1, dtype=torch.bool)
        # at first the hypotheses of a word are all the same, and one is enough
        sums = torch.tensor([0.0] + [-torch.inf] * (beams - 1), dtype=outputs.dtype).repeat(batch, 1)
        stays = torch.full((vocabulary,), -torch.inf, dtype=outputs.dtype)
        stays[PAD] = 0
        while not ended.all() and said.size(1) < letters.size(1) + LONGER:
            scores, state = self.decode(phoneme, state, outputs, padding)
            gains = scores.squeeze(1).log_softmax(-1).where(~ended, stays).view(batch, beams, vocabulary)
            sums, best = (sums.unsqueeze(2) + gains).flatten(1).topk(beams)
            parent, phoneme = (first + best // vocabulary).flatten(), (best % vocabulary).view(-1, 1)
            state, said = rows_of(state, parent), torch.cat([said[parent], phoneme], 1)
            ended = ended[parent] | (phoneme == EOS)
        return said.view(batch, beams, -1)[:, 0]


def rows_of(state, rows: Tensor):
    """Those rows of the batch of a state."""
    return tuple(x[:, rows] for x in state) if isinstance(state, tuple) else state[:, rows]


def join_directions(state: Tensor) -> Tensor:
    """The two directions of each layer side by side: (L*2, B, H/2) to (L, B, H)."""
    return state.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)
