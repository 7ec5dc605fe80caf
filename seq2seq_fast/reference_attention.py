"""The oracle of attention: softmax of scores, as plain torch operations that can be differentiated any number of times.

B batch, H heads of the query, K heads of key and value (H a multiple of K), L queries, S keys, E width of query and
key, V width of the value.
"""

import torch
from torch import Tensor

# Philox 4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, table 2
PHILOX_ROUNDS = 10
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
WORD = 0xFFFFFFFF

EMPTY_ROWS = ("zeros", "nan", "uniform")
WEIGHTS = ("none", "heads", "average")


def _product(a: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of a 32-bit product, in int64 without overflow."""
    low, high = a & 0xFFFF, a >> 16
    m_low, m_high = multiplier & 0xFFFF, multiplier >> 16
    middle = high * m_low + ((low * m_low) >> 16)
    middle_low = (middle & 0xFFFF) + low * m_high
    return high * m_high + (middle >> 16) + (middle_low >> 16), (a * m_low + ((a * m_high & WORD) << 16)) & WORD


def philox(seed: Tensor, counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Four 32-bit words, as int64, for each counter of four 32-bit words; `seed` is one int64, read as two words."""
    c = list(counter)
    key = [seed & WORD, (seed >> 32) & WORD]
    for _ in range(PHILOX_ROUNDS):
        high_0, low_0 = _product(c[0], PHILOX_MULTIPLIERS[0])
        high_1, low_1 = _product(c[2], PHILOX_MULTIPLIERS[1])
        c = [high_1 ^ c[1] ^ key[0], low_1, high_0 ^ c[3] ^ key[1], low_0]
        key = [(k + w) & WORD for k, w in zip(key, PHILOX_WEYL, strict=True)]
    return c


def dropout_keep(seed: Tensor, probability: float, shape: tuple[int, int, int, int]) -> Tensor:
    """Which weights dropout keeps: (B, H, L, S) bool.

    Weight (b, h, i, j) takes word j % 4 of the counter (j // 4, i, b H + h, 0), and is kept where the word's upper 24
    bits, as a fraction of one, are at least `probability`.
    """
    batch, heads, queries, keys = shape
    quads = torch.arange((keys + 3) // 4, device=seed.device)
    row = torch.arange(queries, device=seed.device).unsqueeze(-1)
    head = torch.arange(batch * heads, device=seed.device).view(-1, 1, 1)
    c = torch.broadcast_tensors(quads, row, head, torch.zeros_like(quads))
    words = torch.stack(philox(seed, c), -1).flatten(-2)[..., :keys]
    return (words >> 8).ge(dropout_threshold(probability)).view(shape)


def dropout_threshold(probability: float) -> int:
    """`probability` in units of 2^-24, rounded up."""
    return -int(-probability * (1 << 24) // 1)


def _softmax(scores: Tensor, takes_part: Tensor, masks: list[Tensor], empty_rows: str) -> tuple[Tensor, Tensor]:
    """The weights, and which rows no key takes part in: (..., L, 1). A score of -inf from a mask takes no part."""
    for mask in masks:
        if mask.dtype == torch.bool:
            takes_part = takes_part & mask
        else:
            takes_part = takes_part & (mask != -torch.inf)
            scores = scores + mask.masked_fill(mask == -torch.inf, 0)
    takes_part = takes_part.expand(scores.shape)
    empty = ~takes_part.any(-1, keepdim=True)
    # an empty row goes through softmax as zeros, so that its gradients are finite
    scores = scores.masked_fill(~takes_part & ~empty, -torch.inf).masked_fill(empty, 0)
    alphas = scores.softmax(-1)
    return alphas if empty_rows == "uniform" else alphas.masked_fill(empty, 0), empty


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masks: list[Tensor],
    lengths: Tensor | None,
    seed: Tensor | None,
    causal: bool,
    dropout: float,
    scale: float,
    weights: str,
    empty_rows: str,
) -> list[Tensor]:
    """softmax(scale Q K^T + masks) V: the contract of the operator `seq2seq_fast::attention`.

    Args:
        query: (B, H, L, E). key: (B, K, S, E). value: (B, K, S, V). Query head h reads key head h K / H.
        masks: up to two, each 4-D and broadcastable to (B, H, L, S); bool: True takes part; else of query's dtype,
            added to the scores.
        lengths: (B,) int64: the keys of each row that take part; key and value after them are not read.
        seed: one int64, for `dropout` > 0: the probability of dropping a weight, the others growing by 1 / (1 - p).
        causal: query i sees the keys up to i, also where L and S differ.
        weights: "none", "heads" or "average": which weights are returned, after dropout.
        empty_rows: what a query that no key takes part for gives: "zeros"; "nan"; or "uniform", 1 / S of each key.

    Returns:
        [output (B, H, L, V)], and with weights (B, H, L, S) or, averaged over the heads, (B, L, S).
    """
    batch, heads, queries, _ = query.shape
    kv_heads, keys = key.shape[1:3]
    shape = (batch, heads, queries, keys)
    takes_part = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    if lengths is not None:
        within = torch.arange(keys, device=query.device) < lengths.view(-1, 1)
        takes_part = within.view(batch, 1, 1, keys)
        # not 0 * padding, which a NaN would survive
        key, value = (x.masked_fill(~within.view(batch, 1, keys, 1), 0) for x in (key, value))
    if causal:
        takes_part = takes_part & torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
    groups = heads // kv_heads
    key, value = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (key, value))
    scores = (query * scale) @ key.transpose(-2, -1)
    alphas, empty = _softmax(scores, takes_part, masks, empty_rows)
    if dropout:
        keep = dropout_keep(seed, dropout, shape)
        alphas = alphas * keep / (1 - dropout) if dropout < 1 else alphas * 0
    output = alphas @ value
    if empty_rows == "nan":
        output, alphas = (x.masked_fill(empty, torch.nan) for x in (output, alphas))
    if weights == "none":
        return [output]
    return [output, alphas if weights == "heads" else alphas.mean(1)]


def additive_attention(
    query: Tensor,
    key: Tensor,
    score_weight: Tensor,
    value: Tensor,
    masks: list[Tensor],
    lengths: Tensor | None,
    empty_rows: str,
) -> list[Tensor]:
    """softmax(score_weight . tanh(q_i + k_j)) V: the contract of the operator `seq2seq_fast::additive_attention`.

    Bahdanau, Cho, Bengio, arXiv 1409.0473, with the projections of query and key done before.

    Args:
        query: (B, L, A). key: (B, S, A). score_weight: (A,). value: (B, S, V).
        masks, lengths, empty_rows: as for `attention`, the masks 3-D and broadcastable to (B, L, S).

    Returns:
        [output (B, L, V), weights (B, L, S)].
    """
    within = None
    if lengths is not None:
        within = (torch.arange(key.size(1), device=query.device) < lengths.view(-1, 1)).unsqueeze(-1)
        key, value = (x.masked_fill(~within, 0) for x in (key, value))
    scores = torch.tanh(query.unsqueeze(2) + key.unsqueeze(1)) @ score_weight
    takes_part = scores.new_ones(1, 1, 1, dtype=torch.bool) if within is None else within.transpose(1, 2)
    alphas, empty = _softmax(scores, takes_part, masks, empty_rows)
    output = alphas @ value
    if empty_rows == "nan":
        output, alphas = (x.masked_fill(empty, torch.nan) for x in (output, alphas))
    return [output, alphas]
