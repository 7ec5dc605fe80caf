"""A decoder that attends to the encoder's states."""

import torch
from torch import Tensor

from .. import functional
from ..nn import Attention
from .decoder import Decoder
from .one_call import projects


class AttentionDecoder(Decoder):
    """A decoder whose state after a step is the query; context vector and query, side by side, are projected to output.

    Args:
        rnn, embedding: as for `Decoder`.
        attention: seq2seq_fast.nn.Attention, of any score; `attention.alphas` keeps the weights of the last call.
        output: (W + H to V) logits or (W + H to F) vectors, W the width of the context vector.

    Raises:
        TypeError, ValueError: a module of another kind, or sizes that do not fit.
    """

    def __init__(
        self,
        rnn: torch.nn.RNNBase,
        attention: Attention,
        output: torch.nn.Linear,
        embedding: torch.nn.Module | None = None,
    ):
        super().__init__(rnn, output, embedding)
        if not isinstance(attention, Attention):
            raise TypeError(f"attention: expected seq2seq_fast.nn.Attention, got {type(attention).__name__}")
        if attention.query_dim != rnn.hidden_size:
            raise ValueError(
                f"attention: expected queries of hidden_size={rnn.hidden_size}, got query_dim={attention.query_dim}"
            )
        self.attention = attention

    def attend(self, states: Tensor, *, mask: Tensor | None = None, lengths: Tensor | None = None) -> None:
        """Projects the encoder's states (B, S, D*H), for the calls that follow."""
        self.attention.init_keys(states, mask, lengths=lengths)

    @projects
    def project(self, query: Tensor) -> Tensor:
        return self.output(torch.cat([self.attention(query), query], -1))

    @property
    def has_one_head(self) -> bool:
        """As functional's searches want it."""
        return self.attention.num_heads == 1

    def memory(self) -> functional.Memory:
        attention = self.attention
        return functional.Memory(
            attention.keys.squeeze(1),
            attention.values.squeeze(1),
            attention.score,
            attention.lengths,
            attention.mask,
            attention.linear_query.weight,
            attention.linear_query.bias,
            attention.score_weight,
            attention.empty_rows,
        )
