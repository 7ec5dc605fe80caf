"""Tile sizes by kernel, dtype, head width and backend: what fits the registers and the shared memory of every target.

tests/test_attention_kernels_compile.py compiles each entry and holds it to that.
"""

import torch

# the widest heads the kernels take; float32 in three terms of TF32 spills beyond it
WIDEST = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 64}

# rows of splits that one program puts together
COMBINED = 4
# programs that a mask's gradient is worth splitting into, about two for each processor of a large GPU
MASK_PROGRAMS = 264


def tile(kernel: str, dtype: torch.dtype, width: int, backend: str) -> dict:
    """BLOCK_M queries by BLOCK_N keys, with warps and stages, for heads whose padded width is `width`.

    kernel: "forward", "decode", "weights", "queries", "keys" or "masks", the last three for backward; a "decode" has as
    many queries as share their keys, whatever the table says. backend: "cuda" or "hip", whose wider warps hold twice
    the registers and spill with eight of them.
    """
    narrow, forward = width <= 64, kernel in ("forward", "decode", "weights")
    warps = 4 if narrow or backend == "hip" else 8
    if dtype == torch.float32:
        warps = 8 if backend == "cuda" and forward else 4
        return {"BLOCK_M": 32 if forward else 16, "BLOCK_N": 32, "num_warps": warps, "num_stages": 1}
    if forward:
        stages = 2 if narrow or backend == "cuda" else 1
        return {"BLOCK_M": 64, "BLOCK_N": 64 if width <= 128 else 32, "num_warps": warps, "num_stages": stages}
    if narrow and backend == "cuda":
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}
    rows = 32 if width <= 128 or (backend == "hip" and kernel != "masks") else 16
    if kernel == "queries" and width > 128:
        warps = 4
    return {"BLOCK_M": rows, "BLOCK_N": 32, "num_warps": warps, "num_stages": 1}


def additive(dtype: torch.dtype, queries: int) -> dict:
    """BLOCK_M queries by BLOCK_N keys by BLOCK_A of the width: all three in registers at once."""
    rows, keys, width = (1, 32, 32) if queries == 1 else (4, 32, 16) if dtype == torch.float64 else (4, 64, 16)
    return {"BLOCK_M": rows, "BLOCK_N": keys, "BLOCK_A": width, "num_warps": 4, "num_stages": 1}
