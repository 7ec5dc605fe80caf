"""Bad input raises what torch.nn raises, in words that name the argument, and crashes nothing."""

import pytest
import torch
from cases import draw, make_cell, make_hx, make_layer, pack, twin
from torch.nn.utils.rnn import PackedSequence

from seq2seq_fast import _native


def zeros(cell, *shape, dtype=torch.float32, device="cpu"):
    """A state of that shape, for the LSTM two."""
    state = torch.zeros(*shape, dtype=dtype, device=device)
    return (state, state.clone()) if cell == "lstm" else state


def replaced(layer, name, value):
    setattr(layer, name, torch.nn.Parameter(value))
    return layer


def packed(rows, batch_sizes):
    return PackedSequence(draw(rows, 5), torch.tensor(batch_sizes, dtype=torch.int64))


# a call of a layer of 5 inputs and 7 hidden units, and a word that the message has
CALLS = {
    "input of 0 dimensions": (lambda m, c: m(draw()), "input"),
    "input of 1 dimension": (lambda m, c: m(draw(5)), "input"),
    "input of 4 dimensions": (lambda m, c: m(draw(1, 4, 3, 5)), "input"),
    "input of a wrong size": (lambda m, c: m(draw(4, 3, 6)), "input"),
    "input of a wrong size, unbatched": (lambda m, c: m(draw(4, 6)), "input"),
    "input of a wrong size, empty batch": (lambda m, c: m(draw(4, 0, 6)), "input"),
    "input of no features": (lambda m, c: m(draw(4, 3, 0)), "input"),
    "input of float64": (lambda m, c: m(draw(4, 3, 5).double()), "input"),
    "input of float16": (lambda m, c: m(draw(4, 3, 5).half()), "input"),
    "input of int64": (lambda m, c: m(draw(4, 3, 5).long()), "input"),
    "input of bool": (lambda m, c: m(draw(4, 3, 5).bool()), "input"),
    "input of complex64": (lambda m, c: m(draw(4, 3, 5).to(torch.complex64)), "input"),
    "input on meta": (lambda m, c: m(draw(4, 3, 5).to("meta")), "[Ii]nput"),
    "input of no steps": (lambda m, c: m(draw(0, 3, 5)), "sequence length"),
    "input of no steps, unbatched": (lambda m, c: m(draw(0, 5)), "sequence length"),
    "hx of 2 dimensions": (lambda m, c: m(draw(4, 3, 5), zeros(c, 3, 7)), "hx"),
    "hx of 3 dimensions, unbatched": (lambda m, c: m(draw(4, 5), zeros(c, 1, 1, 7)), "hx"),
    "hx of 4 dimensions": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 1, 3, 7)), "hx"),
    "hx of two layers": (lambda m, c: m(draw(4, 3, 5), zeros(c, 2, 3, 7)), "h_0|hidden"),
    "hx of no layers": (lambda m, c: m(draw(4, 3, 5), zeros(c, 0, 3, 7)), "h_0|hidden"),
    "hx of another batch": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 2, 7)), "h_0|hidden"),
    "hx of a batch to broadcast": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 1, 7)), "h_0|hidden"),
    "hx of a wrong size": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 3, 8)), "h_0|hidden"),
    "hx of float64": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 3, 7, dtype=torch.float64)), "h_0"),
    "hx of int64": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 3, 7, dtype=torch.int64)), "h_0"),
    "hx on meta": (lambda m, c: m(draw(4, 3, 5), zeros(c, 1, 3, 7, device="meta")), "h_0|hidden"),
    "hx of a batch, packed": (
        lambda m, c: m(pack(draw(4, 3, 5), (2, 4, 1)), zeros(c, 1, 2, 7)),
        "h_0|hidden",
    ),
    "packed data of a wrong size": (lambda m, c: m(pack(draw(4, 3, 6), (2, 4, 1))), "input"),
    "packed data of 3 dimensions": (
        lambda m, c: m(PackedSequence(draw(4, 3, 5), torch.tensor([4]))),
        "input",
    ),
    "batch_sizes that increase": (lambda m, c: m(packed(6, [1, 2, 3])), "batch_sizes"),
    "batch_sizes below 0": (lambda m, c: m(packed(3, [4, -1])), "batch_sizes"),
    "batch_sizes of too many rows": (lambda m, c: m(packed(3, [4, 3])), "batch_sizes"),
    "batch_sizes far too large": (lambda m, c: m(packed(3, [2**62, 2**62])), "batch_sizes"),
    "weight_hh of float64": (
        lambda m, c: replaced(m, "weight_hh_l0", m.weight_hh_l0.detach().double())(draw(4, 3, 5)),
        "weight_hh",
    ),
    "weight_hh on meta": (
        lambda m, c: replaced(m, "weight_hh_l0", m.weight_hh_l0.detach().to("meta"))(draw(4, 3, 5)),
        "weight_hh|parameter",
    ),
    "bias_hh of a wrong size": (lambda m, c: replaced(m, "bias_hh_l0", draw(2))(draw(4, 3, 5)), "bias_hh"),
}


@pytest.mark.sanitize
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
@pytest.mark.parametrize("name", CALLS)
def test_raises_what_torch_raises(cell, name):
    call, word = CALLS[name]
    with pytest.raises(Exception) as theirs:
        call(twin(make_layer(cell, 5, 7)), cell)
    with pytest.raises(theirs.type, match=word if _native.extension else None):
        call(make_layer(cell, 5, 7), cell)


# where torch.nn trips over the argument by accident, or takes it and goes on
CLEARER = {
    "packed data of float64": (lambda m, c: m(pack(draw(4, 3, 5).double(), (2, 4, 1))), ValueError, "input"),
    "hx of 2 dimensions, packed": (
        lambda m, c: m(pack(draw(4, 3, 5), (2, 4, 1)), zeros(c, 3, 7)),
        RuntimeError,
        "h_0|hidden",
    ),
    "batch_sizes of too few rows": (lambda m, c: m(packed(9, [4, 3])), RuntimeError, "batch_sizes"),
    "batch_sizes of no steps": (lambda m, c: m(packed(0, [])), RuntimeError, "batch_sizes"),
    "weight_ih of a wrong size": (
        lambda m, c: replaced(m, "weight_ih_l0", draw(len(m.weight_ih_l0), 4))(draw(4, 3, 5)),
        RuntimeError,
        "input|weight_ih",
    ),
    "weight_hh of a wrong size": (
        lambda m, c: replaced(m, "weight_hh_l0", draw(3, 7))(draw(4, 3, 5)),
        RuntimeError,
        "weight",
    ),
    "weight_hh of 1 dimension": (
        lambda m, c: replaced(m, "weight_hh_l0", draw(7))(draw(4, 3, 5)),
        RuntimeError,
        "weight_hh",
    ),
}


@pytest.mark.sanitize
@pytest.mark.needs_extension
@pytest.mark.parametrize("name", CLEARER)
def test_raises_clearer_than_torch(cell, name):
    call, kind, word = CLEARER[name]
    with pytest.raises(kind, match=word):
        call(make_layer(cell, 5, 7), cell)


@pytest.mark.parametrize(
    "hx", (torch.zeros(1, 3, 7), (torch.zeros(1, 3, 7),), (torch.zeros(1, 3, 7),) * 3, "zeros", 0.0), ids=type
)
def test_hx_of_the_lstm_is_a_pair(hx):
    with pytest.raises((TypeError, RuntimeError), match="hx"):
        make_layer("lstm", 5, 7)(draw(4, 3, 5), hx)


@pytest.mark.parametrize("cell", ("gru", "rnn_tanh"))
@pytest.mark.parametrize("count", (1, 2, 3))
def test_hx_of_the_others_is_a_tensor(cell, count):
    hx = (torch.zeros(1, 3, 7),) * count
    with pytest.raises(Exception) as theirs:
        twin(make_layer(cell, 5, 7))(draw(4, 3, 5), hx)
    with pytest.raises((theirs.type, TypeError)):
        make_layer(cell, 5, 7)(draw(4, 3, 5), hx)


@pytest.mark.parametrize("input", (None, [1.0, 2.0], "text", draw(4, 3, 5).numpy()), ids=type)
def test_input_that_is_no_tensor(cell, input):
    with pytest.raises(Exception) as theirs:
        twin(make_layer(cell, 5, 7))(input)
    with pytest.raises(theirs.type):
        make_layer(cell, 5, 7)(input)


LENGTHS = {
    "below 0": ([2, -1, 1], RuntimeError),
    "beyond the steps": ([2, 5, 1], RuntimeError),
    "far beyond the steps": ([2, 2**62, 1], RuntimeError),
    "too few": ([2, 4], RuntimeError),
    "too many": ([2, 4, 1, 1], RuntimeError),
    "none": ([], (RuntimeError, TypeError)),
    "of 2 dimensions": ([[2, 4, 1]], RuntimeError),
    "of 0 dimensions": (torch.tensor(3), RuntimeError),
    "floats": ([2.0, 4.0, 1.0], TypeError),
    "bools": (torch.tensor([True, True, False]), TypeError),
    "text": ("241", TypeError),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", LENGTHS)
def test_lengths(cell, name):
    lengths, kind = LENGTHS[name]
    with pytest.raises(kind, match="lengths" if name != "text" else None):
        make_layer(cell, 5, 7, 2, bidirectional=True)(draw(4, 3, 5), lengths=lengths)


@pytest.mark.parametrize("name", LENGTHS)
def test_lengths_of_a_layer_that_torch_runs(name, not_built):
    lengths, kind = LENGTHS[name]
    with pytest.raises(kind, match="lengths" if name != "text" else None):
        make_layer("lstm", 5, 7)(draw(4, 3, 5), lengths=lengths)


def test_lengths_of_input_that_has_its_own(cell):
    with pytest.raises(ValueError, match="lengths"):
        make_layer(cell, 5, 7)(pack(draw(4, 3, 5), (2, 4, 1)), lengths=[2, 4, 1])
    with pytest.raises(ValueError, match="lengths"):
        make_layer(cell, 5, 7)(draw(4, 5), lengths=[4])


CELL_CALLS = {
    "input of 0 dimensions": lambda m, c: m(draw()),
    "input of 3 dimensions": lambda m, c: m(draw(1, 3, 5)),
    "input of a wrong size": lambda m, c: m(draw(3, 6)),
    "input of a wrong size, unbatched": lambda m, c: m(draw(6)),
    "input of float64": lambda m, c: m(draw(3, 5).double()),
    "input of int64": lambda m, c: m(draw(3, 5).long()),
    "hx of another batch": lambda m, c: m(draw(3, 5), zeros(c, 2, 7)),
    "hx of a batch to broadcast": lambda m, c: m(draw(3, 5), zeros(c, 1, 7)),
    "hx of a wrong size": lambda m, c: m(draw(3, 5), zeros(c, 3, 8)),
    "hx of 1 dimension": lambda m, c: m(draw(3, 5), zeros(c, 7)),
    "hx of 2 dimensions, unbatched": lambda m, c: m(draw(5), zeros(c, 3, 7)),
    "hx of 3 dimensions": lambda m, c: m(draw(3, 5), zeros(c, 1, 3, 7)),
    "hx of float64": lambda m, c: m(draw(3, 5), zeros(c, 3, 7, dtype=torch.float64)),
    "weight_hh of a wrong size": lambda m, c: replaced(m, "weight_hh", draw(3, 7))(draw(3, 5)),
    "bias_ih of a wrong size": lambda m, c: replaced(m, "bias_ih", draw(3))(draw(3, 5)),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("name", CELL_CALLS)
def test_cell_raises_what_torch_raises(single, name):
    with pytest.raises(Exception) as theirs:
        CELL_CALLS[name](twin(make_cell(single, 5, 7)), single)
    with pytest.raises(theirs.type):
        CELL_CALLS[name](make_cell(single, 5, 7), single)


CONSTRUCTORS = {
    "hidden_size 0": ((5, 0), {}),
    "input_size 0": ((0, 5), {}),
    "hidden_size float": ((5, 7.0), {}),
    "num_layers 0": ((5, 7, 0), {}),
    "dropout below 0": ((5, 7, 2), {"dropout": -0.1}),
    "dropout above 1": ((5, 7, 2), {"dropout": 1.5}),
    "dropout bool": ((5, 7, 2), {"dropout": True}),
    "bias int": ((5, 7), {"bias": 1}),
    "batch_first str": ((5, 7), {"batch_first": "yes"}),
    "proj_size beyond hidden_size": ((5, 7), {"proj_size": 9}),
    "proj_size below 0": ((5, 7), {"proj_size": -1}),
    "unknown": ((5, 7), {"hidden": 3}),
    "missing": ((5,), {}),
    "integer dtype": ((5, 7), {"dtype": torch.int64}),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructor_raises_what_torch_raises(cell, name):
    ours = type(make_layer(cell, 5, 7))
    args, kwargs = CONSTRUCTORS[name]
    with pytest.raises(Exception) as theirs:
        getattr(torch.nn, ours.__name__)(*args, **kwargs)
    with pytest.raises(theirs.type):
        ours(*args, **kwargs)


def test_unknown_nonlinearity():
    for cls in (type(make_layer("rnn_tanh", 1, 1)), torch.nn.RNN):
        with pytest.raises(ValueError, match="nonlinearity"):
            cls(5, 7, nonlinearity="sigmoid")


def arguments(kind, **changes):
    """Those of the operators, good but for `changes`."""
    layer = make_layer(kind, 5, 7)
    h_0, c_0 = hx if isinstance(hx := make_hx(layer, 3), tuple) else (hx, None)
    good = {
        "input": draw(4, 3, 5),
        "h_0": h_0,
        "c_0": c_0,
        "weights": [w.detach() for w in layer.parameters()],
        "lengths": None,
        "batch_sizes": None,
        "cell": kind,
        "bidirectional": False,
    }
    return tuple((good | changes).values())


NONSENSE = {
    "cell": {"cell": "gruu"},
    "no weights": {"weights": []},
    "one weight": {"weights": [draw(21, 5)]},
    "weights of 0 dimensions": {"weights": [draw()] * 4},
    "weights of other sizes": {"weights": [draw(9, 5), draw(21, 7), draw(21), draw(21)]},
    "weights of no rows": {"weights": [draw(0, 5), draw(0, 7), draw(0), draw(0)]},
    "two directions": {"bidirectional": True},
    "input of 1 dimension": {"input": draw(5)},
    "input of int64": {"input": draw(4, 3, 5).long()},
    "input of complex64": {"input": draw(4, 3, 5).to(torch.complex64)},
    "h_0 of no elements": {"h_0": draw(0)},
    "h_0 of 1 dimension": {"h_0": draw(21)},
    "c_0 of 1 dimension": {"c_0": draw(21)},
    "lengths of float": {"lengths": draw(3)},
    "lengths of int32": {"lengths": torch.tensor([1, 2, 3], dtype=torch.int32)},
    "lengths beyond": {"lengths": torch.tensor([1, 2, 9])},
    "lengths below 0": {"lengths": torch.tensor([1, 2, -9])},
    "lengths of 2 dimensions": {"lengths": torch.ones(3, 3, dtype=torch.int64)},
    "batch_sizes of padded input": {"batch_sizes": torch.tensor([3, 2, 1])},
    "batch_sizes of float": {"input": draw(6, 5), "batch_sizes": torch.tensor([3.0, 2.0, 1.0])},
    "batch_sizes of 2 dimensions": {"input": draw(6, 5), "batch_sizes": torch.tensor([[3, 2, 1]])},
    "batch_sizes and lengths": {
        "input": draw(6, 5),
        "batch_sizes": torch.tensor([3, 2, 1]),
        "lengths": torch.tensor([3, 2, 1]),
    },
}


@pytest.mark.sanitize
@pytest.mark.needs_extension
@pytest.mark.parametrize("op", ("rnn_layer", "rnn_layer_train"))
@pytest.mark.parametrize("name", NONSENSE)
def test_operators_refuse_nonsense(cell, op, name):
    with pytest.raises((RuntimeError, ValueError)):
        getattr(torch.ops.seq2seq_fast, op)(*arguments(cell, **NONSENSE[name]))


BACKWARD_NONSENSE = {
    "no gradients": lambda d, reserve: ([], reserve),
    "too many gradients": lambda d, reserve: (d * 2, reserve),
    "gradients of a wrong size": lambda d, reserve: ([x[:1] for x in d], reserve),
    "gradients of 0 dimensions": lambda d, reserve: ([x.sum() for x in d], reserve),
    "reserve too small": lambda d, reserve: (d, reserve[..., :1]),
    "reserve of no elements": lambda d, reserve: (d, reserve[:0]),
    "reserve of another dtype": lambda d, reserve: (d, reserve.half()),
    "reserve strided": lambda d, reserve: (d, reserve.repeat_interleave(2, -1)[..., ::2]),
}


@pytest.mark.sanitize
@pytest.mark.needs_extension
@pytest.mark.parametrize("name", BACKWARD_NONSENSE)
def test_backward_refuses_nonsense(cell, name):
    good = arguments(cell)
    *outputs, reserve = torch.ops.seq2seq_fast.rnn_layer_train(*good)
    d_outputs, reserve = BACKWARD_NONSENSE[name]([torch.ones_like(x) for x in outputs], reserve)
    with pytest.raises((RuntimeError, ValueError)):
        torch.ops.seq2seq_fast.rnn_layer_backward(d_outputs, reserve, [True] * 4, *good)


@pytest.mark.sanitize
@pytest.mark.needs_extension
@pytest.mark.parametrize("name", NONSENSE)
def test_backward_refuses_nonsense_of_forward(cell, name):
    *outputs, reserve = torch.ops.seq2seq_fast.rnn_layer_train(*arguments(cell))
    d_outputs = [torch.ones_like(x) for x in outputs]
    with pytest.raises((RuntimeError, ValueError)):
        torch.ops.seq2seq_fast.rnn_layer_backward(d_outputs, reserve, [True] * 4, *arguments(cell, **NONSENSE[name]))


def test_a_layer_works_after_an_error(cell):
    layer = make_layer(cell, 5, 7)
    expected = layer(draw(4, 3, 5))
    with pytest.raises(RuntimeError):
        layer(draw(4, 3, 6))
    assert torch.equal(layer(draw(4, 3, 5))[0], expected[0])
