"""Additive attention backward, deterministic: the gradients of the scores first, then one kernel for each gradient.

tanh is computed again in each, chunk by chunk of the width: (L, S) numbers go through memory, never (L, S, A).
"""

import torch
import triton
import triton.language as tl

from . import tiles
from .additive_arguments import AdditiveArguments
from .additive_attention import additive_score_tile, load_block, tanh_block


@triton.jit
def additive_backward_scores_kernel(
    Q, K, SCORE_WEIGHT, V, D_OUT, D_WEIGHTS, LSE, WEIGHTS, D_SCORES, MASK_0, MASK_1, LENGTHS,
    strides_q, strides_k, strides_v, stride_w, strides_do, strides_dw, strides_0, strides_1,
    queries, keys, width, value_width,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """The weights (B, L, S), as d_value reads them, and the gradient of the scores."""
    blocks = tl.cdiv(queries, BLOCK_M)
    b = tl.program_id(0) // blocks
    rows = tl.program_id(0) % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    owner = b.to(tl.int64) * queries + rows
    lse = tl.load(LSE + owner, mask=rows < queries, other=float("inf"))
    empty = lse == float("inf")
    total = tl.zeros([BLOCK_M], ACC)
    delta = tl.zeros([BLOCK_M], ACC)
    log2_e = tl.full([1], 1.4426950408889634, ACC)
    for first in range(0, limit, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        s = additive_score_tile(
            Q, K, SCORE_WEIGHT, MASK_0, MASK_1, strides_q, strides_k, stride_w, strides_0, strides_1,
            b, rows, columns, queries, limit, width, KIND_0, KIND_1, ACC, BLOCK_M, BLOCK_N, BLOCK_A,
        )  # fmt: skip
        p = tl.exp2(s - (lse * log2_e)[:, None])
        d_p = tl.zeros([BLOCK_M, BLOCK_N], ACC)
        if D_OUT is not None:
            for start in range(0, value_width, BLOCK_A):
                c = start + tl.arange(0, BLOCK_A)
                d_out = load_block(D_OUT, strides_do, b, rows, queries, c, value_width, ACC)
                x = load_block(V, strides_v, b, columns, limit, c, value_width, ACC)
                d_p += tl.sum(d_out[:, None, :] * x[None, :, :], 2)
        if D_WEIGHTS is not None:
            d_p += load_block(D_WEIGHTS, strides_dw, b, rows, queries, columns, limit, ACC)
        d_p = tl.where(empty[:, None], 0.0, d_p)  # what comes back from a NaN is one
        total += tl.sum(p, 1)
        delta += tl.sum(p * d_p, 1)
        at = owner[:, None] * keys + columns[None, :]
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        tl.store(WEIGHTS + at, p, mask=inside)
        tl.store(D_SCORES + at, d_p, mask=inside)
    # normalised anew: the rounding of lse would be the largest error
    total = tl.where(empty, 1.0, total)
    delta = delta / total
    tl.debug_barrier()  # a thread reads what another stored
    for first in range(0, keys, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        at = owner[:, None] * keys + columns[None, :]
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        p = tl.load(WEIGHTS + at, mask=inside, other=0.0) / total[:, None]
        d_s = p * (tl.load(D_SCORES + at, mask=inside, other=0.0) - delta[:, None])
        if EMPTY_ROWS == 2:
            p = tl.where(empty[:, None], tl.full([1, 1], 1.0, ACC) / keys, p)
        written = (rows[:, None] < queries) & (columns[None, :] < keys)
        tl.store(WEIGHTS + at, p, mask=written)
        tl.store(D_SCORES + at, d_s, mask=written)


@triton.jit
def additive_backward_queries_kernel(
    Q, K, SCORE_WEIGHT, D_SCORES, D_Q, D_SCORE_WEIGHT, LENGTHS, strides_q, strides_k, stride_w, queries, keys, width,
    HAS_LENGTHS: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    """d_query, and for each block of queries its part of d_score_weight."""
    chunks, blocks = tl.cdiv(width, BLOCK_A), tl.cdiv(queries, BLOCK_M)
    a = tl.program_id(0) % chunks * BLOCK_A + tl.arange(0, BLOCK_A)
    block = tl.program_id(0) // chunks
    b = block // blocks
    rows = block % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    owner = b.to(tl.int64) * queries + rows
    d_q = tl.zeros([BLOCK_M, BLOCK_A], ACC)
    d_w = tl.zeros([BLOCK_A], ACC)
    for first in range(0, limit, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        t, w = tanh_block(
            Q, K, SCORE_WEIGHT, strides_q, strides_k, stride_w, b, rows, columns, a, queries, limit, width, ACC
        )
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        d_s = tl.load(D_SCORES + owner[:, None] * keys + columns[None, :], mask=inside, other=0.0)[:, :, None]
        d_q += tl.sum(d_s * w * (1 - t * t), 1)
        d_w += tl.sum(tl.sum(d_s * t, 1), 0)
    inside = (rows[:, None] < queries) & (a[None, :] < width)
    tl.store(D_Q + owner[:, None] * width + a[None, :], d_q.to(D_Q.dtype.element_ty), mask=inside)
    tl.store(D_SCORE_WEIGHT + block.to(tl.int64) * width + a, d_w, mask=a < width)


@triton.jit
def additive_backward_keys_kernel(
    Q, K, SCORE_WEIGHT, D_SCORES, D_K, LENGTHS, strides_q, strides_k, stride_w, queries, keys, width,
    HAS_LENGTHS: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    chunks, blocks = tl.cdiv(width, BLOCK_A), tl.cdiv(keys, BLOCK_N)
    a = tl.program_id(0) % chunks * BLOCK_A + tl.arange(0, BLOCK_A)
    b = tl.program_id(0) // chunks // blocks
    columns = tl.program_id(0) // chunks % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    d_k = tl.zeros([BLOCK_N, BLOCK_A], ACC)
    for start in range(0, queries, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        t, w = tanh_block(
            Q, K, SCORE_WEIGHT, strides_q, strides_k, stride_w, b, rows, columns, a, queries, limit, width, ACC
        )
        at = D_SCORES + (b.to(tl.int64) * queries + rows[:, None]) * keys + columns[None, :]
        d_s = tl.load(at, mask=(rows[:, None] < queries) & (columns[None, :] < limit), other=0.0)[:, :, None]
        d_k += tl.sum(d_s * w * (1 - t * t), 0)
    at = D_K + (b.to(tl.int64) * keys + columns[:, None]) * width + a[None, :]
    tl.store(at, d_k.to(D_K.dtype.element_ty), mask=(columns[:, None] < keys) & (a[None, :] < width))


@triton.jit
def additive_backward_values_kernel(
    WEIGHTS, D_OUT, D_V, LSE, LENGTHS, strides_do, queries, keys, value_width,
    HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_A: tl.constexpr,
):  # fmt: skip
    chunks, blocks = tl.cdiv(value_width, BLOCK_A), tl.cdiv(keys, BLOCK_N)
    c = tl.program_id(0) % chunks * BLOCK_A + tl.arange(0, BLOCK_A)
    b = tl.program_id(0) // chunks // blocks
    columns = tl.program_id(0) // chunks % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    d_v = tl.zeros([BLOCK_N, BLOCK_A], ACC)
    for start in range(0, queries, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        owner = b.to(tl.int64) * queries + rows
        inside = (rows[:, None] < queries) & (columns[None, :] < limit)
        p = tl.load(WEIGHTS + owner[:, None] * keys + columns[None, :], mask=inside, other=0.0)
        d_out = load_block(D_OUT, strides_do, b, rows, queries, c, value_width, ACC)
        if EMPTY_ROWS == 1:
            lse = tl.load(LSE + owner, mask=rows < queries, other=float("inf"))
            d_out = tl.where((lse == float("inf"))[:, None], 0.0, d_out)
        d_v += tl.sum(p[:, :, None] * d_out[:, None, :], 0)
    at = D_V + (b.to(tl.int64) * keys + columns[:, None]) * value_width + c[None, :]
    tl.store(at, d_v.to(D_V.dtype.element_ty), mask=(columns[:, None] < keys) & (c[None, :] < value_width))


def additive_attention_backward(
    d_outputs, output, lse, needs, query, key, score_weight, value, masks, lengths, empty_rows
):
    """The gradients of query, key, score_weight, value and the masks; empty where not asked for."""
    a = AdditiveArguments(query, key, score_weight, value, masks, lengths, empty_rows)
    inputs = (query, key, score_weight, value, *masks)
    gradients = [x.new_zeros(x.shape if need else 0) for x, need in zip(inputs, needs, strict=True)]
    if a.nothing:
        return gradients
    d_output, d_weights = d_outputs
    weights, d_scores = (lse.new_empty(a.batch, a.queries, a.keys) for _ in range(2))
    strides_q, strides_k, _, stride_w = a.strides
    strides_do, strides_dw = ((0, 0, 0) if d is None else d.stride() for d in d_outputs)
    tile = tiles.additive(a.dtype, a.queries)
    row_blocks, key_blocks = triton.cdiv(a.queries, tile["BLOCK_M"]), triton.cdiv(a.keys, tile["BLOCK_N"])
    chunks, value_chunks = (triton.cdiv(n, tile["BLOCK_A"]) for n in (query.size(-1), a.value_width))
    sums = {"HAS_LENGTHS": a.constants["HAS_LENGTHS"], "ACC": a.constants["ACC"], **tile}

    additive_backward_scores_kernel[(a.batch * row_blocks,)](
        *a.tensors, d_output, d_weights, lse, weights, d_scores, *a.extras,
        *a.strides, strides_do, strides_dw, *a.mask_strides, *a.sizes, **a.constants, **tile,
    )  # fmt: skip
    width = query.size(-1)
    if (needs[0] or needs[2]) and width:
        d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        parts = lse.new_empty(a.batch * row_blocks, width)
        additive_backward_queries_kernel[(a.batch * row_blocks * chunks,)](
            query, key, score_weight, d_scores, d_query, parts, lengths, strides_q, strides_k, stride_w,
            a.queries, a.keys, width, **sums,
        )  # fmt: skip
        gradients[0] = d_query if needs[0] else gradients[0]
        gradients[2] = parts.sum(0).to(score_weight.dtype) if needs[2] else gradients[2]
    if needs[1] and width:
        gradients[1] = torch.empty_like(key, memory_format=torch.contiguous_format)
        additive_backward_keys_kernel[(a.batch * key_blocks * chunks,)](
            query, key, score_weight, d_scores, gradients[1], lengths, strides_q, strides_k, stride_w,
            a.queries, a.keys, width, **sums,
        )  # fmt: skip
    if needs[3] and d_output is not None and a.value_width:
        gradients[3] = torch.empty_like(value, memory_format=torch.contiguous_format)
        additive_backward_values_kernel[(a.batch * key_blocks * value_chunks,)](
            weights, d_output, gradients[3], lse, lengths, strides_do, a.queries, a.keys, a.value_width,
            EMPTY_ROWS=a.constants["EMPTY_ROWS"], **sums,
        )  # fmt: skip
    for k, mask in enumerate(masks, 4):
        if needs[k]:
            gradients[k] = d_scores.sum_to_size(mask.shape).to(mask.dtype)
    return gradients
