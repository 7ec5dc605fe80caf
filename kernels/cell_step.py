"""One step of any cell in one launch: the products with the weights, the biases and the cell's pointwise maths.

Contract: reference.py, one step. What it saves is what csrc/cells/*.h save.
"""

import torch
import triton
import triton.language as tl

from . import cell_tiles
from .arguments import precision
from .gru import Gru
from .lstm import Lstm
from .rnn import RnnRelu, RnnTanh

CELLS = {"gru": Gru, "lstm": Lstm, "rnn_tanh": RnnTanh, "rnn_relu": RnnRelu}


@triton.jit
def weight_tile(WEIGHT, gate, columns, k, hidden, width):
    """A tile of gate's weight, transposed; weight is (G*H, width), contiguous."""
    at = WEIGHT + (gate * hidden + columns[None, :]).to(tl.int64) * width + k[:, None]
    return tl.load(at, mask=(columns[None, :] < hidden) & (k[:, None] < width), other=0.0)


@triton.jit
def products(
    y, A, stride, WEIGHT, BIAS, rows, columns, limit, hidden, width, GATES: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y + A WEIGHT^T + BIAS, tuples of gates; A is (rows, width) with rows below `limit`, or None for zeros."""
    y_0, y_1, y_2, y_3 = y
    if A is not None:
        for first in range(0, width, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            at = A + rows[:, None].to(tl.int64) * stride + k[None, :]
            a = tl.load(at, mask=(rows[:, None] < limit) & (k[None, :] < width), other=0.0)
            w = weight_tile(WEIGHT, 0, columns, k, hidden, width)
            y_0 = tl.dot(a, w, y_0, input_precision=PRECISION, out_dtype=ACC)
            if GATES > 1:
                w = weight_tile(WEIGHT, 1, columns, k, hidden, width)
                y_1 = tl.dot(a, w, y_1, input_precision=PRECISION, out_dtype=ACC)
                w = weight_tile(WEIGHT, 2, columns, k, hidden, width)
                y_2 = tl.dot(a, w, y_2, input_precision=PRECISION, out_dtype=ACC)
            if GATES > 3:
                w = weight_tile(WEIGHT, 3, columns, k, hidden, width)
                y_3 = tl.dot(a, w, y_3, input_precision=PRECISION, out_dtype=ACC)
    if BIAS is not None:
        inside = columns < hidden
        y_0 += tl.load(BIAS + columns, mask=inside, other=0.0).to(ACC)[None, :]
        if GATES > 1:
            y_1 += tl.load(BIAS + hidden + columns, mask=inside, other=0.0).to(ACC)[None, :]
            y_2 += tl.load(BIAS + 2 * hidden + columns, mask=inside, other=0.0).to(ACC)[None, :]
        if GATES > 3:
            y_3 += tl.load(BIAS + 3 * hidden + columns, mask=inside, other=0.0).to(ACC)[None, :]
    return y_0, y_1, y_2, y_3


@triton.jit
def load_gates(X, stride, rows, columns, inside, hidden, GATES: tl.constexpr, ACC: tl.constexpr):
    """The gates' parts from the input, where a product over all steps gave them: rows of G*H."""
    at = X + rows[:, None].to(tl.int64) * stride + columns[None, :]
    x_0 = tl.load(at, mask=inside, other=0.0).to(ACC)
    x_1, x_2, x_3 = x_0, x_0, x_0
    if GATES > 1:
        x_1 = tl.load(at + hidden, mask=inside, other=0.0).to(ACC)
        x_2 = tl.load(at + 2 * hidden, mask=inside, other=0.0).to(ACC)
    if GATES > 3:
        x_3 = tl.load(at + 3 * hidden, mask=inside, other=0.0).to(ACC)
    return x_0, x_1, x_2, x_3


@triton.jit
def load_state(STATE, stride, rows, columns, inside, ACC: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr):
    """A tile of h or c, zeros where there is none."""
    state = tl.zeros([BLOCK_B, BLOCK_H], ACC)
    if STATE is not None:
        at = STATE + rows[:, None].to(tl.int64) * stride + columns[None, :]
        state = tl.load(at, mask=inside, other=0.0).to(ACC)
    return state


@triton.jit
def cell_step_kernel(
    X, H_0, C_0, WEIGHT_IH, WEIGHT_HH, BIAS_IH, BIAS_HH, LENGTHS, OUTPUT, H_N, C_N, RESERVE,
    stride_x, stride_h, stride_c, stride_output, stride_reserve, stride_slot, batch, active, t, hidden, width,
    FORWARD: tl.constexpr, GATES: tl.constexpr, SAVED: tl.constexpr, HAS_C: tl.constexpr, SPLITS_BIAS: tl.constexpr,
    ACC: tl.constexpr, PRECISION: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # hidden blocks fastest, so that programs that share rows of the state run together
    blocks = tl.cdiv(hidden, BLOCK_H)
    rows = tl.program_id(0) // blocks * BLOCK_B + tl.arange(0, BLOCK_B)
    columns = tl.program_id(0) % blocks * BLOCK_H + tl.arange(0, BLOCK_H)
    running = (rows[:, None] < active) & (columns[None, :] < hidden)
    inside = (rows[:, None] < batch) & (columns[None, :] < hidden)
    zero = tl.zeros([BLOCK_B, BLOCK_H], ACC)
    zeros = (zero, zero, zero, zero)
    if WEIGHT_IH is not None:
        x = products(
            zeros, X, stride_x, WEIGHT_IH, BIAS_IH, rows, columns, active, hidden, width,
            GATES, ACC, PRECISION, BLOCK_K,
        )  # fmt: skip
    else:
        x = load_gates(X, stride_x, rows, columns, running, hidden, GATES, ACC)
    hh = zeros
    if not SPLITS_BIAS:
        # the cell only takes the sum of both, which needs half the registers
        hh = x
        x = zeros
    hh = products(
        hh, H_0, stride_h, WEIGHT_HH, BIAS_HH, rows, columns, active, hidden, hidden,
        GATES, ACC, PRECISION, BLOCK_K,
    )  # fmt: skip
    h = load_state(H_0, stride_h, rows, columns, inside, ACC, BLOCK_B, BLOCK_H)
    c = load_state(C_0, stride_c, rows, columns, inside, ACC, BLOCK_B, BLOCK_H)
    h_new, c_new, save = FORWARD(x, hh, h, c)
    # rows that do not run at this step keep their state, and give zeros
    runs = rows[:, None] < active
    if LENGTHS is not None:
        runs = runs & (t < tl.load(LENGTHS + rows, mask=rows < batch, other=0))[:, None]
    output = tl.where(runs, h_new, 0.0)
    h_new = tl.where(runs, h_new, h)
    c_new = tl.where(runs, c_new, c)
    wide = rows[:, None].to(tl.int64)
    tl.store(OUTPUT + wide * stride_output + columns[None, :], output.to(OUTPUT.dtype.element_ty), mask=running)
    state = wide * hidden + columns[None, :]
    tl.store(H_N + state, h_new.to(H_N.dtype.element_ty), mask=inside)
    if HAS_C:
        tl.store(C_N + state, c_new.to(C_N.dtype.element_ty), mask=inside)
    if RESERVE is not None:
        at = RESERVE + wide * stride_reserve + columns[None, :]
        tl.store(at, h_new, mask=running)
        if HAS_C:
            at += stride_slot
            tl.store(at, c_new, mask=running)
        if SAVED == 4:
            tl.store(at + stride_slot, save[0], mask=running)
            tl.store(at + 2 * stride_slot, save[1], mask=running)
            tl.store(at + 3 * stride_slot, save[2], mask=running)
            tl.store(at + 4 * stride_slot, save[3], mask=running)


def sum_dtype(dtype: torch.dtype):
    """What sums are taken in."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def cell_step(
    cell: str, x, h, c, weight_ih, weight_hh, bias_ih, bias_hh, output, h_n, c_n, reserve=None,
    *, lengths=None, active: int | None = None, t: int = 0,
):  # fmt: skip
    """One step, of the rows before `active` that are longer than t; writes output, h_n, c_n and the reserve.

    Args:
        x: (B, I); or, where weight_ih is None, the gates' parts from the input (B, G*H). Only `active` rows are read.
        h, c: (B, H), zeros where None; not the memory of h_n and c_n. Rows of x, h, c and output have stride 1.
        output: (active, H). h_n, c_n: (B, H), contiguous; c_n is None where the cell has no c.
        reserve: (active, slots, padded H): h', for the LSTM c', then what the cell saves; None for inference.
    """
    batch, hidden = h_n.shape
    active = batch if active is None else active
    if not batch or not hidden:
        return
    kind = CELLS[cell]
    tile = cell_tiles.step(x.dtype, batch)
    cell_step_kernel[(triton.cdiv(batch, tile["BLOCK_B"]) * triton.cdiv(hidden, tile["BLOCK_H"]),)](
        x, h, c, weight_ih, weight_hh, bias_ih, bias_hh, lengths, output, h_n, c_n, reserve,
        x.stride(0), 0 if h is None else h.stride(0), 0 if c is None else c.stride(0), output.stride(0),
        0 if reserve is None else reserve.stride(0), 0 if reserve is None else reserve.stride(1),
        batch, active, t, hidden, x.size(1),
        FORWARD=kind.forward, GATES=kind.gates, SAVED=kind.saved, HAS_C=kind.has_c, SPLITS_BIAS=kind.splits_bias,
        ACC=sum_dtype(x.dtype), PRECISION=precision(x.dtype), **tile,
    )  # fmt: skip
