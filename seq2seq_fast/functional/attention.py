"""Attention: torch's scaled_dot_product_attention with what it lacks, and the additive score."""

import importlib.util

import torch
from torch import Tensor

from .. import _native, attention_ops, reference_attention
from .recurrent import why_not_fused

FUSED_DTYPES = (torch.float32, torch.float64)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def why_torch_serves(query: Tensor, *, extras: bool) -> str | None:
    """Why torch's own attention serves `query`, in one sentence; None where ours does.

    `extras`: whether the call asks for what torch's fused kernels lack (returned weights, lengths, dropout on the CPU,
    a mask with `is_causal` or with a gradient).
    """
    if extras or (query.is_cpu and query.dtype in FUSED_DTYPES and _native.extension is not None):
        return None
    if query.is_cpu and query.dtype not in FUSED_DTYPES:
        return f"plain attention in {query.dtype}; torch's kernel multiplies in it, ours in float32"
    return f"plain attention on {query.device}, where torch's kernels are as good as it gets"


def attention_op(query: Tensor, value: Tensor):
    """The operator for such tensors: fused where there is a kernel, else the reference in plain operations."""
    fused = _triton_serves(query, value) if query.is_cuda else why_not_fused(query) is None
    return attention_ops.attention if fused else torch.ops.seq2seq_fast.attention_composite


def _triton_serves(query: Tensor, value: Tensor) -> bool:
    """The kernels need triton, and registers for the width of a head."""
    if not HAS_TRITON or _native.extension is None:  # the extension has the derivative
        return False
    from ..kernels.tiles import WIDEST

    return max(query.size(-1), value.size(-1)) <= WIDEST.get(query.dtype, 0)


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
        query: (B, H, L, E); any number of leading dimensions, or none, broadcast against key's and value's.
        key, value: (B, H, S, E) and (B, H, S, V); with `enable_gqa` fewer heads, that divide H.
        attn_mask: broadcastable to (B, H, L, S), read through its strides; bool: True takes part; else added to the
            scores, and differentiable; -inf takes no part. With `is_causal` both hold.
        dropout_p: the probability of dropping a weight, whenever it is more than 0.
        is_causal: query i sees the keys up to i, also where L and S differ.
        scale: of the scores; 1 / sqrt(E) where None.
        lengths: (B,) integers, 0 <= length <= S: the keys of each row that take part. What lies after them is not
            read, and may be NaN.
        return_weights: also returns the weights, after dropout: (B, H, L, S), or with `average_weights` their mean over
            the heads (B, L, S), without the others ever existing.
        empty_rows: what a query gets that no key takes part for: "zeros", "nan" or "uniform", 1 / S of each key.
            torch gives zeros or NaN, as its kernels happen to.

    Returns:
        output (B, H, L, V), or (output, weights).

    Raises:
        RuntimeError, ValueError, TypeError: an argument of a wrong rank, size, dtype or value, named in the message.
    """
    _check(query, key, value, dropout_p, empty_rows)
    extras = (
        return_weights
        or lengths is not None
        or empty_rows != "zeros"
        or (attn_mask is not None and (is_causal or attn_mask.requires_grad))
        or (query.is_cpu and dropout_p > 0)
    )
    if why_torch_serves(query, extras=extras) is not None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    leading = query.shape[:-3] if query.dim() != 3 or enable_gqa else query.shape[:1]
    query_4d, key_4d, value_4d = _four_dimensions(query, key, value, enable_gqa)
    masks = [] if attn_mask is None else [_mask(attn_mask, query, query_4d, key_4d)]
    weights = "none" if not return_weights else "average" if average_weights else "heads"
    results = attention_op(query_4d, value_4d)(
        query_4d,
        key_4d,
        value_4d,
        masks,
        None if lengths is None else checked_lengths(lengths, query_4d, key_4d.size(2)),
        dropout_seed(query) if dropout_p else None,
        is_causal,
        dropout_p,
        query.size(-1) ** -0.5 if scale is None else scale,
        weights,
        empty_rows,
    )
    heads = query.shape[len(leading) : -2]
    output = results[0].reshape(*leading, *heads, *results[0].shape[-2:])
    if not return_weights:
        return output
    return output, results[1].reshape(*leading, *(() if average_weights else heads), *results[1].shape[-2:])


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
    _check_empty_rows(empty_rows)
    masks = []
    if attn_mask is not None:
        shape = (query.size(0), query.size(1), key.size(1))
        masks = [_broadcastable(attn_mask, shape, query)]
    lengths = None if lengths is None else checked_lengths(lengths, query, key.size(1))
    ops = torch.ops.seq2seq_fast
    fused = query.is_cpu and why_not_fused(query) is None
    op = ops.additive_attention if fused else ops.additive_attention_composite
    return tuple(op(query, key, score_weight, value, masks, lengths, empty_rows))


def dropout_seed(like: Tensor) -> Tensor:
    """One int64 from torch's generator, on the device of `like`."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), device=like.device)


def checked_lengths(lengths, query: Tensor, keys: int) -> Tensor:
    """`lengths` as int64 on query's device."""
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths: expected integers, got {lengths.dtype}")
    if lengths.shape != query.shape[:1]:
        raise RuntimeError(f"lengths: expected shape ({query.size(0)},), one a row, got {tuple(lengths.shape)}")
    if not torch.compiler.is_compiling() and lengths.is_cpu and lengths.numel():
        low, high = (int(x) for x in lengths.aminmax())
        if low < 0 or high > keys:
            raise RuntimeError(f"lengths: expected 0 <= length <= {keys}, the keys, got {low if low < 0 else high}")
    return lengths.to(query.device, torch.int64)


def _check_empty_rows(empty_rows: str) -> None:
    if empty_rows not in reference_attention.EMPTY_ROWS:
        raise ValueError(f"empty_rows: expected one of {', '.join(reference_attention.EMPTY_ROWS)}, got {empty_rows!r}")


def _check(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, empty_rows: str) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise RuntimeError(f"{name}: expected at least 2 dimensions (..., length, width), got {tensor.dim()}")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            raise RuntimeError(
                f"{name}: expected {query.dtype} on {query.device} like query, got {tensor.dtype} on {tensor.device}"
            )
    if not query.is_floating_point():
        raise RuntimeError(f"query: expected a floating dtype, got {query.dtype}")
    if key.size(-1) != query.size(-1):
        raise RuntimeError(f"key: expected a width of {query.size(-1)} like query, got {key.size(-1)}")
    if value.size(-2) != key.size(-2):
        raise RuntimeError(f"value: expected {key.size(-2)} rows like key, got {value.size(-2)}")
    if not 0 <= dropout_p <= 1:
        raise RuntimeError(f"dropout_p: expected a probability between 0 and 1, got {dropout_p}")
    _check_empty_rows(empty_rows)


def _four_dimensions(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> list[Tensor]:
    """The three as (B, heads, length, width), leading dimensions broadcast and made one."""
    if query.dim() == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]:
        return [query, key, value]
    tensors = [x.unsqueeze(0) if x.dim() == 2 else x for x in (query, key, value)]
    if not enable_gqa and max(x.dim() for x in tensors) == 3:
        tensors = [x.unsqueeze(1) for x in tensors]  # (B, L, E): one head
    heads = [x.size(-3) for x in tensors]
    if enable_gqa:
        if heads[1] != heads[2] or not heads[1] or heads[0] % heads[1]:
            raise RuntimeError(f"key, value: expected heads that divide query's {heads[0]}, got {heads[1]}, {heads[2]}")
    else:
        heads = _broadcast([(h,) for h in heads], "heads") * 3
    leading = _broadcast([x.shape[:-3] for x in tensors], "leading dimensions")
    expanded = [x.expand(*leading, h, *x.shape[-2:]) for x, h in zip(tensors, heads, strict=True)]
    return [x.unsqueeze(0) if not leading else x.flatten(0, len(leading) - 1) for x in expanded]


def _broadcast(shapes, what: str) -> tuple[int, ...]:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise RuntimeError(
            f"query, key, value: expected {what} that broadcast, got {', '.join(str(tuple(s)) for s in shapes)}"
        ) from None


def _mask(attn_mask: Tensor, query: Tensor, query_4d: Tensor, key_4d: Tensor) -> Tensor:
    """attn_mask as 4-D, broadcastable to (B, H, L, S)."""
    shape = (*query_4d.shape[:3], key_4d.size(2))
    if query.dim() == 3 and attn_mask.dim() == 3 and query_4d.size(1) == 1:
        attn_mask = attn_mask.unsqueeze(1)
    elif attn_mask.dim() > 4:
        leading = attn_mask.dim() - 3
        whole = (*query.shape[:-3], *attn_mask.shape[-3:])
        attn_mask = attn_mask.expand(whole).flatten(0, leading - 1)
    return _broadcastable(attn_mask, shape, query)


def _broadcastable(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> Tensor:
    """`mask` with as many dimensions as `shape`, bool or in query's dtype."""
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(f"attn_mask: expected dtype bool, float or {query.dtype} like query, got {mask.dtype}")
    if mask.device != query.device:
        raise RuntimeError(f"attn_mask: expected a tensor on {query.device} like query, got one on {mask.device}")
    if mask.dim() > len(shape) or any(m not in (1, s) for m, s in zip(mask.shape[::-1], shape[::-1], strict=False)):
        raise RuntimeError(f"attn_mask: expected a shape that broadcasts to {shape}, got {tuple(mask.shape)}")
    mask = mask[(None,) * (len(shape) - mask.dim())]
    return mask if mask.dtype == torch.bool else mask.to(query.dtype)
