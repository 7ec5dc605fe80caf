"""The public functions, shaped like torch.nn.functional's and the ones under torch.nn's layers."""

from .attention import additive_attention, scaled_dot_product_attention
from .recurrent import rnn, why_not_fused

__all__ = ["additive_attention", "rnn", "scaled_dot_product_attention", "why_not_fused"]
