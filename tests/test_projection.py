"""LSTM with `proj_size`: h' = W_hr (o tanh(c')), of every flag and size, against the oracle and torch.nn."""

import itertools

import pytest
import torch
from cases import draw, make_hx, make_layer, pack, twin
from cell_operators import check
from error_rule import assert_as_accurate, run
from leaves import assert_the_same_for_further_derivatives
from oracle import Oracle
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call, grad, vmap

from seq2seq_fast import explain, functional

BOOLS = (False, True)
BOTH_WAYS = pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")


def make(*sizes, proj_size, **flags):
    return make_layer("lstm", *sizes, proj_size=proj_size, **flags)


def compare(layer, input, hx=None):
    ours, theirs, oracle = (run(module, input, hx) for module in (layer, twin(layer), Oracle(layer)))
    assert_as_accurate(ours, theirs, oracle)


@pytest.mark.needs_extension
def test_is_fused(dtype):
    layer = make(5, 7, proj_size=3, dtype=dtype)
    assert explain(layer, draw(4, 3, 5, dtype=dtype)).startswith("LSTM: fused (cpu, ")


@pytest.mark.sanitize
@pytest.mark.parametrize("num_layers", (1, 3))
@pytest.mark.parametrize("bias, batch_first, bidirectional, with_hx", list(itertools.product(BOOLS, repeat=4)))
def test_flags(dtype, num_layers, bias, batch_first, bidirectional, with_hx):
    layer = make(5, 7, num_layers, bias, batch_first, proj_size=3, bidirectional=bidirectional, dtype=dtype)
    input = draw(*((3, 4, 5) if batch_first else (4, 3, 5)), dtype=dtype)
    compare(layer, input, make_hx(layer, 3, dtype) if with_hx else None)


@BOTH_WAYS
@pytest.mark.parametrize("with_hx", BOOLS, ids=("zeros", "hx"))
def test_unbatched(dtype, bidirectional, with_hx):
    layer = make(5, 7, 2, proj_size=3, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(4, 5, dtype=dtype), make_hx(layer, None, dtype) if with_hx else None)


@pytest.mark.sanitize
@BOTH_WAYS
@pytest.mark.parametrize("lengths", ((6, 4, 4, 1), (4, 1, 6, 4)), ids=("sorted", "unsorted"))
@pytest.mark.parametrize("with_hx", BOOLS, ids=("zeros", "hx"))
def test_packed(dtype, bidirectional, lengths, with_hx):
    layer = make(5, 7, 2, proj_size=3, bidirectional=bidirectional, dtype=dtype)
    compare(layer, pack(draw(6, 4, 5, dtype=dtype), lengths), make_hx(layer, 4, dtype) if with_hx else None)


@pytest.mark.sanitize
@BOTH_WAYS
@pytest.mark.parametrize("lengths", ((6, 4, 1, 1), (4, 1, 6, 4)), ids=("sorted", "unsorted"))
def test_lengths_equal_packing(bidirectional, lengths):
    layer = make(5, 7, 2, proj_size=3, bidirectional=bidirectional)
    input, hx = draw(6, 4, 5), make_hx(layer, 4)
    output, states = layer(input, hx, lengths=lengths)
    packed, packed_states = layer(pack(input, lengths), hx)
    unpacked, _ = torch.nn.utils.rnn.pad_packed_sequence(packed)
    torch.testing.assert_close((output, states), (unpacked, packed_states))


@BOTH_WAYS
def test_rows_without_steps(bidirectional):
    layer = make(5, 7, proj_size=3, bidirectional=bidirectional)
    hx = make_hx(layer, 3)
    output, (h_n, c_n) = layer(draw(4, 3, 5), hx, lengths=[2, 0, 4])
    assert not output[:, 1].any()
    assert torch.equal(h_n[:, 1], hx[0][:, 1])
    assert torch.equal(c_n[:, 1], hx[1][:, 1])


# T, B, I, H, P: few rows and many, whole vectors and not, for one thread and for two by units and by rows
SIZES = (
    (1, 1, 1, 2, 1),
    (1, 1, 2, 63, 1),
    (1, 63, 2, 2, 1),
    (2, 1, 63, 63, 62),
    (3, 17, 15, 257, 63),
    (2, 2, 257, 64, 32),
    (4, 3, 64, 128, 64),
    (257, 1, 2, 3, 2),
    (63, 5, 2, 17, 16),
    (3, 63, 3, 63, 33),
    (20, 1, 64, 512, 128),
    (5, 128, 32, 64, 32),
    (7, 37, 90, 131, 40),
    (6, 130, 40, 257, 1),
    (70, 33, 3, 2, 1),
    (3, 70, 290, 321, 257),
)


@pytest.mark.sanitize
@BOTH_WAYS
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(dtype, sizes, bidirectional):
    steps, batch, input_size, hidden_size, proj_size = sizes
    layer = make(input_size, hidden_size, proj_size=proj_size, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(steps, batch, input_size, dtype=dtype), make_hx(layer, batch, dtype))


@BOTH_WAYS
@pytest.mark.parametrize("lengths", ([20] + [3] * 63, list(range(1, 65))), ids=("one_long_row", "staircase"))
def test_ragged_work_for_two_threads(bidirectional, lengths):
    layer = make(33, 65, proj_size=40, bidirectional=bidirectional)
    compare(layer, pack(draw(max(lengths), 64, 33), lengths), make_hx(layer, 64))


@pytest.mark.sanitize
@BOTH_WAYS
def test_empty_batch(dtype, bidirectional):
    layer = make(5, 7, 2, proj_size=3, bidirectional=bidirectional, dtype=dtype)
    input, hx = draw(4, 0, 5, dtype=dtype), make_hx(layer, 0, dtype)
    ours, theirs = run(layer, input, hx), run(twin(layer), input, hx)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_inference_gives_what_training_gives(dtype):
    layer = make(9, 37, 2, proj_size=21, bidirectional=True, dtype=dtype)
    input, hx = draw(4, 3, 9, dtype=dtype), make_hx(layer, 3, dtype)
    training = layer(input, hx)
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode():
            torch.testing.assert_close(layer(input, hx), training)


def tensors_of(layer, input, hx):
    names, weights = zip(*layer.named_parameters(), strict=True)

    def function(x, h_0, c_0, *weights):
        output, states = functional_call(layer, dict(zip(names, weights, strict=True)), (x, (h_0, c_0)))
        return output, *states

    return function, tuple(x.detach().double().requires_grad_() for x in (input, *hx, *weights))


@BOTH_WAYS
@pytest.mark.parametrize("bias", BOOLS, ids=("no_bias", "bias"))
def test_derivatives(bidirectional, bias):
    layer = make(2, 3, bias=bias, proj_size=2, bidirectional=bidirectional).double()
    function, tensors = tensors_of(layer, draw(3, 2, 2), make_hx(layer, 2))
    assert gradcheck(function, tensors, check_batched_grad=True)
    assert gradgradcheck(function, tensors)
    assert_the_same_for_further_derivatives(torch.cat([x.flatten() for x in function(*tensors)]), tensors)


@pytest.mark.needs_extension
def test_forward_mode():
    layer = make(2, 3, proj_size=2).double()
    function, tensors = tensors_of(layer, draw(3, 2, 2), make_hx(layer, 2))
    assert gradcheck(function, tensors, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("name", ("weight_ih_l0", "weight_hh_l0", "weight_hr_l0", "bias_hh_l0"))
def test_gradient_of_one_weight(name):
    layer = make(5, 7, proj_size=3)
    for other, parameter in layer.named_parameters():
        parameter.requires_grad_(other == name)
    torch_layer = twin(layer)
    for module in (layer, torch_layer):
        module(draw(4, 3, 5))[0].square().sum().backward()
    torch.testing.assert_close(layer.get_parameter(name).grad, torch_layer.get_parameter(name).grad)


# the cell state of one step has nothing of it
@pytest.mark.parametrize("steps", (1, 3))
def test_further_derivatives_of_the_projection_alone(steps):
    layer = make(2, 3, proj_size=2).double()
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(name == "weight_hr_l0")
    x, hx = draw(steps, 2, 2, dtype=torch.float64), make_hx(layer, 2, torch.float64)

    def function(weight_hr):
        output, states = functional_call(layer, {"weight_hr_l0": weight_hr}, (x, hx))
        return output, *states

    assert gradcheck(function, layer.weight_hr_l0, check_batched_grad=True)
    assert gradgradcheck(function, layer.weight_hr_l0)


def test_per_sample_gradients():
    layer = make(5, 7, proj_size=3).double()
    weights = dict(layer.named_parameters())

    def loss(weights, x):
        return functional_call(layer, weights, (x,))[0].square().sum()

    rows = draw(4, 6, 5, dtype=torch.float64)
    together = vmap(grad(loss), in_dims=(None, 0))(weights, rows)
    for k, row in enumerate(rows):
        alone = grad(loss)(weights, row)
        torch.testing.assert_close({name: d[k] for name, d in together.items()}, alone)


@pytest.mark.parametrize("form", ("padded", "unbatched", "packed"))
@pytest.mark.parametrize("with_hx", BOOLS, ids=("zeros", "hx"))
def test_autocast(form, with_hx):
    layer = make(5, 32, proj_size=16)
    input = draw(4, 5) if form == "unbatched" else draw(4, 3, 5)
    if form == "packed":
        input = pack(input, (4, 2, 1))
    hx = make_hx(layer, None if form == "unbatched" else 3) if with_hx else None
    results = []
    for module in (layer, twin(layer)):
        with torch.autocast("cpu", torch.bfloat16):
            output, states = module(input, hx)
        results.append((output.data if form == "packed" else output, states))
    torch.testing.assert_close(*results, rtol=0.05, atol=0.02)


@pytest.mark.needs_extension
@pytest.mark.parametrize("packed", BOOLS, ids=("padded", "packed"))
def test_compile_of_training(packed):
    layer = make(5, 7, 2, proj_size=3, bidirectional=True)
    data = draw(4, 3, 5)
    input = pack(data, (4, 2, 1)) if packed else data
    results = []
    for module in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
        output, states = module(input)
        loss = (output.data if packed else output).square().sum() + sum(s.sum() for s in states)
        results.append((loss, torch.autograd.grad(loss, list(layer.parameters()))))
    torch.testing.assert_close(*results)


@pytest.mark.needs_extension
def test_export():
    layer, data = make(5, 7, 2, proj_size=3), draw(4, 3, 5)
    exported = torch.export.export(layer, (data,))
    torch.testing.assert_close(exported.module()(data), layer(data))


def operator_arguments(dtype, *, bias, bidirectional, packed=False):
    rows, hidden, proj, directions = 28, 7, 3, 1 + bidirectional
    shapes = [(rows, 5), (rows, proj), *([(rows,), (rows,)] if bias else []), (proj, hidden)]
    weights = [draw(*shape, dtype=dtype, seed=k) / 4 for k, shape in enumerate(shapes * directions)]
    states = draw(directions, 3, proj, dtype=dtype), draw(directions, 3, hidden, dtype=dtype)
    input = draw(6, 5, dtype=dtype) if packed else draw(4, 3, 5, dtype=dtype)
    return input, *states, weights, None, torch.tensor([3, 2, 1]) if packed else None, "lstm", bidirectional


@pytest.mark.needs_extension
@BOTH_WAYS
@pytest.mark.parametrize("bias", BOOLS, ids=("no_bias", "bias"))
@pytest.mark.parametrize("packed", BOOLS, ids=("padded", "packed"))
def test_operators(dtype, bias, bidirectional, packed):
    check(operator_arguments(dtype, bias=bias, bidirectional=bidirectional, packed=packed), torch.ops.seq2seq_fast)


@pytest.mark.needs_extension
@BOTH_WAYS
def test_opcheck(bidirectional):
    arguments = operator_arguments(torch.float64, bias=True, bidirectional=bidirectional)
    leaves = *(x.requires_grad_() for x in arguments[:3]), [w.requires_grad_() for w in arguments[3]], *arguments[4:]
    torch.library.opcheck(torch.ops.seq2seq_fast.rnn_layer.default, leaves)


ERRORS = {
    "h_0 of hidden_size": lambda layer: layer(draw(4, 3, 5), (draw(1, 3, 7), draw(1, 3, 7))),
    "c_0 of proj_size": lambda layer: layer(draw(4, 3, 5), (draw(1, 3, 3), draw(1, 3, 3))),
    "h_0 of float64": lambda layer: layer(draw(4, 3, 5), (draw(1, 3, 3).double(), draw(1, 3, 7))),
    "input of a wrong size": lambda layer: layer(draw(4, 3, 6)),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ERRORS)
def test_bad_input_raises_as_in_torch(name):
    layer = make(5, 7, proj_size=3)
    with pytest.raises(Exception) as theirs:
        ERRORS[name](twin(layer))
    with pytest.raises(theirs.type, match="input" if name.startswith("input") else name[:3]):
        ERRORS[name](layer)


WEIGHTS = {
    "of another hidden_size": draw(3, 8),
    "of as many rows as columns": draw(7, 7),
    "without rows": draw(0, 7),
    "of one dimension": draw(7),
    "of float64": draw(3, 7).double(),
}


@pytest.mark.sanitize
@pytest.mark.needs_extension
@pytest.mark.parametrize("name", WEIGHTS)
def test_bad_weight_hr(name):
    layer = make(5, 7, proj_size=3)
    weights = [*list(layer.parameters())[:-1], WEIGHTS[name]]
    with pytest.raises(RuntimeError, match="weight_"):
        functional.rnn("lstm", draw(4, 3, 5), (None, None), [weights])


@pytest.mark.needs_extension
def test_only_the_lstm_has_a_projection():
    layer = make_layer("gru", 5, 7)
    with pytest.raises(RuntimeError, match="weight_hr: only the LSTM"):
        functional.rnn("gru", draw(4, 3, 5), (None,), [[*layer.parameters(), draw(3, 7)]])
