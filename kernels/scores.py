"""What forward and backward of attention share: a tile of scores, from its masks to what dropout keeps of it.

Twins: csrc/cpu/softmax.h and reference_attention.py.
"""

import triton
import triton.language as tl


@triton.jit
def apply_mask(scores, MASK, base, rows, columns, stride_i, stride_j, inside, BOOLEAN: tl.constexpr):
    """Scores in base 2 with a mask: -inf where it takes no part."""
    at = MASK + base + rows[:, None].to(tl.int64) * stride_i + columns[None, :].to(tl.int64) * stride_j
    if BOOLEAN:
        return tl.where(tl.load(at, mask=inside, other=0) != 0, scores, -float("inf"))
    added = tl.load(at, mask=inside, other=0.0).to(scores.dtype)
    log2_e = tl.full([1, 1], 1.4426950408889634, scores.dtype)
    return tl.where(added == -float("inf"), -float("inf"), scores + added * log2_e)


@triton.jit
def score_tile(
    products, rows, columns, b, h, queries, limit, MASK_0, MASK_1, strides_0, strides_1,
    SCALE: tl.constexpr, CAUSAL: tl.constexpr, KIND_0: tl.constexpr, KIND_1: tl.constexpr,
):  # fmt: skip
    """Products (rows, columns) as scores in base 2, -inf where a key takes no part. KIND: 0 none, 1 bool, 2 float."""
    scores = products * tl.full([1, 1], SCALE * 1.4426950408889634, products.dtype)
    takes_part = (columns < limit)[None, :] & (rows < queries)[:, None]
    inside = takes_part
    if CAUSAL:
        takes_part = takes_part & (columns[None, :] <= rows[:, None])
    if KIND_0:
        base = b.to(tl.int64) * strides_0[0] + h.to(tl.int64) * strides_0[1]
        scores = apply_mask(scores, MASK_0, base, rows, columns, strides_0[2], strides_0[3], inside, KIND_0 == 1)
    if KIND_1:
        base = b.to(tl.int64) * strides_1[0] + h.to(tl.int64) * strides_1[1]
        scores = apply_mask(scores, MASK_1, base, rows, columns, strides_1[2], strides_1[3], inside, KIND_1 == 1)
    return tl.where(takes_part, scores, -float("inf"))


@triton.jit
def grow(s, most, total):
    """A row's greatest score and sum of exponentials with a tile more; the tile's, and by what those before it shrink.

    Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv 1805.02867.
    """
    new_most = tl.maximum(most, tl.max(s, 1))
    safe = tl.where(new_most == -float("inf"), 0.0, new_most)
    p = tl.exp2(s - safe[:, None])
    shrink = tl.exp2(most - safe)
    return p, new_most, total * shrink + tl.sum(p, 1), shrink


@triton.jit
def keep_tile(SEED, rows, first_column, head, THRESHOLD: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which weights dropout keeps, (rows, BLOCK_N), from `first_column`, a multiple of 4: dropout_keep's bits."""
    quads = (first_column // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
    zero = quads * 0 + rows[:, None] * 0
    w_0, w_1, w_2, w_3 = tl.philox(tl.load(SEED), zero + quads, zero + rows[:, None], zero + head, zero)
    words = tl.interleave(tl.interleave(w_0, w_2), tl.interleave(w_1, w_3))
    return (words.to(tl.uint32, bitcast=True) >> 8) >= THRESHOLD
