"""Backward of one step of any cell: the pointwise maths to d_gates. The products are torch.mm's, in cell_layer.py."""

import triton
import triton.language as tl

from . import cell_tiles
from .cell_step import CELLS, sum_dtype


@triton.jit
def cell_step_backward_kernel(
    D_OUTPUT, PRODUCT, H_0, C_0, LENGTHS, RESERVE, D_H, D_C, D_GATES,
    stride_d_output, stride_h, stride_c, stride_reserve, stride_slot, batch, active, product_rows, t, hidden,
    BACKWARD: tl.constexpr, SAVED: tl.constexpr, HAS_C: tl.constexpr, D_SLOTS: tl.constexpr,
    ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    row, column = element // hidden, element % hidden
    inside, running = row < batch, row < active
    # a row that does not run hands its state's gradient on, and has none for its gates
    runs = running
    if LENGTHS is not None:
        runs = running & (t < tl.load(LENGTHS + row, mask=inside, other=0))
    zero = tl.zeros([BLOCK], ACC)
    d_h = tl.load(D_H + element, mask=inside, other=0.0)
    if PRODUCT is not None:
        # what the step after this one sends back through the gates
        d_h += tl.load(PRODUCT + element, mask=row < product_rows, other=0.0).to(ACC)
    d_c, h, c, c_new = zero, zero, zero, zero
    at = RESERVE + row * stride_reserve + column
    h_new = tl.load(at, mask=running, other=0.0)
    if H_0 is not None:
        h = tl.load(H_0 + row * stride_h + column, mask=running, other=0.0).to(ACC)
    if HAS_C:
        d_c = tl.load(D_C + element, mask=inside, other=0.0)
        at += stride_slot
        c_new = tl.load(at, mask=running, other=0.0)
        if C_0 is not None:
            c = tl.load(C_0 + row * stride_c + column, mask=running, other=0.0).to(ACC)
    d_h_new = d_h
    if D_OUTPUT is not None:
        d_h_new += tl.load(D_OUTPUT + row * stride_d_output + column, mask=running, other=0.0).to(ACC)
    if SAVED == 4:
        save = (
            tl.load(at + stride_slot, mask=running, other=0.0),
            tl.load(at + 2 * stride_slot, mask=running, other=0.0),
            tl.load(at + 3 * stride_slot, mask=running, other=0.0),
            tl.load(at + 4 * stride_slot, mask=running, other=0.0),
        )
    else:
        save = ()
    d_h_direct, d_c_direct, d = BACKWARD(save, h, c, h_new, c_new, d_h_new, d_c)
    tl.store(D_H + element, tl.where(runs, d_h_direct, d_h), mask=inside)
    if HAS_C:
        tl.store(D_C + element, tl.where(runs, d_c_direct, d_c), mask=inside)
    d_at = D_GATES + row * hidden * D_SLOTS + column
    for slot in tl.static_range(D_SLOTS):
        value = tl.where(runs, d[slot], 0.0).to(D_GATES.dtype.element_ty)
        tl.store(d_at + slot * hidden, value, mask=running)


def cell_step_backward(
    cell: str, d_output, product, h, c, reserve, d_h, d_c, d_gates, *, product_rows: int, lengths=None, t: int = 0
):
    """Takes d_h and d_c (B, H), of the sums' dtype, from after the step to before it, less what goes through d_gates.

    Args:
        d_output: (active, H) or None for zeros; its rows have stride 1, as have those of h and c.
        product: (B, H), what the step taken back before this one sent through its gates, of its first `product_rows`.
        h, c: (active, H), the states before the step; zeros where None.
        reserve: (active, slots, padded H), as cell_step wrote it.
        d_gates: (active, d_slots, H), written.
    """
    batch, hidden = d_h.shape
    if not batch or not hidden:
        return
    kind, tile = CELLS[cell], cell_tiles.pointwise()

    def stride(x):
        return 0 if x is None else x.stride(0)

    cell_step_backward_kernel[(triton.cdiv(batch * hidden, tile["BLOCK"]),)](
        d_output, product, h, c, lengths, reserve, d_h, d_c, d_gates,
        stride(d_output), stride(h), stride(c), reserve.stride(0), reserve.stride(1),
        batch, reserve.size(0), product_rows, t, hidden,
        BACKWARD=kind.backward, SAVED=kind.saved, HAS_C=kind.has_c, D_SLOTS=kind.d_slots,
        ACC=sum_dtype(d_h.dtype), **tile,
    )  # fmt: skip
