"""The weights of attention, computed again from lse: of each head, or averaged without any head's existing."""

import triton
import triton.language as tl

from .scores import keep_tile, score_tile


@triton.jit
def attention_weights_kernel(
    Q, K, LSE, WEIGHTS, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_0, strides_1,
    heads, queries, keys,
    E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, ACC: tl.constexpr, PRECISION: tl.constexpr, AVERAGE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
):  # fmt: skip
    row_blocks, column_blocks = tl.cdiv(queries, BLOCK_M), tl.cdiv(keys, BLOCK_N)
    tile = tl.program_id(0) % (row_blocks * column_blocks)
    b = tl.program_id(0) // (row_blocks * column_blocks)
    begin, end = 0, heads
    if not AVERAGE:
        begin = b % heads
        end = begin + 1
        b = b // heads
    rows = tile // column_blocks * BLOCK_M + tl.arange(0, BLOCK_M)
    first = tile % column_blocks * BLOCK_N
    columns, e = first + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_E)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    wide = b.to(tl.int64)
    weights = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    log2_e, kept = tl.full([1], 1.4426950408889634, ACC), tl.full([1, 1], KEPT, ACC)
    for h in range(begin, end):
        head = wide * 0 + h
        q = tl.load(
            Q + wide * strides_q[0] + head * strides_q[1] + rows[:, None].to(tl.int64) * strides_q[2]
            + e[None, :] * strides_q[3],
            mask=(rows[:, None] < queries) & (e[None, :] < E), other=0.0,
        )  # fmt: skip
        k = tl.load(
            K + wide * strides_k[0] + head // GROUP * strides_k[1] + columns[None, :].to(tl.int64) * strides_k[2]
            + e[:, None] * strides_k[3],
            mask=(columns[None, :] < limit) & (e[:, None] < E), other=0.0,
        )  # fmt: skip
        s = score_tile(
            tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC), rows, columns, b, head, queries, limit,
            MASK_0, MASK_1, strides_0, strides_1, SCALE, CAUSAL, KIND_0, KIND_1,
        )  # fmt: skip
        lse = tl.load(LSE + (wide * heads + head) * queries + rows, mask=rows < queries, other=float("inf"))
        p = tl.exp2(s - (lse * log2_e)[:, None])
        if EMPTY_ROWS == 1:
            p = tl.where((lse == float("inf"))[:, None], float("nan"), p)
        if EMPTY_ROWS == 2:
            p = tl.where((lse == float("inf"))[:, None], tl.full([1, 1], 1.0, ACC) / keys, p)
        if THRESHOLD:
            kept_p = tl.where(keep_tile(SEED, rows, first, (b * heads + head).to(tl.int32), THRESHOLD, BLOCK_N), p, 0.0)
            p = tl.where(p != p, p, kept_p)
        weights += p * kept
    if AVERAGE:
        weights = weights / heads
        owner = wide
    else:
        owner = wide * heads + begin
    at = WEIGHTS + (owner * queries + rows[:, None]) * keys + columns[None, :]
    tl.store(at, weights.to(WEIGHTS.dtype.element_ty), mask=(rows[:, None] < queries) & (columns[None, :] < keys))


def weights(a, lse, average: bool):
    """(B, H, L, S), or averaged over the heads (B, L, S)."""
    heads = () if average else (a.heads,)
    result = a.query.new_empty(a.batch, *heads, a.queries, a.keys)
    if a.nothing or not result.numel():
        return result
    tile = a.tile("weights")
    tiles = triton.cdiv(a.queries, tile["BLOCK_M"]) * triton.cdiv(a.keys, tile["BLOCK_N"])
    attention_weights_kernel[(a.batch * (1 if average else a.heads) * tiles,)](
        a.query, a.key, lse, result, *a.extras, *a.strides[:2], *a.mask_strides,
        a.heads, a.queries, a.keys, AVERAGE=average, **a.constants, **tile,
    )  # fmt: skip
    return result
