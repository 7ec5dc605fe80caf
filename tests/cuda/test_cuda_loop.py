"""The GPU's time loop on the CPU's stand-in, against the float64 oracle: every form, cell, dtype and way to split."""

import pytest
import torch
from cases import draw, make_hx, pack, twin
from error_rule import assert_as_accurate, run
from oracle import Oracle
from stand_in import Launch, Layer, build

CELLS = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM, "rnn_tanh": torch.nn.RNN, "rnn_relu": torch.nn.RNN}


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    return build(tmp_path_factory.mktemp("stand_in"))


def make_layer(cell, input_size, hidden_size, dtype, **flags):
    torch.manual_seed(0)
    if cell.startswith("rnn"):
        flags["nonlinearity"] = cell.removeprefix("rnn_")
    return CELLS[cell](input_size, hidden_size, **flags).to(dtype)


def check(layer, launch, input, hx=None, **kwargs):
    """Holds the layer, run by `launch`, to the error rule."""
    ours = run(Layer(layer, launch), input, hx, **kwargs)
    assert_as_accurate(ours, run(layer, input, hx), run(Oracle(layer), input, hx, **kwargs))
