"""accelerate(model): torch.nn's layers become ours, and everything else stays as it is."""

import pickle

import pytest
import torch
from cases import draw, make_cell, make_layer, twin
from torch.testing import assert_close

from seq2seq_fast import accelerate, explain, nn


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rnn = torch.nn.RNN(5, 6, nonlinearity="relu")
        self.stack = torch.nn.ModuleList([torch.nn.GRU(6, 7, 2, dropout=0.5), torch.nn.LSTM(7, 8, bidirectional=True)])
        self.cells = torch.nn.ModuleDict({"gru": torch.nn.GRUCell(16, 9), "lstm": torch.nn.LSTMCell(9, 9)})
        self.rnn_cell = torch.nn.RNNCell(9, 9)
        self.head = torch.nn.Linear(9, 3)

    def forward(self, x):
        x, _ = self.rnn(x)
        for layer in self.stack:
            x, _ = layer(x)
        h = self.cells["gru"](x[-1])
        h, _ = self.cells["lstm"](h)
        return self.head(self.rnn_cell(h))


def test_swaps_every_layer_inside():
    model = accelerate(Model())
    kinds = {name: type(module) for name, module in model.named_modules()}
    assert kinds["rnn"] is nn.RNN
    assert kinds["stack.0"] is nn.GRU
    assert kinds["stack.1"] is nn.LSTM
    assert kinds["cells.gru"] is nn.GRUCell
    assert kinds["cells.lstm"] is nn.LSTMCell
    assert kinds["rnn_cell"] is nn.RNNCell
    assert kinds["head"] is torch.nn.Linear


def test_same_results_and_gradients():
    results = []
    for model in (Model(), accelerate(Model())):
        torch.manual_seed(1)
        output = model(draw(4, 3, 5))
        results.append([output, *torch.autograd.grad(output.square().sum(), list(model.parameters()))])
    assert_close(*results)


def test_what_is_kept():
    model = Model().eval()
    parameters, modules, printed = list(model.parameters()), list(model.modules()), repr(model)
    seen = []
    model.stack[0].register_forward_hook(lambda *_: seen.append("hook"))
    assert accelerate(model) is model
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]
    assert [id(m) for m in model.modules()] == [id(m) for m in modules]
    assert repr(model) == printed
    assert not model.stack[0].training
    model(draw(4, 3, 5))
    assert seen == ["hook"]


def test_an_optimizer_from_before_still_trains():
    losses = []
    for change in (lambda model: model, accelerate):
        model = Model().eval()
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        change(model)
        for _ in range(3):
            loss = model(draw(4, 3, 5)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert_close(losses[3:], losses[:3], rtol=1e-4, atol=1e-5)
    assert losses[5] < losses[3]


def test_a_layer_by_itself(cell, single):
    for ours in (make_layer(cell, 5, 7), make_cell(single, 5, 7)):
        theirs = twin(ours)
        assert accelerate(theirs) is theirs
        assert type(theirs) is type(ours)
        assert_close(theirs(draw(3, 5)), ours(draw(3, 5)))


def test_twice_is_once():
    model = accelerate(accelerate(Model()))
    assert type(model.rnn) is nn.RNN


def test_a_layer_that_is_shared():
    layer = torch.nn.GRU(5, 7)
    model = accelerate(torch.nn.ModuleList([layer, layer]))
    assert model[0] is model[1] is layer
    assert type(layer) is nn.GRU


class Special(torch.nn.GRU):
    def forward(self, input, hx=None):
        output, h_n = super().forward(input, hx)
        return output + 1, h_n


def test_subclasses_are_left_alone():
    model = accelerate(torch.nn.ModuleList([Special(5, 7)]))
    assert type(model[0]) is Special
    assert "subclass" in explain(model[0], draw(4, 3, 5))


def test_pickle_after():
    model = pickle.loads(pickle.dumps(accelerate(Model().eval())))
    assert type(model.stack[0]) is nn.GRU
    assert_close(model(draw(4, 3, 5)), Model().eval()(draw(4, 3, 5)))


@pytest.mark.parametrize("model", (None, 3, [torch.nn.GRU(5, 7)], torch.nn.GRU), ids=str)
def test_refuses_what_is_no_module(model):
    with pytest.raises(TypeError, match="model"):
        accelerate(model)
