"""torch.nn with faster recurrent layers and attention: every other name is torch.nn's own."""

import torch.nn

from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, RNN
from .multihead_attention import MultiheadAttention
from .seq2seq_attention import Attention

# the classes that stand in for torch.nn's of the same name
OURS = ("GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell", "MultiheadAttention")
__all__ = ["Attention", *OURS, *(name for name in dir(torch.nn) if name not in OURS and not name.startswith("_"))]


def __getattr__(name: str):
    return getattr(torch.nn, name)


def __dir__():
    return sorted({*globals(), *dir(torch.nn)})
