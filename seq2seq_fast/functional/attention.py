"""Attention: torch's scaled_dot_product_attention with what it lacks, and the additive score."""

import torch
from torch import Tensor

from .. import attention_ops, reference_attention
from .attention_inputs import (
    autocast,
    batch_and_heads,
    broadcastable,
    check,
    check_empty_rows,
    checked_lengths,
    four_dimensions,
    mask_4d,
)
from .recurrent import why_not_fused

FUSED_DTYPES = (torch.float32, torch.float64)


def why_torch_serves(query: Tensor, *, extras: bool) -> str | None:
    """Why torch's own attention serves `query`, in one sentence; None where ours does.

    `extras`: whether the call asks for what torch's fused kernels lack (returned weights, lengths, dropout on the CPU,
    a mask with `is_causal` or with a gradient).
    """
    if extras:
        return None
    if not query.is_cpu:
        return f"plain attention on {query.device}, where torch's kernels are as good as it gets"
    if query.dtype not in FUSED_DTYPES:
        return f"plain attention in {query.dtype}; torch's kernel multiplies in it, ours in float32"
    return why_not_fused(query)


def attention_op(query: Tensor, value: Tensor):
    """What serves such tensors: the operator where there is a kernel, else the reference, which any exporter takes."""
    fused = why_not_fused(query) is None and not (query.is_cuda and _too_wide(query, value))
    return attention_ops.attention if fused else reference_attention.attention


def _too_wide(query: Tensor, value: Tensor) -> bool:
    """Whether a head has no room in the registers of a GPU's kernel."""
    from ..kernels.tiles import WIDEST

    return max(query.size(-1), value.size(-1)) > WIDEST.get(query.dtype, 0)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    lengths=None,
    return_weights: bool = False,
    average_weights: bool = False,
    empty_rows: str = "zeros",
):
    """softmax(scale Q K^T + mask) V. Equivalent to: torch.nn.functional.scaled_dot_product_attention, and more.

    Args:
        query: (B, H, L, E); any number of leading dimensions, or none, broadcast against key's and value's. With three
            there is one head, (B, L, E); with more than four, B stands for all but the last three.
        key, value: (B, H, S, E) and (B, H, S, V); with `enable_gqa` fewer heads, that divide H.
        attn_mask: two dimensions or more, broadcastable to (B, H, L, S), read through its strides; bool: True takes
            part; else added to the scores, and differentiable; -inf takes no part. With `is_causal` both hold.
        dropout_p: the probability of dropping a weight, whenever it is more than 0.
        is_causal: query i sees the keys up to i, also where L and S differ.
        scale: of the scores; 1 / sqrt(E) where None.
        lengths: (B,) integers, 0 <= length <= S: the keys of each row that take part; one integer where there is no
            B. What lies after them is not read, and may be NaN.
        return_weights: also returns the weights, after dropout: (B, H, L, S), or with `average_weights` their mean over
            the heads (B, L, S), without the others ever existing.
        empty_rows: what a query gets that no key takes part for: "zeros", "nan" or "uniform", 1 / S of each key.
            torch gives zeros or NaN, as its kernels happen to.

    Returns:
        output (B, H, L, V), or (output, weights).

    Raises:
        RuntimeError, IndexError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the
            message.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name}: expected a Tensor, got {type(tensor).__name__}")
    extras = (
        return_weights
        or lengths is not None
        or empty_rows != "zeros"
        or (attn_mask is not None and (is_causal or attn_mask.requires_grad))
        or (query.is_cpu and dropout_p > 0)
    )
    torchs = torch.nn.functional.scaled_dot_product_attention
    if query.is_nested and not extras:
        return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if torch.is_autocast_enabled(query.device.type):
        query, key, value, attn_mask = map(autocast, (query, key, value, attn_mask))
    check(query, key, value, dropout_p, empty_rows)
    batch, heads = batch_and_heads(query, key, value, enable_gqa)
    shape = (*batch, *heads, query.size(-2), key.size(-2))
    mask = None if attn_mask is None else broadcastable(attn_mask, shape, query)
    if why_torch_serves(query, extras=extras) is not None:
        return torchs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if enable_gqa and key.size(-3) != value.size(-3):
        key, value = (x.repeat_interleave(heads[0] // x.size(-3), -3) for x in (key, value))
    query_4d, key_4d, value_4d = (
        four_dimensions(x, batch, x.shape[-3:-2] if enable_gqa else heads) for x in (query, key, value)
    )
    weights = "none" if not return_weights else "average" if average_weights else "heads"
    output, *alphas = attention_op(query_4d, value_4d)(
        query_4d,
        key_4d,
        value_4d,
        [] if mask is None else [mask_4d(mask, batch, heads)],
        None if lengths is None else checked_lengths(lengths, batch, key.size(-2), query.device).flatten(),
        dropout_seed(query) if dropout_p else None,
        is_causal,
        dropout_p,
        # a width of zero: the scores are empty sums
        (query.size(-1) or 1) ** -0.5 if scale is None else scale,
        weights,
        empty_rows,
    )
    output = output.reshape(*shape[:-1], value.size(-1))
    if not return_weights:
        return output
    return output, alphas[0].reshape((*batch, *shape[-2:]) if average_weights else shape)


def additive_attention(
    query: Tensor,
    key: Tensor,
    score_weight: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    lengths=None,
    empty_rows: str = "zeros",
) -> tuple[Tensor, Tensor]:
    """softmax(score_weight . tanh(query_i + key_j)) value: Bahdanau, Cho, Bengio, arXiv 1409.0473.

    Args:
        query: (B, L, A) and key: (B, S, A), both projected. score_weight: (A,). value: (B, S, V).
        attn_mask, lengths, empty_rows: as for `scaled_dot_product_attention`, the mask broadcastable to (B, L, S).

    Returns:
        output (B, L, V) and the weights (B, L, S).

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    for name, tensor, rank in (
        ("query", query, 3),
        ("key", key, 3),
        ("value", value, 3),
        ("score_weight", score_weight, 1),
    ):
        if tensor.dim() != rank:
            raise RuntimeError(f"{name}: expected {rank} dimensions, got {tensor.dim()}")
    if not (query.size(0) == key.size(0) == value.size(0) and key.size(1) == value.size(1)):
        raise RuntimeError(
            f"key, value: expected (B, S, width) with B = {query.size(0)} as in query, got {tuple(key.shape)} and "
            f"{tuple(value.shape)}"
        )
    if not query.size(2) == key.size(2) == score_weight.size(0):
        raise RuntimeError(
            f"key, score_weight: expected a width of {query.size(2)} as in query, got {key.size(2)} and "
            f"{score_weight.size(0)}"
        )
    check_empty_rows(empty_rows)
    masks = []
    if attn_mask is not None:
        shape = (query.size(0), query.size(1), key.size(1))
        masks = [broadcastable(attn_mask, shape, query)]
    if lengths is not None:
        lengths = checked_lengths(lengths, query.shape[:1], key.size(1), query.device)
    fused = why_not_fused(query) is None
    op = torch.ops.seq2seq_fast.additive_attention if fused else reference_attention.additive_attention
    return tuple(op(query, key, score_weight, value, masks, lengths, empty_rows))


def dropout_seed(like: Tensor) -> Tensor:
    """One int64 from torch's generator, on the device of `like`."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=like.device)
