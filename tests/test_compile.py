"""torch.compile, torch.export and the operators' registrations."""

import shutil
import subprocess
import sys

import pytest
import torch
from cases import draw, make_cell, make_hx, make_layer, pack, twin
from torch._dynamo.testing import CompileCounterWithBackend
from torch.library import opcheck
from torch.nn.utils import parametrize
from torch.testing import assert_close
from torch.testing._internal.optests import generate_tests

from seq2seq_fast.reserve import reserve_shape

# torch.nn's own layers break graphs and fix their sizes
pytestmark = pytest.mark.needs_extension

BOTH_WAYS = pytest.mark.parametrize("bidirectional", (False, True), ids=("one_way", "both_ways"))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()


def forward_and_gradients(function, module, *inputs, **kwargs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    leaves = torch.utils._pytree.tree_leaves(function(*inputs, **kwargs))
    loss = sum(leaf.square().sum() for leaf in leaves)
    return [*leaves, *torch.autograd.grad(loss, [*inputs, *module.parameters()])]


@BOTH_WAYS
@pytest.mark.parametrize("num_layers", (1, 2))
def test_training(cell, num_layers, bidirectional):
    layer = make_layer(cell, 5, 7, num_layers, bidirectional=bidirectional, batch_first=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    input, hx = draw(3, 4, 5), make_hx(layer, 3)
    states = hx if cell == "lstm" else (hx,)

    def call(module):
        return lambda x, *h: module(x, tuple(h) if cell == "lstm" else h[0])

    assert_close(
        forward_and_gradients(call(compiled), layer, input, *states),
        forward_and_gradients(call(layer), layer, input, *states),
    )


COMPILED = """
import torch{}
from seq2seq_fast import accelerate
layer = accelerate(torch.nn.Sequential(torch.nn.GRU(5, 7)))
assert isinstance(layer[0], torch.nn.GRU)
torch.compile(layer, backend="eager", fullgraph=True)(torch.zeros(4, 3, 5))
"""


@pytest.mark.parametrize("first", ("", "._dynamo"), ids=("ours_first", "dynamo_first"))
def test_whichever_is_imported_first(first):
    subprocess.run([sys.executable, "-c", COMPILED.format(first)], check=True)


def test_torchs_own_layers_are_treated_as_before(cell):
    layer = make_layer(cell, 5, 7)
    torch.compile(layer, backend="eager", fullgraph=True)(draw(4, 3, 5))
    theirs = torch.compile(twin(layer), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"(wrap|not support) RNN, GRU, or LSTM"):
        theirs(draw(4, 3, 5))


def test_parametrized_weights(cell):
    layer = make_layer(cell, 5, 7)
    parametrize.register_parametrization(layer, "weight_hh_l0", torch.nn.Dropout(0.0))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert_close(compiled(draw(4, 3, 5)), layer(draw(4, 3, 5)))


@pytest.mark.parametrize("mode", ("no_grad", "inference_mode", "eval"))
def test_inference(cell, mode):
    layer = make_layer(cell, 5, 7, 2, dropout=0.5).eval()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with getattr(torch, mode)() if mode != "eval" else torch.enable_grad():
        assert_close(compiled(draw(4, 3, 5)), layer(draw(4, 3, 5)))


def test_without_gradients_of_weights(cell):
    layer = make_layer(cell, 5, 7).requires_grad_(False)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    gradients = []
    for module in (compiled, layer):
        input = draw(4, 3, 5).requires_grad_()
        gradients.append(torch.autograd.grad(module(input)[0].sum(), input))
    assert_close(*gradients)


def test_lengths(cell):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    lengths = torch.tensor([2, 4, 0])
    assert_close(
        forward_and_gradients(compiled, layer, draw(4, 3, 5), lengths=lengths),
        forward_and_gradients(layer, layer, draw(4, 3, 5), lengths=lengths),
    )


def test_dropout_draws_the_mask_of_eager(cell):
    layer = make_layer(cell, 5, 7, 2, dropout=0.5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    results = []
    for module in (compiled, layer):
        torch.manual_seed(3)
        results.append(module(draw(4, 3, 5))[0])
    assert_close(*results)


def test_cells(single):
    cell = make_cell(single, 5, 7)
    compiled = torch.compile(cell, backend="aot_eager", fullgraph=True)
    assert_close(forward_and_gradients(compiled, cell, draw(3, 5)), forward_and_gradients(cell, cell, draw(3, 5)))


def test_loop_over_a_cell(single):
    cell = make_cell(single, 7, 7)

    def decode(x):
        hx = None
        for _ in range(3):
            hx = cell(x, hx)
            x = hx[0] if single == "lstm" else hx
        return x

    compiled = torch.compile(decode, backend="aot_eager", fullgraph=True)
    assert_close(forward_and_gradients(compiled, cell, draw(3, 7)), forward_and_gradients(decode, cell, draw(3, 7)))


class Seq2Seq(torch.nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 5)
        self.encoder = make_layer(cell, 5, 7, batch_first=True)
        self.decoder = make_layer(cell, 5, 7, batch_first=True)
        self.head = torch.nn.Linear(7, 11)

    def forward(self, source, target):
        _, context = self.encoder(self.embedding(source))
        output, _ = self.decoder(self.embedding(target), context)
        return self.head(output)


def test_model_trains_to_the_same_losses(cell):
    losses = []
    source, target = (torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for compile in (True, False):
        torch.manual_seed(0)
        model = Seq2Seq(cell)
        optimizer = torch.optim.Adam(model.parameters(), 0.05)
        forward = torch.compile(model, backend="aot_eager", fullgraph=True) if compile else model
        for _ in range(3):
            loss = torch.nn.functional.cross_entropy(forward(source, target).transpose(1, 2), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert_close(losses[:3], losses[3:])
    assert losses[2] < losses[0]


@BOTH_WAYS
def test_sizes_that_change(cell, bidirectional):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional)
    graphs = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=graphs, fullgraph=True, dynamic=True)
    forward_and_gradients(compiled, layer, draw(7, 4, 5))
    compiled_at_first = graphs.frame_count
    for steps, batch in ((4, 3), (5, 6), (9, 2), (3, 8)):
        assert_close(
            forward_and_gradients(compiled, layer, draw(steps, batch, 5)),
            forward_and_gradients(layer, layer, draw(steps, batch, 5)),
        )
    assert graphs.frame_count == compiled_at_first


@pytest.mark.parametrize("lengths", ((4, 3, 1), (2, 4, 1)), ids=("sorted", "unsorted"))
def test_packed(cell, lengths):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)

    def model(x):
        output, states = layer(pack(x, lengths))
        return output.data, states

    # packing itself breaks the graph: lengths are values
    compiled = torch.compile(model, backend="aot_eager")
    assert_close(
        forward_and_gradients(compiled, layer, draw(4, 3, 5)),
        forward_and_gradients(model, layer, draw(4, 3, 5)),
    )


def test_packed_input_of_a_compiled_layer(cell):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    compiled = torch.compile(layer, backend="aot_eager")
    packed = pack(draw(4, 3, 5), (2, 4, 1))
    assert_close(
        torch.utils._pytree.tree_leaves((compiled(packed)[0].data, compiled(packed)[1])),
        torch.utils._pytree.tree_leaves((layer(packed)[0].data, layer(packed)[1])),
    )


def test_autocast(cell):
    layer = make_layer(cell, 5, 7)

    def model(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x)

    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    ours, eager = compiled(draw(4, 3, 5)), model(draw(4, 3, 5))
    assert ours[0].dtype == eager[0].dtype
    assert_close(ours, eager)


# one case: Inductor's C++ takes long to compile
@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="Inductor needs a C++ compiler"
)
def test_inductor():
    layer = make_layer("gru", 5, 7, 2)
    head = torch.nn.Linear(7, 3)
    model = torch.nn.Sequential(layer, First(), head)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(
        forward_and_gradients(compiled, model, draw(4, 3, 5)),
        forward_and_gradients(model, model, draw(4, 3, 5)),
    )


class First(torch.nn.Module):
    def forward(self, pair):
        return pair[0]


@BOTH_WAYS
def test_export(cell, bidirectional):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional, batch_first=True).eval()
    batch, steps = torch.export.Dim("batch", min=2), torch.export.Dim("steps", min=2)
    program = torch.export.export(layer, (draw(3, 4, 5),), dynamic_shapes={"input": {0: batch, 1: steps}})
    for shape in ((3, 4, 5), (6, 9, 5)):
        assert_close(program.module()(draw(*shape)), layer(draw(*shape)))


def test_export_of_a_cell(single):
    cell = make_cell(single, 5, 7)
    program = torch.export.export(cell, (draw(3, 5),))
    assert_close(program.module()(draw(3, 5)), cell(draw(3, 5)))


def test_exported_program_is_saved_and_loaded(tmp_path):
    layer = make_layer("gru", 5, 7)
    torch.export.save(torch.export.export(layer, (draw(4, 3, 5),)), tmp_path / "layer.pt2")
    assert_close(torch.export.load(tmp_path / "layer.pt2").module()(draw(4, 3, 5)), layer(draw(4, 3, 5)))


OPERANDS = {
    "plain": lambda layer: (draw(4, 3, 5), None, None, None),
    "hx": lambda layer: (draw(4, 3, 5), make_hx(layer, 3), None, None),
    "lengths": lambda layer: (draw(4, 3, 5), None, torch.tensor([2, 4, 0]), None),
    "packed": lambda layer: (draw(7, 5), make_hx(layer, 3), None, torch.tensor([3, 2, 1, 1])),
    "one_row": lambda layer: (draw(4, 1, 5), None, None, None),
    "strided": lambda layer: (draw(3, 4, 5).transpose(0, 1), make_hx(layer, 3), None, None),
    "empty_batch": lambda layer: (draw(4, 0, 5), None, None, None),
}


def operands(cell, name, bidirectional, dtype=torch.float32, requires_grad=True):
    """Arguments of rnn_layer for one layer of the kind."""
    layer = make_layer(cell, 5, 7, bidirectional=bidirectional, dtype=dtype)
    input, hx, lengths, batch_sizes = OPERANDS[name](layer)
    h_0, c_0 = hx if isinstance(hx, tuple) else (hx, None)
    input, h_0, c_0 = (None if x is None else x.to(dtype).requires_grad_(requires_grad) for x in (input, h_0, c_0))
    weights = [w.detach().requires_grad_(requires_grad) for w in layer._flat_weights]
    return input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional


@BOTH_WAYS
@pytest.mark.parametrize("name", OPERANDS)
def test_opcheck_rnn_layer(cell, name, bidirectional):
    opcheck(torch.ops.seq2seq_fast.rnn_layer.default, operands(cell, name, bidirectional))


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16, torch.float16), ids=str)
def test_opcheck_dtypes(cell, dtype):
    opcheck(torch.ops.seq2seq_fast.rnn_layer.default, operands(cell, "hx", True, dtype))


def test_opcheck_single_step(single):
    cell = make_cell(single, 5, 7)
    h_0, c_0 = draw(3, 7), draw(3, 7, seed=4) if single == "lstm" else None
    arguments = draw(3, 5), h_0, c_0, list(cell.parameters()), None, None, single, False
    opcheck(torch.ops.seq2seq_fast.rnn_layer.default, arguments)


@BOTH_WAYS
@pytest.mark.parametrize("name", OPERANDS)
def test_opcheck_train_and_backward(cell, name, bidirectional):
    arguments = operands(cell, name, bidirectional, requires_grad=False)
    # past the end of a row the reserve is never written nor read, so no two are equal there
    checks = [
        c for c in generate_tests.DEFAULT_TEST_UTILS if not (name == "lengths" and c == "test_aot_dispatch_dynamic")
    ]
    opcheck(torch.ops.seq2seq_fast.rnn_layer_train.default, arguments, test_utils=checks)
    *outputs, reserve = torch.ops.seq2seq_fast.rnn_layer_train(*arguments)
    d_outputs = [torch.ones_like(output) for output in outputs]
    for needs in ([True] * 4, [False, True, True, False], [True, False, False, False]):
        opcheck(torch.ops.seq2seq_fast.rnn_layer_backward.default, (d_outputs, reserve, needs, *arguments))


@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
def test_reserve_is_as_large_as_the_compiler_is_told(cell, batch_first):
    arguments = operands(cell, "strided" if batch_first else "hx", True, requires_grad=False)
    real = torch.ops.seq2seq_fast.rnn_layer_train(*arguments)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.ops.seq2seq_fast.rnn_layer_train(
            *torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, arguments)
        )
    described = [[(x.shape, x.stride(), x.dtype) for x in outputs] for outputs in (real, fake)]
    assert described[0] == described[1]


@pytest.mark.parametrize("hidden_size", (1, 16, 17, 257, 496, 497, 512, 513, 1024))
def test_slots_are_as_long_as_the_compiler_is_told(cell, hidden_size):
    layer = make_layer(cell, 3, hidden_size)
    reserve = torch.ops.seq2seq_fast.rnn_layer_train(
        draw(2, 5, 3), None, None, list(layer.parameters()), None, None, cell, False
    )[-1]
    assert reserve.shape == reserve_shape(cell, 1, 10, hidden_size)
