"""Attention forward: one program a block of queries of a head, an online softmax over blocks of keys.

Tri Dao, "FlashAttention-2", arXiv 2307.08691, in base 2. Contract: reference_attention.attention.
"""

import torch
import triton
import triton.language as tl

from . import attention_weights
from .arguments import Arguments
from .attention_decode import decode, decode_splits
from .scores import grow, keep_tile, score_tile


@triton.jit
def attention_forward_kernel(
    Q, K, V, OUT, LSE, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_v, strides_out, strides_0, strides_1,
    heads, queries, keys,
    E: tl.constexpr, VALUE_E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(queries, BLOCK_M)
    # heads fastest, so that a mask that is the same for all heads is read from the second-level cache
    head = tl.program_id(0) % heads
    b = tl.program_id(0) // heads // blocks
    rows = tl.program_id(0) // heads % blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    e, v = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_V)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    wide, kv = b.to(tl.int64), (head // GROUP).to(tl.int64)
    q = tl.load(
        Q + wide * strides_q[0] + head.to(tl.int64) * strides_q[1] + rows[:, None].to(tl.int64) * strides_q[2]
        + e[None, :] * strides_q[3],
        mask=(rows[:, None] < queries) & (e[None, :] < E), other=0.0,
    )  # fmt: skip
    K += wide * strides_k[0] + kv * strides_k[1]
    V += wide * strides_v[0] + kv * strides_v[1]
    most = tl.full([BLOCK_M], -float("inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    out = tl.zeros([BLOCK_M, BLOCK_V], ACC)
    uniform = tl.zeros([BLOCK_M, BLOCK_V], ACC)
    end = limit
    if CAUSAL and EMPTY_ROWS != 2:
        end = tl.minimum(limit, (tl.program_id(0) // heads % blocks + 1) * BLOCK_M)
    for first in range(0, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = tl.load(
            K + columns[None, :].to(tl.int64) * strides_k[2] + e[:, None] * strides_k[3],
            mask=(columns[None, :] < limit) & (e[:, None] < E), other=0.0,
        )  # fmt: skip
        products = tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC)
        s = score_tile(
            products, rows, columns, b, head, queries, limit, MASK_0, MASK_1, strides_0, strides_1,
            SCALE, CAUSAL, KIND_0, KIND_1,
        )  # fmt: skip
        p, most, total, shrink = grow(s, most, total)
        x = tl.load(
            V + columns[:, None].to(tl.int64) * strides_v[2] + v[None, :] * strides_v[3],
            mask=(columns[:, None] < limit) & (v[None, :] < VALUE_E), other=0.0,
        )  # fmt: skip
        if THRESHOLD:
            keep = keep_tile(SEED, rows, first, b * heads + head, THRESHOLD, BLOCK_N)
            p = tl.where(keep, p, 0.0)
        if EMPTY_ROWS == 2:
            ones = tl.where((columns < limit)[None, :] & (rows >= 0)[:, None], 1.0, 0.0)
            if THRESHOLD:
                ones = tl.where(keep, ones, 0.0)
            uniform = tl.dot(ones.to(x.dtype), x, uniform, input_precision=PRECISION, out_dtype=ACC)
        out = tl.dot(p.to(x.dtype), x, out * shrink[:, None], input_precision=PRECISION, out_dtype=ACC)
    empty = total == 0.0
    kept = tl.full([1], KEPT, ACC)
    out = out * (kept / tl.where(empty, 1.0, total))[:, None]
    if EMPTY_ROWS == 1:
        out = tl.where(empty[:, None], float("nan"), out)
    if EMPTY_ROWS == 2:
        out = tl.where(empty[:, None], uniform * (kept / keys)[:, None], out)
    at = (
        OUT + wide * strides_out[0] + head.to(tl.int64) * strides_out[1] + rows[:, None].to(tl.int64) * strides_out[2]
        + v[None, :] * strides_out[3]
    )  # fmt: skip
    tl.store(at, out.to(OUT.dtype.element_ty), mask=(rows[:, None] < queries) & (v[None, :] < VALUE_E))
    ln_2 = tl.full([1], 0.6931471805599453, ACC)
    lse = tl.where(empty, float("inf"), (most + tl.log2(tl.where(empty, 1.0, total))) * ln_2)
    tl.store(LSE + (wide * heads + head) * queries + rows, lse, mask=rows < queries)


def attention_train(query, key, value, masks, lengths, seed, causal, dropout, scale, weights, empty_rows):
    """[output, the weights if asked for, lse]."""
    a = Arguments(query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows)
    output = query.new_empty(*query.shape[:3], value.size(-1))
    lse = torch.empty(query.shape[:3], dtype=a.sum_dtype, device=query.device)
    if a.nothing:
        output.fill_(torch.nan if empty_rows == "nan" else 0)
        lse.fill_(torch.inf)
    elif splits := decode_splits(a):
        decode(a, splits, output, lse)
    else:
        tile = a.tile("forward")
        grid = (a.batch * a.heads * triton.cdiv(a.queries, tile["BLOCK_M"]),)
        attention_forward_kernel[grid](
            *a.tensors, output, lse, *a.extras, *a.strides, output.stride(), *a.mask_strides,
            a.heads, a.queries, a.keys, **a.constants, **a.value_constants, **tile,
        )  # fmt: skip
    if weights == "none":
        return [output, lse]
    return [output, attention_weights.weights(a, lse, weights == "average"), lse]


def attention(*args):
    """[output, and the weights if asked for]."""
    return attention_train(*args)[:-1]
