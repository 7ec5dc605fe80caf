"""Encoder-decoders made of torch's modules: training as few calls, prediction as one."""

from ..functional import Found
from .attention_decoder import AttentionDecoder
from .bridge import ConcatDirections, Projection, SumDirections
from .decoder import Decoder
from .encoder import Encoder
from .loss import sequence_loss
from .model import Seq2Seq
from .teacher_forcing import constant, exponential, inverse_sigmoid, linear

__all__ = [
    "AttentionDecoder",
    "ConcatDirections",
    "Decoder",
    "Encoder",
    "Found",
    "Projection",
    "Seq2Seq",
    "SumDirections",
    "constant",
    "exponential",
    "inverse_sigmoid",
    "linear",
    "sequence_loss",
]
