"""Attention of a few queries: the keys are split over programs, and rows that share keys are one tile.

Dao and others, "Flash-Decoding", https://pytorch.org/blog/flash-decoding. Contract: reference_attention.attention.
"""

import torch
import triton
import triton.language as tl

from . import tiles
from .scores import grow, keep_tile, score_tile

MOST_QUERIES = 8
MOST_ROWS = 64


@triton.jit
def attention_decode_kernel(
    Q, K, V, OUTS, MOSTS, TOTALS, MASK_0, MASK_1, LENGTHS, SEED,
    strides_q, strides_k, strides_v, strides_0, strides_1,
    heads, queries, keys, batch, splits,
    E: tl.constexpr, VALUE_E: tl.constexpr, GROUP: tl.constexpr, SCALE: tl.constexpr, CAUSAL: tl.constexpr,
    KIND_0: tl.constexpr, KIND_1: tl.constexpr, HAS_LENGTHS: tl.constexpr, THRESHOLD: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """A split's sums, not yet divided by their total: OUTS (splits, B, H, L, V), MOSTS and TOTALS (splits, B, H, L)."""
    kv_heads = heads // GROUP
    kv = tl.program_id(0) % kv_heads
    b = tl.program_id(0) // kv_heads % batch
    split = tl.program_id(0) // kv_heads // batch
    row = tl.arange(0, BLOCK_M)
    real = row < GROUP * queries
    head = kv * GROUP + row // queries
    i = tl.where(real, row % queries, queries)
    e, v = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_V)
    limit = keys
    if HAS_LENGTHS:
        limit = tl.minimum(tl.load(LENGTHS + b), keys).to(tl.int32)
    wide = b.to(tl.int64)
    q = tl.load(
        Q + wide * strides_q[0] + head[:, None].to(tl.int64) * strides_q[1] + i[:, None] * strides_q[2]
        + e[None, :] * strides_q[3],
        mask=real[:, None] & (e[None, :] < E), other=0.0,
    )  # fmt: skip
    K += wide * strides_k[0] + kv.to(tl.int64) * strides_k[1]
    V += wide * strides_v[0] + kv.to(tl.int64) * strides_v[1]
    most = tl.full([BLOCK_M], -float("inf"), ACC)
    total = tl.zeros([BLOCK_M], ACC)
    out = tl.zeros([BLOCK_M, BLOCK_V], ACC)
    size = tl.cdiv(tl.cdiv(keys, BLOCK_N), splits) * BLOCK_N
    end = tl.minimum(limit, (split + 1) * size)
    if CAUSAL:
        end = tl.minimum(end, queries)
    for first in range(split * size, end, BLOCK_N):
        columns = first + tl.arange(0, BLOCK_N)
        k = tl.load(
            K + columns[None, :].to(tl.int64) * strides_k[2] + e[:, None] * strides_k[3],
            mask=(columns[None, :] < limit) & (e[:, None] < E), other=0.0,
        )  # fmt: skip
        s = score_tile(
            tl.dot(q, k, input_precision=PRECISION, out_dtype=ACC), i, columns, b, head[:, None], queries, limit,
            MASK_0, MASK_1, strides_0, strides_1, SCALE, CAUSAL, KIND_0, KIND_1,
        )  # fmt: skip
        p, most, total, shrink = grow(s, most, total)
        x = tl.load(
            V + columns[:, None].to(tl.int64) * strides_v[2] + v[None, :] * strides_v[3],
            mask=(columns[:, None] < limit) & (v[None, :] < VALUE_E), other=0.0,
        )  # fmt: skip
        if THRESHOLD:
            p = tl.where(keep_tile(SEED, i, first, b * heads + head[:, None], THRESHOLD, BLOCK_N), p, 0.0)
        out = tl.dot(p.to(x.dtype), x, out * shrink[:, None], input_precision=PRECISION, out_dtype=ACC)
    owner = ((split.to(tl.int64) * batch + b) * heads + head) * queries + i
    tl.store(OUTS + owner[:, None] * VALUE_E + v[None, :], out, mask=real[:, None] & (v[None, :] < VALUE_E))
    tl.store(MOSTS + owner, most, mask=real)
    tl.store(TOTALS + owner, total, mask=real)


@triton.jit
def attention_combine_kernel(
    OUTS, MOSTS, TOTALS, OUT, LSE, rows, splits,
    VALUE_E: tl.constexpr, EMPTY_ROWS: tl.constexpr, KEPT: tl.constexpr, ACC: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    v = tl.arange(0, BLOCK_V)
    inside = (row[:, None] < rows) & (v[None, :] < VALUE_E)
    most = tl.full([BLOCK_M], -float("inf"), ACC)
    for split in range(0, splits):
        most = tl.maximum(most, tl.load(MOSTS + split * rows + row, mask=row < rows, other=-float("inf")))
    safe = tl.where(most == -float("inf"), 0.0, most)
    total = tl.zeros([BLOCK_M], ACC)
    out = tl.zeros([BLOCK_M, BLOCK_V], ACC)
    for split in range(0, splits):
        at = split * rows + row
        share = tl.exp2(tl.load(MOSTS + at, mask=row < rows, other=-float("inf")) - safe)
        total += tl.load(TOTALS + at, mask=row < rows, other=0.0) * share
        out += tl.load(OUTS + at[:, None] * VALUE_E + v[None, :], mask=inside, other=0.0) * share[:, None]
    empty = total == 0.0
    total = tl.where(empty, 1.0, total)
    out = out * (tl.full([1], KEPT, ACC) / total)[:, None]
    if EMPTY_ROWS == 1:
        out = tl.where(empty[:, None], float("nan"), out)
    tl.store(OUT + row[:, None] * VALUE_E + v[None, :], out.to(OUT.dtype.element_ty), mask=inside)
    lse = tl.where(empty, float("inf"), (safe + tl.log2(total)) * tl.full([1], 0.6931471805599453, ACC))
    tl.store(LSE + row, lse, mask=row < rows)


def split_count(programs: int, keys: int, processors: int) -> int:
    """Into how many parts the keys go: the fewest that fill the processors nearly as well as any number would.

    programs: that there are without a split. processors: two programs fit one.
    """
    slots = 2 * processors
    if keys <= 512 or programs >= 0.8 * slots:
        return 1
    filled = {n: programs * n / slots / -(-programs * n // slots) for n in range(1, min(keys // 256, 64) + 1)}
    best = max(filled.values())
    return next(n for n, share in filled.items() if share >= 0.85 * best)


def decode_splits(a) -> int:
    """In how many parts to go over the keys of `a`, attention's Arguments; 0 where this is no case for decoding."""
    rows = a.constants["GROUP"] * a.queries
    # an empty row that is uniform needs a sum of the values beside the weighted one
    if a.queries > MOST_QUERIES or rows > MOST_ROWS or a.constants["EMPTY_ROWS"] == 2:
        return 0
    # the interpreter has no processors: those of an H100
    cuda = a.query.is_cuda
    processors = torch.cuda.get_device_properties(a.query.device).multi_processor_count if cuda else 132
    count = split_count(a.batch * a.kv_heads, a.keys, processors)
    return count if count > 1 or a.constants["GROUP"] > 1 else 0


def decode(a, splits: int, output, lse) -> None:
    """Writes output (B, H, L, V) and lse (B, H, L), both dense."""
    outs = lse.new_empty(splits, *output.shape)
    mosts, totals = (lse.new_empty(splits, *lse.shape) for _ in range(2))
    constants = {k: a.constants[k] for k in a.constants if k not in ("EMPTY_ROWS", "KEPT")}
    rows = a.constants["GROUP"] * a.queries
    tile = {**a.tile("decode"), "BLOCK_M": max(16, triton.next_power_of_2(rows))}
    attention_decode_kernel[(splits * a.batch * a.kv_heads,)](
        *a.tensors, outs, mosts, totals, *a.extras, *a.strides, *a.mask_strides,
        a.heads, a.queries, a.keys, a.batch, splits, **constants, **a.value_constants, **tile,
    )  # fmt: skip
    finish = {k: a.constants[k] for k in ("EMPTY_ROWS", "KEPT", "ACC")}
    attention_combine_kernel[(triton.cdiv(lse.numel(), tiles.COMBINED),)](
        outs, mosts, totals, output, lse, lse.numel(), splits,
        **finish, **a.value_constants, BLOCK_M=tiles.COMBINED, num_warps=4,
    )  # fmt: skip
