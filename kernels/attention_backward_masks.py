"""The gradient of a float mask: a program owns a tile and adds up the heads and rows that it was broadcast over."""

import torch
import triton
import triton.language as tl

from . import tiles
from .score_gradients import load_rows, weights_and_gradient


@triton.jit
def attention_backward_mask_kernel(
    Q, K, V, D_OUT, D_WEIGHTS, LSE, DELTA, PARTS, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_v, strides_do, strides_dw, strides_0, strides_1,
    heads, queries, keys, batch, mask_batch, mask_heads, size,
    E: tl.constexpr, VALUE_E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, EMPTY_ROWS: tl.constexpr,
    THRESHOLD: tl.constexpr, KEPT: tl.constexpr, HAS_D_WEIGHTS: tl.constexpr, ACC: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_V: tl.constexpr, HAS_ROWS: tl.constexpr,
):  # fmt: skip
    """PARTS (parts, mask batch, mask heads, rows, keys), each the sum over `size` of what was broadcast.

    HAS_ROWS: whether the mask has the rows of the scores, or one for all of them.
    """
    row_blocks, column_blocks = tl.cdiv(queries, BLOCK_M), tl.cdiv(keys, BLOCK_N)
    first = tl.program_id(0) % column_blocks * BLOCK_N
    columns = first + tl.arange(0, BLOCK_N)
    own_blocks, broadcast_blocks, mask_rows = 1, row_blocks, 1
    if HAS_ROWS:
        own_blocks, broadcast_blocks, mask_rows = row_blocks, 1, queries
    block = tl.program_id(0) // column_blocks % own_blocks
    owner = tl.program_id(0) // column_blocks // own_blocks
    mask_head = owner % mask_heads
    mask_b = owner // mask_heads % mask_batch
    begin = owner // mask_heads // mask_batch * size
    broadcast_heads = heads // mask_heads
    count = broadcast_blocks * broadcast_heads * (batch // mask_batch)
    sums = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    for n in range(begin, tl.minimum(begin + size, count)):
        rows = (block + n % broadcast_blocks) * BLOCK_M + tl.arange(0, BLOCK_M)
        head = mask_head + n // broadcast_blocks % broadcast_heads
        b = mask_b + n // broadcast_blocks // broadcast_heads
        limit = keys
        if HAS_LENGTHS:
            limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
        q = load_rows(Q, strides_q, b, head, rows, queries, E, BLOCK_E)
        d_out = load_rows(D_OUT, strides_do, b, head, rows, queries, VALUE_E, BLOCK_V)
        k = load_rows(K, strides_k, b, head // GROUP, columns, limit, E, BLOCK_E)
        v = load_rows(V, strides_v, b, head // GROUP, columns, limit, VALUE_E, BLOCK_V)
        at = (b.to(tl.int64) * heads + head) * queries + rows
        lse = tl.load(LSE + at, mask=rows < queries, other=float("inf"))
        delta = tl.load(DELTA + at, mask=rows < queries, other=0.0)
        p, _, d_p = weights_and_gradient(
            q, k, d_out, v, rows, columns, first, b, head, heads, queries, keys, limit, lse, D_WEIGHTS, strides_dw,
            MASK_0, MASK_1, SEED, strides_0, strides_1,
            SCALE, CAUSAL, KIND_0, KIND_1, EMPTY_ROWS, THRESHOLD, KEPT, HAS_D_WEIGHTS, ACC, PRECISION, BLOCK_N,
        )  # fmt: skip
        sums += p * (d_p - delta[:, None])
    PARTS += owner.to(tl.int64) * mask_rows * keys
    if HAS_ROWS:
        rows = block * BLOCK_M + tl.arange(0, BLOCK_M)
        at = PARTS + rows[:, None].to(tl.int64) * keys + columns[None, :]
        tl.store(at, sums.to(PARTS.dtype.element_ty), mask=(rows[:, None] < queries) & (columns[None, :] < keys))
    else:
        tl.store(PARTS + columns, tl.sum(sums, 0).to(PARTS.dtype.element_ty), mask=columns < keys)


def mask_gradient(a, mask, upstream) -> torch.Tensor:
    """The gradient of `mask`, in its shape and dtype.

    a: attention's Arguments. upstream: d_output, d_weights, lse, delta and the strides of d_weights.
    """
    if mask.size(-1) == 1:
        # what is added to a whole row of scores changes no weight
        return mask.new_zeros(mask.shape)
    d_output, d_weights, lse, delta, strides_dw = upstream
    tile = a.tile("masks")
    row_blocks, column_blocks = triton.cdiv(a.queries, tile["BLOCK_M"]), triton.cdiv(a.keys, tile["BLOCK_N"])
    has_rows = mask.size(2) == a.queries
    owned = mask.size(0) * mask.size(1) * (row_blocks if has_rows else 1) * column_blocks
    count = a.batch // mask.size(0) * (a.heads // mask.size(1)) * (1 if has_rows else row_blocks)
    size = triton.cdiv(count, min(count, triton.cdiv(tiles.MASK_PROGRAMS, owned)))
    parts = triton.cdiv(count, size)
    sums = torch.empty(parts, *mask.shape, dtype=mask.dtype if parts == 1 else a.sum_dtype, device=mask.device)
    attention_backward_mask_kernel[(parts * owned,)](
        *a.tensors, d_output, d_weights, lse, delta, sums, *a.extras,
        *a.strides, d_output.stride(), strides_dw, *a.mask_strides,
        a.heads, a.queries, a.keys, a.batch, mask.size(0), mask.size(1), size,
        **a.constants, **a.value_constants, HAS_D_WEIGHTS=d_weights is not None, HAS_ROWS=has_rows, **tile,
    )  # fmt: skip
    return sums[0] if parts == 1 else sums.sum(0).to(mask.dtype)
