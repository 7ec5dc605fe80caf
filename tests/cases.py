"""The layers and cells under test, torch.nn's twins of them, and what they are given."""

import copy

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seq2seq_fast import nn

LAYERS = {
    "gru": (nn.GRU, {}),
    "lstm": (nn.LSTM, {}),
    "rnn_tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu"}),
}
CELLS = {
    "gru": (nn.GRUCell, {}),
    "lstm": (nn.LSTMCell, {}),
    "rnn_tanh": (nn.RNNCell, {"nonlinearity": "tanh"}),
    "rnn_relu": (nn.RNNCell, {"nonlinearity": "relu"}),
}


def make_layer(cell: str, *sizes: int, **flags) -> torch.nn.RNNBase:
    torch.manual_seed(0)
    layer, options = LAYERS[cell]
    return layer(*sizes, **options, **flags)


def make_cell(cell: str, *sizes: int, **flags) -> torch.nn.RNNCellBase:
    torch.manual_seed(0)
    single, options = CELLS[cell]
    return single(*sizes, **options, **flags)


def twin(ours: torch.nn.Module) -> torch.nn.Module:
    """torch.nn's module with the same settings and a copy of the same weights."""
    theirs = copy.deepcopy(ours)
    theirs.__class__ = getattr(torch.nn, type(ours).__name__)
    return theirs


def draw(*shape: int, dtype=torch.float32, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def make_hx(layer: torch.nn.RNNBase, batch: int | None, dtype=torch.float32, seed: int = 2):
    """A random `hx` for the layer, a tuple for the LSTM; `batch` is None for unbatched input."""
    count = layer.num_layers * (2 if layer.bidirectional else 1)

    def state(size, seed):
        return draw(*((count, size) if batch is None else (count, batch, size)), dtype=dtype, seed=seed) / 2

    h_0 = state(layer.proj_size or layer.hidden_size, seed)
    return (h_0, state(layer.hidden_size, seed + 1)) if layer.mode == "LSTM" else h_0


def pack(input: torch.Tensor, lengths, batch_first: bool = False, enforce_sorted: bool = False) -> PackedSequence:
    return pack_padded_sequence(input, torch.as_tensor(lengths), batch_first, enforce_sorted)
