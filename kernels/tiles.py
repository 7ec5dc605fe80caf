"""Tile sizes by kernel, dtype, head width and backend: what fits the registers and the shared memory of every target.

tests/test_attention_kernels_compile.py compiles each entry and holds it to that.
"""

import torch

# the widest heads the kernels take; float32 in three terms of TF32 spills beyond it
WIDEST = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 64}


def tile(kernel: str, dtype: torch.dtype, width: int, backend: str) -> dict:
    """BLOCK_M queries by BLOCK_N keys, with warps and stages, for heads whose padded width is `width`.

    kernel: "forward", "weights", "queries" or "keys", the last two for backward. backend: "cuda" or "hip", whose wider
    warps hold twice the registers and spill with eight of them.
    """
    narrow, forward = width <= 64, kernel in ("forward", "weights")
    warps = 4 if narrow or backend == "hip" else 8
    if dtype == torch.float32:
        warps = 8 if backend == "cuda" and forward else 4
        return {"BLOCK_M": 32 if forward else 16, "BLOCK_N": 32, "num_warps": warps, "num_stages": 1}
    if forward:
        stages = 2 if narrow or backend == "cuda" else 1
        return {"BLOCK_M": 64, "BLOCK_N": 64 if width <= 128 else 32, "num_warps": warps, "num_stages": stages}
    if narrow and backend == "cuda":
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}
    rows = 32 if width <= 128 or backend == "hip" else 16
    return {"BLOCK_M": rows, "BLOCK_N": 32, "num_warps": warps, "num_stages": 1}
