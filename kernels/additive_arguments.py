"""What the launchers of additive attention make of the operator's arguments."""

import torch
import triton.language as tl

from .arguments import EMPTY_ROWS, broadcast_strides


class AdditiveArguments:
    """The arguments of reference_attention.additive_attention, as the kernels take them."""

    def __init__(self, query, key, score_weight, value, masks, lengths, empty_rows):
        self.batch, self.queries, width = query.shape
        self.keys, self.value_width = value.shape[1:]
        self.dtype = query.dtype
        self.sum_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        self.tensors = (query, key, score_weight, value)
        self.strides = (query.stride(), key.stride(), value.stride(), score_weight.stride(0))
        # with one head, as the masks of the other attention
        padded = [*(m.unsqueeze(1) for m in masks), None, None][:2]
        kinds = [0 if m is None else 1 if m.dtype == torch.bool else 2 for m in padded]
        # a bool is a byte: read it as one
        self.extras = (*(m.view(torch.uint8) if k == 1 else m for m, k in zip(padded, kinds, strict=True)), lengths)
        self.mask_strides = tuple(broadcast_strides(m) for m in padded)
        self.sizes = (self.queries, self.keys, width, self.value_width)
        self.constants = {
            "KIND_0": kinds[0],
            "KIND_1": kinds[1],
            "HAS_LENGTHS": lengths is not None,
            "EMPTY_ROWS": EMPTY_ROWS[empty_rows],
            "ACC": tl.float64 if self.sum_dtype == torch.float64 else tl.float32,
        }

    @property
    def nothing(self) -> bool:
        return not (self.batch and self.queries and self.keys)
