"""Export to ONNX, which has operators for torch's own layers and none for ours."""

import pytest
import torch
from cases import draw, make_cell, make_hx, make_layer
from torch.testing import assert_close

from seq2seq_fast import functional, nn

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


def check(module, inputs, path, dynamo: bool) -> set[str]:
    """The operators that `module` was exported with, which give what it gives."""
    expected = torch.utils._pytree.tree_leaves(module.eval()(*inputs))
    torch.onnx.export(module, inputs, path, dynamo=dynamo, verbose=False)
    model = onnx.load(path)
    leaves = [x.numpy() for x in torch.utils._pytree.tree_leaves(inputs)]
    names = [given.name for given in model.graph.input]
    results = reference.ReferenceEvaluator(model).run(None, dict(zip(names, leaves, strict=True)))
    for result, value in zip(results, expected, strict=True):
        assert_close(torch.tensor(result), value.detach(), rtol=1e-4, atol=1e-5)
    return {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("cell", ("gru", "lstm", "rnn_tanh"))
def test_layers(cell, tmp_path):
    layer = make_layer(cell, 5, 7)
    operators = check(layer, (draw(4, 3, 5), make_hx(layer, 3)), tmp_path / "layer.onnx", dynamo=False)
    assert layer.mode.split("_")[0] in operators


@pytest.mark.needs_extension
def test_after_the_export(tmp_path):
    layer = make_layer("gru", 5, 7)
    check(layer, (draw(4, 3, 5),), tmp_path / "layer.onnx", dynamo=False)
    assert layer.why_not_fused(draw(4, 3, 5)) is None


def test_cell(tmp_path):
    check(make_cell("lstm", 5, 7), (draw(3, 5),), tmp_path / "cell.onnx", dynamo=False)


@pytest.fixture(params=(False, True), ids=("torchscript", "dynamo"))
def dynamo(request) -> bool:
    if request.param:
        pytest.importorskip("onnxscript")
    return request.param


@pytest.mark.parametrize(
    "options", ({}, {"score": "additive"}, {"num_heads": 2}), ids=("one_head", "additive", "heads")
)
def test_seq2seq_attention(dynamo, options, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Attention(8, **options)

        def forward(self, query, keys):
            return self.attention(query, keys=keys)

    check(Model(), (draw(3, 4, 8), draw(3, 5, 8)), tmp_path / "model.onnx", dynamo)


def test_weights_of_attention(dynamo, tmp_path):
    class Model(torch.nn.Module):
        def forward(self, query, key):
            return functional.scaled_dot_product_attention(query, key, key, return_weights=True, average_weights=True)

    check(Model(), (draw(3, 2, 4, 8), draw(3, 2, 5, 8)), tmp_path / "model.onnx", dynamo)


def test_model(dynamo, tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(5, 8, batch_first=True)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            states = self.layer(x)[0]
            return self.attention(states, states, states)

    check(Model(), (draw(3, 4, 5),), tmp_path / "model.onnx", dynamo)
