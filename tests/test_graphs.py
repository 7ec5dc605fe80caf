"""torch.jit.script, torch.jit.trace and torch.fx on models with our layers."""

import pytest
import torch
from cases import draw, make_cell, make_layer
from torch.testing import assert_close

from seq2seq_fast import nn

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


class Around(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class AroundAttention(Around):
    def forward(self, x):
        return self.layer(x, x, x)


def check(model, input):
    expected = model(input)
    graph = torch.fx.symbolic_trace(model)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["layer"]
    assert graph.layer is model.layer
    assert_close(graph(input), expected)
    traced = torch.jit.trace(model, input)
    assert_close(traced(input), expected)
    scripted = torch.jit.script(model)
    assert_close(scripted(input), expected)
    assert [name for name, _ in scripted.named_parameters()] == [name for name, _ in model.named_parameters()]
    with torch.no_grad():
        next(model.parameters()).mul_(0.5)
    assert_close(scripted(input), model(input))


FLAGS = {"plain": {}, "flags": {"num_layers": 2, "bidirectional": True, "bias": False}}


@pytest.mark.parametrize("flags", FLAGS)
def test_layers(cell, flags):
    check(Around(make_layer(cell, 5, 7, **FLAGS[flags])), draw(4, 3, 5))


def test_cells(single):
    check(Around(make_cell(single, 5, 7)), draw(3, 5))


def test_attention():
    check(AroundAttention(nn.MultiheadAttention(8, 2)), draw(4, 3, 8))


def test_a_subclass_keeps_its_forward():
    class Doubled(nn.GRU):
        def forward(self, input):
            return super().forward(input)[0] * 2

    layer = Doubled(5, 7)
    assert layer.__prepare_scriptable__() is layer
