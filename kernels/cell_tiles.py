"""Tile sizes of the cells' kernels: what fits registers and shared memory of every target, by compiling it.

tests/test_cell_kernels_compile.py holds each entry to that.
"""

import torch


def step(dtype: torch.dtype, batch: int) -> dict:
    """BLOCK_B rows by BLOCK_H columns of every gate, BLOCK_K of a product at a time."""
    if dtype == torch.float64:
        return {"BLOCK_B": 16, "BLOCK_H": 16, "BLOCK_K": 16, "num_warps": 8, "num_stages": 1}
    if dtype == torch.float32:
        return {"BLOCK_B": 16, "BLOCK_H": 16, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}
    return {"BLOCK_B": 16 if batch <= 16 else 32, "BLOCK_H": 16, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}


def pointwise() -> dict:
    """BLOCK elements of the state."""
    return {"BLOCK": 256, "num_warps": 4}
