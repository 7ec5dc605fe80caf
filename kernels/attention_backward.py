"""Attention backward, deterministic: one kernel owns queries (d_query), one owns keys (d_key, d_value), one the masks.

Nothing is added to by two programs, which costs seven products where five would do with atomics.
"""

import torch
import triton
import triton.language as tl

from .arguments import Arguments
from .attention_backward_masks import mask_gradient
from .score_gradients import load_rows, weights_and_gradient


@triton.jit
def store_rows(X, x, strides, b, h, rows, count, width: tl.constexpr, BLOCK: tl.constexpr):
    e = tl.arange(0, BLOCK)
    at = (
        X + b.to(tl.int64) * strides[0] + h.to(tl.int64) * strides[1] + rows[:, None].to(tl.int64) * strides[2]
        + e[None, :] * strides[3]
    )  # fmt: skip
    tl.store(at, x.to(X.dtype.element_ty), mask=(rows[:, None] < count) & (e[None, :] < width))


@triton.jit
def attention_backward_queries_kernel(
    Q, K, V, OUT, D_OUT, D_WEIGHTS, LSE, DELTA, D_Q, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_v, strides_out, strides_do, strides_dw, strides_dq, strides_0, strides_1,
    heads, queries, keys,
    E: tl.constexpr, VALUE_E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, HAS_D_WEIGHTS: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(queries, BLOCK_M)
    head = tl.program_id(0) % heads
    b = tl.program_id(0) // heads // blocks
    block = tl.program_id(0) // heads % blocks
    rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    end = limit
    if CAUSAL:
        end = tl.minimum(limit, (block + 1) * BLOCK_M)
    q = load_rows(Q, strides_q, b, head, rows, queries, E, BLOCK_E)
    d_out = load_rows(D_OUT, strides_do, b, head, rows, queries, VALUE_E, BLOCK_V)
    owner = (b.to(tl.int64) * heads + head) * queries + rows
    lse = tl.load(LSE + owner, mask=rows < queries, other=float("inf"))
    # delta: the sum of a row's weights times their gradients, which without d_weights is the output times its own
    delta = tl.zeros([BLOCK_M], ACC)
    if HAS_D_WEIGHTS:
        for first in range(0, end, BLOCK_N):
            columns = first + tl.arange(0, BLOCK_N)
            k = load_rows(K, strides_k, b, head // GROUP, columns, limit, E, BLOCK_E)
            v = load_rows(V, strides_v, b, head // GROUP, columns, limit, VALUE_E, BLOCK_V)
            p, _, d_p = weights_and_gradient(
                q, k, d_out, v, rows, columns, first, b, head, heads, queries, keys, limit, lse, D_WEIGHTS, strides_dw,
                MASK_0, MASK_1, SEED, strides_0, strides_1,
                SCALE, CAUSAL, KIND_0, KIND_1, EMPTY_ROWS, THRESHOLD, KEPT, HAS_D_WEIGHTS, ACC, PRECISION, BLOCK_N,
            )  # fmt: skip
            delta += tl.sum(p * d_p, 1)
    else:
        out = load_rows(OUT, strides_out, b, head, rows, queries, VALUE_E, BLOCK_V)
        delta = tl.sum(d_out.to(ACC) * out.to(ACC), 1)
        delta = tl.where(lse == float("inf"), 0.0, delta)  # an empty row's output may be NaN
    tl.store(DELTA + owner, delta, mask=rows < queries)
    if D_Q is not None:
        d_q = tl.zeros([BLOCK_M, BLOCK_E], ACC)
        for first in range(0, end, BLOCK_N):
            columns = first + tl.arange(0, BLOCK_N)
            k = load_rows(K, strides_k, b, head // GROUP, columns, limit, E, BLOCK_E)
            v = load_rows(V, strides_v, b, head // GROUP, columns, limit, VALUE_E, BLOCK_V)
            p, _, d_p = weights_and_gradient(
                q, k, d_out, v, rows, columns, first, b, head, heads, queries, keys, limit, lse, D_WEIGHTS, strides_dw,
                MASK_0, MASK_1, SEED, strides_0, strides_1,
                SCALE, CAUSAL, KIND_0, KIND_1, EMPTY_ROWS, THRESHOLD, KEPT, HAS_D_WEIGHTS, ACC, PRECISION, BLOCK_N,
            )  # fmt: skip
            d_s = p * (d_p - delta[:, None])
            d_q = tl.dot(d_s.to(k.dtype), k, d_q, input_precision=PRECISION, out_dtype=ACC)
        store_rows(D_Q, d_q * tl.full([1, 1], SCALE, ACC), strides_dq, b, head, rows, queries, E, BLOCK_E)


@triton.jit
def attention_backward_keys_kernel(
    Q, K, V, D_OUT, D_WEIGHTS, LSE, DELTA, D_K, D_V, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_v, strides_do, strides_dw, strides_dk, strides_dv, strides_0, strides_1,
    heads, queries, keys,
    E: tl.constexpr, VALUE_E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, HAS_D_WEIGHTS: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(keys, BLOCK_N)
    kv_heads = heads // GROUP
    kv = tl.program_id(0) % kv_heads
    b = tl.program_id(0) // kv_heads // blocks
    first = tl.program_id(0) // kv_heads % blocks * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    k = load_rows(K, strides_k, b, kv, columns, limit, E, BLOCK_E)
    v = load_rows(V, strides_v, b, kv, columns, limit, VALUE_E, BLOCK_V)
    d_k = tl.zeros([BLOCK_N, BLOCK_E], ACC)
    d_v = tl.zeros([BLOCK_N, BLOCK_V], ACC)
    begin = 0
    if CAUSAL and EMPTY_ROWS != 2:
        begin = first // BLOCK_M * BLOCK_M  # earlier queries do not see these keys
    for g in range(0, GROUP):
        head = kv * GROUP + g
        for start in range(begin, queries, BLOCK_M):
            rows = start + tl.arange(0, BLOCK_M)
            q = load_rows(Q, strides_q, b, head, rows, queries, E, BLOCK_E)
            d_out = load_rows(D_OUT, strides_do, b, head, rows, queries, VALUE_E, BLOCK_V)
            owner = (b.to(tl.int64) * heads + head) * queries + rows
            lse = tl.load(LSE + owner, mask=rows < queries, other=float("inf"))
            delta = tl.load(DELTA + owner, mask=rows < queries, other=0.0)
            if EMPTY_ROWS == 1:
                d_out = tl.where((lse == float("inf"))[:, None], 0.0, d_out)
            p, left, d_p = weights_and_gradient(
                q, k, d_out, v, rows, columns, first, b, head, heads, queries, keys, limit, lse, D_WEIGHTS, strides_dw,
                MASK_0, MASK_1, SEED, strides_0, strides_1,
                SCALE, CAUSAL, KIND_0, KIND_1, EMPTY_ROWS, THRESHOLD, KEPT, HAS_D_WEIGHTS, ACC, PRECISION, BLOCK_N,
            )  # fmt: skip
            d_v = tl.dot(tl.trans(left.to(d_out.dtype)), d_out, d_v, input_precision=PRECISION, out_dtype=ACC)
            d_s = p * (d_p - delta[:, None])
            d_k = tl.dot(tl.trans(d_s.to(q.dtype)), q, d_k, input_precision=PRECISION, out_dtype=ACC)
    store_rows(D_K, d_k * tl.full([1, 1], SCALE, ACC), strides_dk, b, kv, columns, keys, E, BLOCK_E)
    store_rows(D_V, d_v, strides_dv, b, kv, columns, keys, VALUE_E, BLOCK_V)


def attention_backward(
    d_outputs, output, lse, needs, query, key, value, masks, lengths, seed, causal, dropout, scale, weights, empty_rows
):
    """The gradients of query, key, value and the masks; empty where not asked for."""
    a = Arguments(query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows)
    inputs = (query, key, value, *masks)
    if a.nothing:
        return [query.new_zeros(x.shape if need else 0) for x, need in zip(inputs, needs, strict=True)]
    d_output = d_outputs[0]
    if d_output is None:
        d_output = torch.zeros_like(output)
    d_weights = d_outputs[1] if weights != "none" else None
    strides_dw = (0, 0, 0, 0)
    if d_weights is not None:
        if weights == "average":
            d_weights = (d_weights / a.heads).unsqueeze(1)
        strides_dw = d_weights.stride() if weights == "heads" else (d_weights.stride(0), 0, *d_weights.stride()[2:])
    gradients = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs[:3]]
    d_query, d_key, d_value = gradients
    delta = torch.empty_like(lse)
    constants = {**a.constants, **a.value_constants, "HAS_D_WEIGHTS": d_weights is not None}
    sizes = (a.heads, a.queries, a.keys)

    # the queries' kernel comes first: it leaves delta to the others
    tile = a.tile("queries")
    strides_dq = d_query.stride()
    attention_backward_queries_kernel[(a.batch * a.heads * triton.cdiv(a.queries, tile["BLOCK_M"]),)](
        *a.tensors, output, d_output, d_weights, lse, delta, d_query if needs[0] else None, *a.extras,
        *a.strides, output.stride(), d_output.stride(), strides_dw, strides_dq, *a.mask_strides, *sizes,
        **constants, **tile,
    )  # fmt: skip
    if needs[1] or needs[2]:
        tile = a.tile("keys")
        attention_backward_keys_kernel[(a.batch * a.kv_heads * triton.cdiv(a.keys, tile["BLOCK_N"]),)](
            *a.tensors, d_output, d_weights, lse, delta, d_key, d_value, *a.extras,
            *a.strides, d_output.stride(), strides_dw, d_key.stride(), d_value.stride(), *a.mask_strides, *sizes,
            **constants, **tile,
        )  # fmt: skip
    upstream = (d_output, d_weights, lse, delta, strides_dw)
    gradients += [
        mask_gradient(a, mask, upstream) if need else None for mask, need in zip(masks, needs[3:], strict=True)
    ]
    return [g if need else query.new_empty(0) for g, need in zip(gradients, needs, strict=True)]
