"""explain(layer, *inputs): which path a call takes, and why."""

import pytest
import torch
from cases import CELLS, LAYERS, draw, make_cell, make_layer, pack, twin

from seq2seq_fast import explain, nn


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.ModuleDict({"rnn": nn.LSTM(5, 7, 2, dropout=0.5)})
        self.decoder = torch.nn.GRU(7, 7)
        self.cell = nn.GRUCell(7, 7)
        self.unused = nn.RNN(5, 7)

    def forward(self, x, *, packed=False):
        output, _ = self.encoder["rnn"](x)
        if packed:
            output, _ = self.encoder["rnn"](pack(x, (2, 4, 1)))
            output = torch.nn.utils.rnn.pad_packed_sequence(output)[0]
        return self.cell(self.decoder(output)[0][-1])


@pytest.mark.needs_extension
@pytest.mark.parametrize("form", ("padded", "packed", "unbatched", "keyword"))
def test_fused(cell, dtype, form):
    layer = make_layer(cell, 5, 7, dtype=dtype)
    input = draw(4, 5, dtype=dtype) if form == "unbatched" else draw(4, 3, 5, dtype=dtype)
    if form == "packed":
        input = pack(input, (2, 4, 1))
    line = explain(layer, input=input) if form == "keyword" else explain(layer, input)
    instructions = torch.ops.seq2seq_fast.capability()
    assert line == f"{LAYERS[cell][0].__name__}: fused (cpu, {instructions}, {str(dtype).removeprefix('torch.')})"


@pytest.mark.needs_extension
def test_fused_cell(single):
    assert explain(make_cell(single, 5, 7), draw(3, 5)).startswith(f"{CELLS[single][0].__name__}: fused (cpu, ")


@pytest.mark.parametrize(
    "make, input, why",
    (
        (lambda: make_layer("gru", 5, 7), draw(4, 3, 5).to("meta"), "meta"),
        (lambda: make_layer("gru", 5, 7), draw(4, 3, 5).long(), "int64"),
        (lambda: make_cell("gru", 5, 7), draw(3, 5).to("meta"), "meta"),
        (lambda: make_layer("gru", 5, 7), draw(4, 3, 5).to_sparse(), "sparse"),
    ),
)
@pytest.mark.needs_extension
def test_why_not(make, input, why):
    line = explain(make(), input)
    assert ": torch.nn (" in line
    assert why in line


def test_layers_of_torch(cell, single):
    assert explain(twin(make_layer(cell, 5, 7)), draw(4, 3, 5)).endswith(": torch.nn (call accelerate)")
    assert explain(twin(make_cell(single, 5, 7)), draw(3, 5)).endswith(": torch.nn (call accelerate)")


def test_a_model():
    lines = dict(line.split(" ", 1) for line in explain(Model(), draw(4, 3, 5)).splitlines())
    assert list(lines) == ["encoder.rnn", "decoder", "cell", "unused"]
    assert lines["decoder"] == "(GRU): torch.nn (call accelerate)"
    assert lines["unused"] == "(RNN): not called"
    assert lines["encoder.rnn"].startswith("(LSTM): ")


@pytest.mark.needs_extension
def test_a_layer_that_takes_two_paths():
    model = torch.nn.Sequential(nn.LSTM(5, 7))
    model.forward = lambda x: (model[0](x), model[0](x), model[0].double()(x.double()))
    lines = explain(model, draw(4, 3, 5)).splitlines()
    assert len(lines) == 2
    assert "float32" in lines[0]
    assert "float64" in lines[1]


def test_a_model_is_left_as_it_was():
    model = Model()
    model.decoder.eval()
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    explain(model, draw(4, 3, 5), packed=True)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(not module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_that_fails_is_left_as_it_was():
    model = Model()
    with pytest.raises(RuntimeError):
        explain(model, draw(4, 3, 6))
    assert model.training
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_no_layers():
    assert explain(torch.nn.Linear(5, 7), draw(4, 5)) == "Linear: holds no recurrent layers and no attention"


def test_bad_input():
    with pytest.raises(TypeError, match="layer"):
        explain("gru", draw(4, 3, 5))
    with pytest.raises(TypeError, match="input"):
        explain(make_layer("gru", 5, 7), [1.0])
    with pytest.raises(TypeError, match="input"):
        explain(make_layer("gru", 5, 7))
