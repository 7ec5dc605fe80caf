"""torch.nn with faster recurrent layers: every other name is torch.nn's own."""

import torch.nn

from .cells import GRUCell, LSTMCell, RNNCell
from .layers import GRU, LSTM, RNN

OURS = ("GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell")
__all__ = [*OURS, *(name for name in dir(torch.nn) if name not in OURS and not name.startswith("_"))]


def __getattr__(name: str):
    return getattr(torch.nn, name)


def __dir__():
    return sorted({*globals(), *dir(torch.nn)})
