"""Drop-in recurrent layers for PyTorch that compute the same numbers several times faster."""

from . import functional, nn, seq2seq
from .accelerate import accelerate
from .explain import explain

__version__ = "0.1.0"
__all__ = ["accelerate", "explain", "functional", "nn", "seq2seq"]
