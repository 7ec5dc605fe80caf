"""The oracle of decoding: greedy search, beam search, sampling and real-valued feedback as plain loops over the steps.

B source rows, K beams, T steps, L layers, I input, H hidden, V vocabulary, E embedding, C context, S keys, A width of
keys and projected queries, W width of values, F width of a real-valued output.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from .reference import STEPS
from .reference_attention import additive_attention, attention

SCORES = ("scaled_dot", "dot", "general", "additive", "gaussian", "boxcar", "epanechnikov")

# (input (N, E or F), source rows (N), states) -> (logits (N, V), alphas (N, S) or None, states)
Step = Callable


def decoder(
    context: Tensor | None,
    weights: list[Tensor],
    layers: int,
    cell: str,
    weight_out: Tensor,
    bias_out: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    lengths: Tensor | None,
    mask: Tensor | None,
    weight_query: Tensor | None,
    bias_query: Tensor | None,
    score_weight: Tensor | None,
    score: str,
    empty_rows: str,
) -> Step:
    """A decoder's step: the layers, attention with the top layer's new state as the query, the output projection.

    Args:
        context: (B, C), appended to the input of every step; or None.
        weights: for each layer weight_ih (G*H, I), weight_hh (G*H, H) and, with bias, bias_ih, bias_hh (G*H); I is
            E + C (or F + C) for the first layer, H for the others.
        cell: "gru", "lstm", "rnn_tanh" or "rnn_relu".
        weight_out: (V, H), with attention (V, W + H): the context vector first, then the query. bias_out: (V) or None.
        keys: (B, S, A), projected; None: no attention. values: (B, S, W).
        lengths: (B) int64, 0 <= length <= S: the keys of each row that take part. mask: (B, S) bool, True takes part.
        weight_query: (A, H), bias_query: (A): the query's projection; None: the query as it is.
        score_weight: (A), of the additive score. score: one of SCORES, as nn.Attention defines them.
        empty_rows: what a query gets that no key takes part for: "zeros", "nan" or "uniform".
    """
    per_layer = len(weights) // layers
    stack = [weights[k * per_layer : (k + 1) * per_layer] for k in range(layers)]

    def attend(query: Tensor, row: Tensor) -> list[Tensor]:
        q = (query if weight_query is None else linear(query, weight_query, bias_query)).unsqueeze(1)
        k, v, row_lengths = keys[row], values[row], None if lengths is None else lengths[row]
        masks = [] if mask is None else [mask[row].unsqueeze(1)]
        if score == "additive":
            results = additive_attention(q, k, score_weight, v, masks, row_lengths, empty_rows)
        else:
            added, scale = distance_scores(q, k, score)
            q, k, v, *masks = (x.unsqueeze(1) for x in (q, k, v, *added, *masks))
            results = attention(q, k, v, masks, row_lengths, None, False, 0.0, scale, "heads", empty_rows)
        return [x.flatten(1) for x in results]

    def step(x: Tensor, row: Tensor, h: list[Tensor], c: list[Tensor | None]):
        if context is not None:
            x = torch.cat([x, context[row]], -1)
        new_h, new_c = [], []
        for (weight_ih, weight_hh, *bias), h_l, c_l in zip(stack, h, c, strict=True):
            bias_ih, bias_hh = bias or (None, None)
            x, c_l = STEPS[cell](linear(x, weight_ih, bias_ih), h_l, c_l, weight_hh, bias_hh)
            new_h.append(x)
            new_c.append(c_l)
        alphas = None
        if keys is not None:
            vector, alphas = attend(x, row)
            x = torch.cat([vector, x], -1)
        return linear(x, weight_out, bias_out), alphas, new_h, new_c

    return step


def distance_scores(q: Tensor, k: Tensor, score: str) -> tuple[list[Tensor], float]:
    """What is added to the products of q (N, 1, A) and k (N, S, A), and how those are scaled; as in nn.Attention."""
    if score == "gaussian":
        return [k.square().sum(-1).unsqueeze(1) * -0.5], 1.0
    if score in ("boxcar", "epanechnikov"):
        distance = (q - k).square().sum(-1).sqrt().unsqueeze(1)
        return [(distance <= 1).to(q.dtype) if score == "boxcar" else (1 - distance).clamp(min=0)], 0.0
    return [], q.size(-1) ** -0.5 if score == "scaled_dot" else 1.0


def penalty(length, exponent: float):
    """((5 + length) / 6) ** exponent: Wu et al., arXiv 1609.08144, equation 14."""
    return ((5 + length) / 6) ** exponent


def draw(logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """A token for each row of logits (N, V) by inverting the distribution, in the order of the tokens, at uniform (N).

    The distribution is softmax(logits / temperature), of which the `top_k` likeliest tokens are kept (0: all), and of
    those the fewest likeliest that together have at least `top_p` of what was kept; of equal ones the lower tokens.
    """
    weights = torch.exp((logits - logits.amax(-1, keepdim=True)) / temperature)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    if top_k:
        ordered[:, top_k:] = 0
    if top_p < 1:
        before, all = ordered.cumsum(-1)[:, :-1], ordered.sum(-1, keepdim=True)
        # the likeliest stays in any case
        ordered[:, 1:].masked_fill_(before >= top_p * all, 0)
    kept = torch.zeros_like(weights).scatter_(-1, order, ordered)
    sums = kept.cumsum(-1)
    reached = (sums > uniform.to(sums.dtype).unsqueeze(-1) * sums[:, -1:]) & (kept > 0)
    # rounding may leave the last sum just short of it
    last = kept.size(-1) - 1 - (kept.flip(-1) > 0).int().argmax(-1)
    return torch.where(reached.any(-1), reached.int().argmax(-1), last)


def search(
    start: Tensor,
    embedding: Tensor,
    context: Tensor | None,
    h_0: Tensor,
    c_0: Tensor | None,
    weights: list[Tensor],
    cell: str,
    weight_out: Tensor,
    bias_out: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    lengths: Tensor | None,
    mask: Tensor | None,
    weight_query: Tensor | None,
    bias_query: Tensor | None,
    score_weight: Tensor | None,
    score: str,
    empty_rows: str,
    max_steps: int,
    eos: int | None,
    pad: int,
    beams: int,
    length_penalty: float,
    forced: Tensor | None,
    uniforms: Tensor | None,
    temperature: float,
    top_k: int,
    top_p: float,
    alphas: bool,
) -> list[Tensor]:
    """Decodes tokens, each fed back: the contract of the operator `seq2seq_fast::search`.

    One beam and no `uniforms` is greedy search, the arg-max (of equal logits the lower token). `uniforms` makes it
    sampling (see `draw`). More beams: every step ranks the continuations of a row's hypotheses, V of each that runs,
    and those that have ended, as they are, by score; the best K stay, of equal ones the lower (hypothesis, token). A
    hypothesis ends with `eos`, and keeps one of the K places for as long as it is among the best. A row is done when
    all its K have ended; hypotheses that still run after `max_steps` count as they are.

    The score is the sum of the log-probabilities (of the model: before temperature, top_k and top_p), divided by
    ((5 + length) / 6) ** length_penalty, where length counts the `eos`.

    Args:
        start: (B) int64: the first input of each row. embedding: (at least V, E).
        h_0, c_0: (L, B, H); `c_0` is for the LSTM alone.
        context ... empty_rows: see `decoder`.
        max_steps: T, at least 1. eos: the token that ends a hypothesis, or None. pad: what follows it.
        beams: K, at most V.
        forced: (T, B) int64, for K = 1 and without alphas; or None. Where not negative it is the token of that step,
            and adds nothing to the score.
        uniforms: (T, B) float64 in [0, 1), for K = 1; or None.
        alphas: whether to return the weights of attention.

    Returns:
        [tokens (B, K, T) int64, lengths (B, K) int64 with the `eos`, scores (B, K), the best first], and with
        `alphas` (B, K, T, S), zero after the end.
    """
    layers, rows, _ = h_0.shape
    step = decoder(
        context, weights, layers, cell, weight_out, bias_out, keys, values, lengths, mask, weight_query, bias_query,
        score_weight, score, empty_rows,
    )  # fmt: skip
    vocabulary = weight_out.size(0)
    # the hypotheses of all rows side by side: (B, K), at first one a row
    row = torch.arange(rows, device=start.device)
    h, c = list(h_0), list(c_0) if c_0 is not None else [None] * layers
    token = start
    tokens = start.new_empty(rows, 1, 0)
    history = h_0.new_empty(rows, 1, 0, keys.size(1)) if alphas else None
    sums = h_0.new_zeros(rows, 1)
    ended = torch.zeros(rows, 1, dtype=torch.bool, device=start.device)
    length = start.new_zeros(rows, 1)
    for t in range(max_steps):
        if ended.all():
            break
        logits, weights_t, h, c = step(embedding[token], row, h, c)
        log_probs = logits.log_softmax(-1)
        if uniforms is not None:
            chosen = draw(logits, uniforms[t], temperature, top_k, top_p).view(rows, 1)
            parent = torch.zeros_like(chosen)
        elif beams == 1:
            chosen = logits.argmax(-1).view(rows, 1)
            parent = torch.zeros_like(chosen)
        else:
            # one that has ended has a single continuation, itself
            stays = torch.full_like(log_probs, -torch.inf)
            stays[:, 0] = 0
            scores = torch.where(ended.view(-1, 1), stays, log_probs).view(rows, -1, vocabulary) + sums.unsqueeze(-1)
            lengths_t = torch.where(ended, length, t + 1)
            ranked = scores / penalty(lengths_t.to(scores.dtype), length_penalty).unsqueeze(-1)
            best = ranked.flatten(1).sort(dim=-1, descending=True, stable=True).indices[:, :beams]
            parent, chosen = best // vocabulary, best % vocabulary
        slot = torch.arange(rows, device=start.device).unsqueeze(1) * ended.size(1) + parent
        log_prob = log_probs[slot, chosen]
        if forced is not None:
            free = forced[t].view(rows, 1) < 0
            chosen, log_prob = chosen.where(free, forced[t].view(rows, 1)), log_prob.where(free, 0)
        ended, length, sums = (x.gather(1, parent) for x in (ended, length, sums))
        token = torch.where(ended, pad, chosen)
        sums = torch.where(ended, sums, sums + log_prob)
        length = torch.where(ended, length, t + 1)
        tokens = torch.cat([tokens.gather(1, parent.unsqueeze(-1).expand(-1, -1, t)), token.unsqueeze(-1)], -1)
        if alphas:
            past = history.gather(1, parent[..., None, None].expand(-1, -1, t, keys.size(1)))
            now = torch.where(ended.unsqueeze(-1), 0, weights_t[slot])
            history = torch.cat([past, now.unsqueeze(2)], 2)
        h, c = ([None if s is None else s[slot.flatten()] for s in states] for states in (h, c))
        row = row[slot.flatten()]
        if eos is not None:
            ended = ended | (token == eos)
        # what has ended runs on unseen
        token = torch.where(ended, 0, token).flatten()
    missing = max_steps - tokens.size(-1)
    tokens = torch.cat([tokens, tokens.new_full((rows, beams, missing), pad)], -1)
    results = [tokens, length, sums / penalty(length.to(sums.dtype), length_penalty)]
    if alphas:
        results.append(torch.cat([history, history.new_zeros(rows, beams, missing, keys.size(1))], 2))
    return results


def feedback(
    start: Tensor,
    context: Tensor | None,
    h_0: Tensor,
    c_0: Tensor | None,
    weights: list[Tensor],
    cell: str,
    weight_out: Tensor,
    bias_out: Tensor | None,
    keys: Tensor | None,
    values: Tensor | None,
    lengths: Tensor | None,
    mask: Tensor | None,
    weight_query: Tensor | None,
    bias_query: Tensor | None,
    score_weight: Tensor | None,
    score: str,
    empty_rows: str,
    steps: int,
    alphas: bool,
) -> list[Tensor]:
    """Decodes real-valued vectors, each the next input: the contract of the operator `seq2seq_fast::feedback`.

    Args:
        start: (B, F): the first input of each row. weight_out: (F, H), with attention (F, W + H).
        the others: see `search` and `decoder`.

    Returns:
        [outputs (B, T, F)], and with `alphas` (B, T, S).
    """
    layers, rows, _ = h_0.shape
    step = decoder(
        context, weights, layers, cell, weight_out, bias_out, keys, values, lengths, mask, weight_query, bias_query,
        score_weight, score, empty_rows,
    )  # fmt: skip
    row = torch.arange(rows, device=start.device)
    h, c = list(h_0), list(c_0) if c_0 is not None else [None] * layers
    x, outputs, history = start, [], []
    for _ in range(steps):
        x, weights_t, h, c = step(x, row, h, c)
        outputs.append(x)
        history.append(weights_t)
    return [torch.stack(outputs, 1), *([torch.stack(history, 1)] if alphas else [])]
