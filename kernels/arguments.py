"""What the launchers make of the operator's arguments: pointers, strides, constants and tiles."""

import torch
import triton
import triton.language as tl

from . import tiles

EMPTY_ROWS = {"zeros": 0, "nan": 1, "uniform": 2}


class Arguments:
    """The arguments of reference_attention.attention, as the kernels take them."""

    def __init__(self, query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows):
        self.query, self.key, self.value = query, key, value
        self.batch, self.heads, self.queries, width = query.shape
        self.kv_heads, self.keys = key.shape[1:3]
        self.value_width = value.size(-1)
        self.dtype = query.dtype
        self.sum_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.tensors = (query, key, value)
        self.strides = tuple(x.stride() for x in self.tensors)
        padded = [*masks, None, None][:2]
        # a bool is a byte: read it as one
        self.extras = (*(m.view(torch.uint8) if _is_bool(m) else m for m in padded), lengths, seed)
        self.mask_strides = tuple(broadcast_strides(m) for m in padded)
        self.constants = {
            "E": width,
            "GROUP": self.heads // max(self.kv_heads, 1),
            "SCALE": scale,
            "CAUSAL": causal,
            "KIND_0": _kind(padded[0]),
            "KIND_1": _kind(padded[1]),
            "HAS_LENGTHS": lengths is not None,
            "EMPTY_ROWS": EMPTY_ROWS[empty_rows],
            # in units of 2^-24, rounded up: reference_attention.dropout_threshold
            "THRESHOLD": -int(-dropout * (1 << 24) // 1),
            "KEPT": 1 / (1 - dropout) if dropout < 1 else 0.0,
            "ACC": tl.float64 if self.sum_dtype == torch.float64 else tl.float32,
            "PRECISION": precision(query.dtype),
            "BLOCK_E": max(16, triton.next_power_of_2(width)),
        }

    @property
    def nothing(self) -> bool:
        return not (self.batch and self.heads and self.queries and self.keys)

    @property
    def value_constants(self) -> dict:
        return {"VALUE_E": self.value_width, "BLOCK_V": max(16, triton.next_power_of_2(self.value_width))}

    def tile(self, kernel: str) -> dict:
        width = max(self.constants["BLOCK_E"], self.value_constants["BLOCK_V"])
        return tiles.tile(kernel, self.dtype, width, backend())


def _is_bool(mask) -> bool:
    return mask is not None and mask.dtype == torch.bool


def _kind(mask) -> int:
    return 0 if mask is None else 1 if mask.dtype == torch.bool else 2


def broadcast_strides(x) -> tuple[int, ...]:
    """Strides that are 0 where a dimension is broadcast."""
    if x is None:
        return (0, 0, 0, 0)
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape, x.stride(), strict=True))


def backend() -> str:
    """What the kernels are compiled for: "cuda" or "hip"."""
    if triton.knobs.runtime.interpret:
        return "cuda"
    return triton.runtime.driver.active.get_current_target().backend


def precision(dtype: torch.dtype) -> str:
    """How tl.dot multiplies: float32 in three terms of TF32 unless the user allowed one, where there is TF32."""
    if dtype != torch.float32 or backend() != "cuda" or triton.knobs.runtime.interpret:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "tf32x3"
