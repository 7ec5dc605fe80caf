"""The public functions, shaped like torch.nn.functional's and the ones under torch.nn's layers."""

from .attention import additive_attention, scaled_dot_product_attention
from .recurrent import rnn, why_not_fused
from .search import Found, beam_search, feedback, greedy_search, sample
from .search_inputs import Decoder, Memory

__all__ = [
    "Decoder",
    "Found",
    "Memory",
    "additive_attention",
    "beam_search",
    "feedback",
    "greedy_search",
    "rnn",
    "sample",
    "scaled_dot_product_attention",
    "why_not_fused",
]
