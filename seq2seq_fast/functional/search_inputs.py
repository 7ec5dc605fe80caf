"""What decoding is given: whether it fits together, and in which order the operators take it."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..reference import STEPS
from ..reference_search import SCORES
from .attention_inputs import check_empty_rows, checked_lengths

GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}


class Decoder(NamedTuple):
    """A decoder's parameters: L layers, G gates, I input, H hidden, V vocabulary, E embedding.

    Attributes:
        cell: "gru", "lstm", "rnn_tanh" or "rnn_relu".
        weights: L times weight_ih (G*H, I), weight_hh (G*H, H) and, with bias, bias_ih (G*H), bias_hh (G*H), in one
            list, as torch.nn.GRU's `_flat_weights`. I is H but for the first layer, where it is E, and C more with a
            context.
        weight_out: (V, H), with attention (V, W + H): it reads the context vector, then the top layer's new state.
        bias_out: (V).
        embedding: (at least V, E); None for real-valued sequences, where V and E are the vector's width F.
    """

    cell: str
    weights: list[Tensor]
    weight_out: Tensor
    bias_out: Tensor | None = None
    embedding: Tensor | None = None


class Memory(NamedTuple):
    """What a decoder attends to: S keys of width A, values of width W. As nn.Attention with one head has it.

    Attributes:
        keys: (B, S, A), projected. values: (B, S, W).
        score: "scaled_dot", "dot", "general", "additive", "gaussian", "boxcar" or "epanechnikov".
        lengths: (B) integers, 0 <= length <= S: the keys of each row that take part.
        mask: (B, S) bool, True takes part.
        weight_query: (A, H), bias_query: (A): the query's projection; where None the query is the state, and A is H.
        score_weight: (A), for the additive score.
        empty_rows: what a query gets that no key takes part for: "zeros", "nan" or "uniform".
    """

    keys: Tensor
    values: Tensor
    score: str = "dot"
    lengths: Tensor | None = None
    mask: Tensor | None = None
    weight_query: Tensor | None = None
    bias_query: Tensor | None = None
    score_weight: Tensor | None = None
    empty_rows: str = "zeros"


def decoder_arguments(
    decoder: Decoder, hx: Tensor | tuple[Tensor, Tensor], context: Tensor | None, memory: Memory | None, width: int
) -> tuple:
    """The arguments that search_ops.DECODER_ARGS names, checked; `width`: of the first layer's input, context apart."""
    lstm = decoder.cell == "lstm"
    if decoder.cell not in STEPS:
        raise ValueError(f"cell: expected one of {', '.join(STEPS)}, got {decoder.cell!r}")
    if isinstance(hx, tuple) != lstm or (lstm and len(hx) != 2):
        raise TypeError(f"hx: expected {'(h_0, c_0)' if lstm else 'h_0'} for {decoder.cell}, got {type(hx).__name__}")
    h_0, c_0 = hx if lstm else (hx, None)
    if h_0.dim() != 3 or not h_0.numel():
        raise RuntimeError(f"h_0: expected (L, B, H), none of them 0, got {tuple(h_0.shape)}")
    layers, batch, hidden = h_0.shape

    def expect(name: str, tensor: Tensor | None, *shape: int):
        if tensor is None:
            return
        if tuple(tensor.shape) != shape:
            raise RuntimeError(f"{name}: expected {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype != h_0.dtype or tensor.device != h_0.device:
            raise RuntimeError(
                f"{name}: expected {h_0.dtype} on {h_0.device} like h_0, got {tensor.dtype} on {tensor.device}"
            )

    if not h_0.is_floating_point():
        raise RuntimeError(f"h_0: expected a floating dtype, got {h_0.dtype}")
    expect("c_0", c_0, *h_0.shape)
    if context is not None:
        if context.dim() != 2:
            raise RuntimeError(f"context: expected (B, C), got {tuple(context.shape)}")
        expect("context", context, batch, context.size(1))
        width += context.size(1)
    weights = list(decoder.weights)
    if len(weights) not in (2 * layers, 4 * layers):
        raise RuntimeError(f"weights: expected 2 or 4 for each of the {layers} layers of h_0, got {len(weights)}")
    gates = GATES[decoder.cell] * hidden
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: len(weights) // layers]
    for place, weight in enumerate(weights):
        layer, kind = divmod(place, len(names))
        shape = ((gates, hidden if layer else width), (gates, hidden), (gates,), (gates,))[kind]
        expect(f"{names[kind]}_l{layer}", weight, *shape)
    read = hidden if memory is None else hidden + memory.values.size(-1)
    if decoder.weight_out.dim() != 2:
        raise RuntimeError(f"weight_out: expected (V, {read}), got {tuple(decoder.weight_out.shape)}")
    vocabulary = decoder.weight_out.size(0)
    expect("weight_out", decoder.weight_out, max(vocabulary, 1), read)
    expect("bias_out", decoder.bias_out, vocabulary)
    given = (context, h_0, c_0, weights, decoder.cell, decoder.weight_out, decoder.bias_out)
    if memory is None:
        return *given, None, None, None, None, None, None, None, "dot", "zeros"

    for name, tensor in (("keys", memory.keys), ("values", memory.values)):
        if tensor.dim() != 3 or not tensor.numel():
            raise RuntimeError(f"{name}: expected (B, S, width), none of them 0, got {tuple(tensor.shape)}")
    _, keys, attended = memory.keys.shape
    expect("keys", memory.keys, batch, keys, attended if memory.weight_query is not None else hidden)
    expect("values", memory.values, batch, keys, memory.values.size(2))
    expect("weight_query", memory.weight_query, attended, hidden)
    expect("bias_query", memory.bias_query, attended)
    if memory.weight_query is None and memory.bias_query is not None:
        raise ValueError("bias_query: expected None where weight_query is None")
    if memory.score not in SCORES:
        raise ValueError(f"score: expected one of {', '.join(SCORES)}, got {memory.score!r}")
    if (memory.score == "additive") != (memory.score_weight is not None):
        raise ValueError(f"score_weight: expected with score='additive' alone, got score={memory.score!r}")
    expect("score_weight", memory.score_weight, attended)
    check_empty_rows(memory.empty_rows)
    lengths, mask = memory.lengths, memory.mask
    if lengths is not None:
        lengths = checked_lengths(lengths, (batch,), keys, h_0.device)
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (batch, keys) or mask.device != h_0.device):
        raise RuntimeError(
            f"mask: expected bool {(batch, keys)} on {h_0.device}, got {mask.dtype} {tuple(mask.shape)} on "
            f"{mask.device}"
        )
    return (
        *given,
        memory.keys,
        memory.values,
        lengths,
        mask,
        memory.weight_query,
        memory.bias_query,
        memory.score_weight,
        memory.score,
        memory.empty_rows,
    )


def embedding_width(decoder: Decoder) -> int:
    """E of a decoder of tokens."""
    embedding, vocabulary = decoder.embedding, decoder.weight_out.size(0)
    if embedding is None:
        raise ValueError("embedding: expected (V, E) for a search over tokens, got None; `feedback` takes vectors")
    if embedding.dim() != 2 or embedding.size(0) < vocabulary:
        raise RuntimeError(f"embedding: expected (at least {vocabulary}, E), got {tuple(embedding.shape)}")
    return embedding.size(1)


def first_tokens(start: int | Tensor, embedding: Tensor, h_0: Tensor) -> Tensor:
    """`start` as (B) int64, each a row of the embedding."""
    if embedding.dtype != h_0.dtype or embedding.device != h_0.device:
        raise RuntimeError(
            f"embedding: expected {h_0.dtype} on {h_0.device} like h_0, got {embedding.dtype} on {embedding.device}"
        )
    if isinstance(start, int):
        if not 0 <= start < embedding.size(0):
            raise ValueError(f"start: expected a token from 0 to {embedding.size(0) - 1}, got {start}")
        return torch.full((h_0.size(1),), start, device=h_0.device)
    if start.shape != (h_0.size(1),) or start.dtype != torch.int64 or start.device != h_0.device:
        raise RuntimeError(
            f"start: expected int64 ({h_0.size(1)},) on {h_0.device}, one token for each row, got {start.dtype} "
            f"{tuple(start.shape)} on {start.device}"
        )
    low, high = (int(x) for x in start.aminmax())
    if low < 0 or high >= embedding.size(0):
        raise ValueError(f"start: expected tokens from 0 to {embedding.size(0) - 1}, got {low if low < 0 else high}")
    return start
