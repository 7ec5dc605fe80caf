"""What attention is given: whether it fits together, and in which shape the operator takes it."""

import math

import torch
from torch import Tensor

from ..reference_attention import EMPTY_ROWS


def checked_lengths(lengths, shape: tuple[int, ...], keys: int, device: torch.device) -> Tensor:
    """`lengths` as int64 on `device`."""
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths)
    if lengths.is_floating_point() or lengths.is_complex() or lengths.dtype == torch.bool:
        raise TypeError(f"lengths: expected integers, got {lengths.dtype}")
    if lengths.shape != shape:
        raise RuntimeError(f"lengths: expected shape {tuple(shape)}, one for each row, got {tuple(lengths.shape)}")
    lengths = lengths.to(torch.int64)
    # in the compiler and under vmap there are no values to look at
    hidden = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(lengths)
    if lengths.is_cpu and lengths.numel() and not hidden:
        low, high = (int(x) for x in lengths.aminmax())
        if low < 0 or high > keys:
            raise RuntimeError(f"lengths: expected 0 <= length <= {keys}, the keys, got {low if low < 0 else high}")
    return lengths.to(device)


def check_empty_rows(empty_rows: str) -> None:
    if empty_rows not in EMPTY_ROWS:
        raise ValueError(f"empty_rows: expected one of {', '.join(EMPTY_ROWS)}, got {empty_rows!r}")


def check(query: Tensor, key: Tensor, value: Tensor, dropout_p: float, empty_rows: str) -> None:
    """What does not depend on the leading dimensions."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.is_nested:
            raise RuntimeError(f"{name}: nested tensors go to torch's attention, which has no lengths and no weights")
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
    check_empty_rows(empty_rows)


def autocast(x: Tensor | None) -> Tensor | None:
    """`x` as autocast gives it to an operator that runs in the lower precision: never from float64, nor a bool."""
    if x is None or not x.is_floating_point() or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def batch_and_heads(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[tuple[int, ...], ...]:
    """The leading dimensions of the result: any number of the batch's, and the heads', if there is one."""
    tensors = (query, key, value)
    if not enable_gqa:
        leading = _broadcast([x.shape[:-2] for x in tensors])
        return (leading, ()) if len(leading) < 2 else (leading[:-1], leading[-1:])
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < 3:
            raise IndexError(f"{name}: expected at least 3 dimensions (..., heads, length, width), got {x.dim()}")
        if not x.size(-3) or query.size(-3) % x.size(-3):
            raise RuntimeError(f"{name}: expected heads that divide query's {query.size(-3)}, got {x.size(-3)}")
    return _broadcast([x.shape[:-3] for x in tensors]), query.shape[-3:-2]


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        raise RuntimeError(
            "query, key, value: expected leading dimensions that broadcast, got "
            f"{', '.join(str(tuple(s)) for s in shapes)}"
        ) from None


def four_dimensions(x: Tensor, batch: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    """`x`, whose leading dimensions broadcast to batch and heads, as (B, heads, length, width)."""
    if x.dim() == 4 and x.shape[:2] == (*batch, *heads):
        return x
    return x.expand(*batch, *heads, *x.shape[-2:]).reshape(math.prod(batch), math.prod(heads), *x.shape[-2:])


def mask_4d(mask: Tensor, batch: tuple[int, ...], heads: tuple[int, ...]) -> Tensor:
    """`mask`, with as many dimensions as the scores, as 4-D; copied only where it has two sizes to make one of."""
    if not heads:
        mask = mask.unsqueeze(-3)
    if any(size != 1 for size in mask.shape[:-3]):
        mask = mask.expand(*batch, *mask.shape[-3:])
    return mask.reshape(math.prod(mask.shape[:-3]), *mask.shape[-3:])


def broadcastable(mask: Tensor, shape: tuple[int, ...], query: Tensor) -> Tensor:
    """`mask` with as many dimensions as `shape`, bool or in query's dtype."""
    if mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise RuntimeError(f"attn_mask: expected dtype bool, float or {query.dtype} like query, got {mask.dtype}")
    if mask.device != query.device:
        raise RuntimeError(f"attn_mask: expected a tensor on {query.device} like query, got one on {mask.device}")
    if mask.dim() < 2:
        raise IndexError(f"attn_mask: expected at least 2 dimensions, queries and keys, got {mask.dim()}")
    # two comparisons: Dynamo makes no guard of `m not in (1, s)` where a size is symbolic
    pairs = zip(mask.shape[::-1], shape[::-1], strict=False)
    if mask.dim() > len(shape) or any(m != 1 and m != s for m, s in pairs):
        raise RuntimeError(f"attn_mask: expected a shape that broadcasts to {shape}, got {tuple(mask.shape)}")
    mask = mask[(None,) * (len(shape) - mask.dim())]
    return mask if mask.dtype == torch.bool else mask.to(query.dtype)
