"""The first half: reads a source."""

import torch
from torch import Tensor

from ..accelerate import accelerate
from .checks import check_lengths, check_tokens


class Encoder(torch.nn.Module):
    """A recurrent layer over an embedded source.

    Its `state_dict` is that of the two modules, under `embedding` and `rnn`.

    Args:
        rnn: a GRU, LSTM or RNN, torch.nn's or ours, with any of its flags; torch.nn's is swapped for ours.
        embedding: from a source to vectors (B, S, E): torch.nn.Embedding for tokens, a Linear for one-hot vectors (so
            that the gradient reaches them), or any module; None where the source is (B, S, E) already.

    Raises:
        TypeError: `rnn` is no recurrent layer.
    """

    def __init__(self, rnn: torch.nn.RNNBase, embedding: torch.nn.Module | None = None):
        super().__init__()
        if not isinstance(rnn, torch.nn.RNNBase):
            raise TypeError(f"rnn: expected a GRU, LSTM or RNN, got {type(rnn).__name__}")
        self.embedding, self.rnn = embedding, accelerate(rnn)

    def forward(self, source: Tensor, lengths: Tensor | None = None):
        """Reads the sources.

        Args:
            source: (B, S) tokens, or (B, S, F) vectors.
            lengths: (B,) integers, 1 <= length <= S: the steps of each row that count.

        Returns:
            states (B, S, D*H), zero after a row's end, and the last state as the layer gives it: (L*D, B, H), for the
            LSTM (h_n, c_n).

        Raises:
            RuntimeError, ValueError, TypeError: a wrong rank, size, dtype or value, named in the message.
        """
        tokens = isinstance(self.embedding, torch.nn.Embedding)
        if source.dim() != (2 if tokens else 3):
            raise RuntimeError(f"source: expected {'(B, S)' if tokens else '(B, S, F)'}, got {tuple(source.shape)}")
        if not source.size(1):
            raise RuntimeError("source: expected at least one step, got none")
        if tokens:
            check_tokens("source", source, self.embedding.num_embeddings)
        if lengths is not None:
            lengths = check_lengths("source_lengths", lengths, *source.shape[:2], least=1)
        x = source if self.embedding is None else self.embedding(source)
        if self.rnn.batch_first:
            return self.rnn(x, lengths=lengths)
        states, hx = self.rnn(x.transpose(0, 1), lengths=lengths)
        return states.transpose(0, 1), hx
