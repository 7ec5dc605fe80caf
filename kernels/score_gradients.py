"""What the kernels of attention backward share: a tile of weights and their gradients, made again from lse."""

import triton
import triton.language as tl

from .scores import keep_tile, score_tile


@triton.jit
def weights_and_gradient(
    q, k, d_out, v, rows, columns, first, b, head, heads, queries, keys, limit, lse, D_WEIGHTS, strides_dw,
    MASK_0, MASK_1, SEED, strides_0, strides_1,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, KIND_0: tl.constexpr, KIND_1: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, HAS_D_WEIGHTS: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """For a tile: the weights, what dropout leaves of them, and the gradient of the weights before it."""
    products = tl.dot(q, tl.trans(k), input_precision=PRECISION, out_dtype=ACC)
    s = score_tile(
        products, rows, columns, b, head, queries, limit, MASK_0, MASK_1, strides_0, strides_1,
        SCALE, CAUSAL, KIND_0, KIND_1,
    )  # fmt: skip
    p = tl.exp2(s - (lse * tl.full([1], 1.4426950408889634, ACC))[:, None])
    d_p = tl.dot(d_out, tl.trans(v), input_precision=PRECISION, out_dtype=ACC)
    if HAS_D_WEIGHTS:
        at = (
            D_WEIGHTS + b.to(tl.int64) * strides_dw[0] + head.to(tl.int64) * strides_dw[1]
            + rows[:, None].to(tl.int64) * strides_dw[2] + columns[None, :].to(tl.int64) * strides_dw[3]
        )  # fmt: skip
        d_p += tl.load(at, mask=(rows[:, None] < queries) & (columns[None, :] < limit), other=0.0).to(ACC)
    if EMPTY_ROWS == 1:  # what comes back from a NaN is one
        d_p = tl.where((lse == float("inf"))[:, None], 0.0, d_p)
    left = p
    if EMPTY_ROWS == 2:
        share = tl.where((columns < limit)[None, :], tl.full([1, 1], 1.0, ACC) / keys, 0.0)
        left = tl.where(((lse == float("inf")) & (rows < queries))[:, None], share, p)
    if THRESHOLD:
        keep = keep_tile(SEED, rows, first, (b * heads + head).to(tl.int32), THRESHOLD, BLOCK_N)
        left = tl.where(keep, left, 0.0)
        d_p = tl.where(keep, d_p, 0.0)
    kept = tl.full([1, 1], KEPT, ACC)
    return p, left * kept, d_p * kept


@triton.jit
def load_rows(X, strides, b, h, rows, count, width: tl.constexpr, BLOCK: tl.constexpr):
    """(rows, BLOCK) of a head, zeros beyond `count` rows and `width`."""
    e = tl.arange(0, BLOCK)
    at = (
        X + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1] + rows[:, None].to(tl.int64) * strides[2]
        + e[None, :] * strides[3]
    )  # fmt: skip
    return tl.load(at, mask=(rows[:, None] < count) & (e[None, :] < width), other=0.0)
