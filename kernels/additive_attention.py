"""Additive attention forward: one program some queries of a row of the batch; the (L, S, A) sums stay in registers.

Contract: reference_attention.additive_attention.
"""

import torch
import triton
import triton.language as tl

from . import tiles
from .activations import tanh
from .additive_arguments import AdditiveArguments
from .scores import grow, score_tile


@triton.jit
def load_block(X, strides, b, rows, count, columns, width, ACC: tl.constexpr):
    """(rows, columns) of X[b], zeros beyond `count` rows and `width` columns."""
    at = (
        X + b.to(tl.int64) * strides[0] + rows[:, None].to(tl.int64) * strides[1]
        + columns[None, :].to(tl.int64) * strides[2]
    )  # fmt: skip
    return tl.load(at, mask=(rows[:, None] < count) & (columns[None, :] < width), other=0.0).to(ACC)


@triton.jit
def tanh_block(
    Q, K, SCORE_WEIGHT, strides_q, strides_k, stride_w, b, rows, columns, a, queries, limit, width, ACC: tl.constexpr
):
    """For a chunk `a` of the width: tanh(q + k), (rows, columns, a), and the score weights (1, 1, a)."""
    q = load_block(Q, strides_q, b, rows, queries, a, width, ACC)
    k = load_block(K, strides_k, b, columns, limit, a, width, ACC)
    w = tl.load(SCORE_WEIGHT + a * stride_w, mask=a < width, other=0.0).to(ACC)
    return tanh(q[:, None, :] + k[None, :, :]), w[None, None, :]


@triton.jit
def additive_score_tile(
    Q, K, SCORE_WEIGHT, MASK_0, MASK_1, strides_q, strides_k, stride_w, strides_0, strides_1,
    b, rows, columns, queries, limit, width,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """Scores (rows, columns) in base 2, -inf where a key takes no part."""
    sums = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for start in range(0, width, BLOCK_A):
        a = start + tl.arange(0, BLOCK_A)
        t, w = tanh_block(
            Q, K, SCORE_WEIGHT, strides_q, strides_k, stride_w, b, rows, columns, a, queries, limit, width, ACC
        )
        sums += tl.sum(t * w, 2)
    return score_tile(
        sums, rows, columns, b, b * 0, queries, limit, MASK_0, MASK_1, strides_0, strides_1, 1.0, False, KIND_0, KIND_1
    )


@triton.jit
def additive_forward_kernel(
    Q, K, SCORE_WEIGHT, V, OUT, WEIGHTS, LSE, SCORES, MASK_0, MASK_1, LENGTHS,
    strides_q, strides_k, strides_v, stride_w, strides_0, strides_1,
    queries, keys, width, value_width,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(queries, BLOCK_M)
    b = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    owner = b.to(tl.int64) * queries + rows
    most = tl.full([BLOCK_M], -float("inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    for first in range(0, limit, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        s = additive_score_tile(
            Q, K, SCORE_WEIGHT, MASK_0, MASK_1, strides_q, strides_k, stride_w, strides_0, strides_1,
            b, rows, columns, queries, limit, width, KIND_0, KIND_1, ACC, BLOCK_M, BLOCK_N, BLOCK_A,
        )  # fmt: skip
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        tl.store(SCORES + owner[:, None] * keys + columns[None, :], s, mask=inside)
        _, most, total, _ = grow(s, most, total)
    empty = total == 0.0
    most = tl.where(empty, 0.0, most)
    total = tl.where(empty, 1.0, total)
    share = 0.0
    if EMPTY_ROWS == 1:
        share = float("nan")
    if EMPTY_ROWS == 2:
        share = tl.full([1, 1], 1.0, ACC) / keys
    # scores that one thread stored are read by others, and overwritten where WEIGHTS is SCORES
    tl.debug_barrier()
    for start in range(0, value_width, BLOCK_A):
        c = start + tl.arange(0, BLOCK_A)
        out = tl.zeros([BLOCK_M, BLOCK_A], ACC)
        for first in range(0, limit, BLOCK_N):
            columns = first + tl.arange(0, BLOCK_N)
            inside = (rows[:, None] < queries) & (columns[None, :] < limit)
            s = tl.load(SCORES + owner[:, None] * keys + columns[None, :], mask=inside, other=-float("inf"))
            p = tl.exp2(s - most[:, None]) / total[:, None]
            if EMPTY_ROWS == 2:
                p = tl.where(empty[:, None], share, p)
            x = load_block(V, strides_v, b, columns, limit, c, value_width, ACC)
            out += tl.sum(p[:, :, None] * x[None, :, :], 1)
        if EMPTY_ROWS == 1:
            out = tl.where(empty[:, None], float("nan"), out)
        at = OUT + owner[:, None] * value_width + c[None, :]
        tl.store(at, out.to(OUT.dtype.element_ty), mask=(rows[:, None] < queries) & (c[None, :] < value_width))
    tl.debug_barrier()
    for first in range(0, keys, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        at = owner[:, None] * keys + columns[None, :]
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        s = tl.load(SCORES + at, mask=inside, other=-float("inf"))
        p = tl.where(empty[:, None], share, tl.exp2(s - most[:, None]) / total[:, None])
        tl.store(
            WEIGHTS + at, p.to(WEIGHTS.dtype.element_ty), mask=(rows[:, None] < queries) & (columns[None, :] < keys)
        )
    ln_2 = tl.full([1], 0.6931471805599453, ACC)
    tl.store(LSE + owner, tl.where(empty, float("inf"), (most + tl.log2(total)) * ln_2), mask=rows < queries)


def additive_attention_train(query, key, score_weight, value, masks, lengths, empty_rows):
    """[output, weights, lse]."""
    a = AdditiveArguments(query, key, score_weight, value, masks, lengths, empty_rows)
    output = query.new_empty(a.batch, a.queries, a.value_width)
    weights = query.new_empty(a.batch, a.queries, a.keys)
    lse = torch.empty(a.batch, a.queries, dtype=a.sum_dtype, device=query.device)
    if a.nothing:
        output.fill_(torch.nan if empty_rows == "nan" else 0)
        lse.fill_(torch.inf)
        return [output, weights, lse]
    scores = weights if weights.dtype == a.sum_dtype else torch.empty_like(weights, dtype=a.sum_dtype)
    tile = tiles.additive(a.dtype, a.queries)
    additive_forward_kernel[(a.batch * triton.cdiv(a.queries, tile["BLOCK_M"]),)](
        *a.tensors,
        output,
        weights,
        lse,
        scores,
        *a.extras,
        *a.strides,
        *a.mask_strides,
        *a.sizes,
        **a.constants,
        **tile,
    )
    return [output, weights, lse]


def additive_attention(*args):
    """[output, weights]."""
    return additive_attention_train(*args)[:-1]
