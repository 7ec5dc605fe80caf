"""The cells' kernels against the reference, as the operators of ops.py are called."""

import pytest
import torch
from cell_operators import GATES, arguments, check

from seq2seq_fast.kernels import cell_layer

# the interpreter computes bfloat16 on its bit patterns: tests/gpu has it
DTYPES = (torch.float64, torch.float32, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize("batch, width, hidden", [(1, 1, 1), (5, 40, 17), (1, 40, 63), (5, 1, 130), (19, 3, 33)])
def test_single_step(cell, dtype, batch, width, hidden):
    check(arguments(cell, dtype, (batch, width), batch, hidden), cell_layer)


@pytest.mark.parametrize("bias, state", [(False, True), (True, False), (False, False)])
@pytest.mark.parametrize("cell", GATES)
def test_without_bias_or_state(cell, bias, state):
    check(arguments(cell, torch.float64, (5, 40), 5, 17, bias=bias, state=state), cell_layer)
    check(arguments(cell, torch.float64, (3, 2, 4), 2, 5, bias=bias, state=state), cell_layer)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_layer(cell, bidirectional, dtype):
    check(arguments(cell, dtype, (3, 5, 6), 5, 17, bidirectional=bidirectional), cell_layer)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_lengths(cell, state, bidirectional):
    lengths = torch.tensor([2, 4, 1, 3])
    check(
        arguments(cell, torch.float64, (4, 4, 6), 4, 17, lengths=lengths, state=state, bidirectional=bidirectional),
        cell_layer,
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_packed(cell, state, bidirectional):
    sizes = torch.tensor([4, 2, 2, 1])
    check(
        arguments(cell, torch.float64, (9, 6), 4, 17, batch_sizes=sizes, state=state, bidirectional=bidirectional),
        cell_layer,
    )


def test_what_is_padding_is_not_read():
    lengths = torch.tensor([2, 3])
    clean = arguments("gru", torch.float64, (3, 2, 6), 2, 17, lengths=lengths)
    dirty = (clean[0].clone(), *clean[1:])
    dirty[0][2, 0] = torch.nan
    d_outputs = [torch.ones(3, 2, 17).double(), torch.ones(1, 2, 17).double()]
    for args in (clean, dirty):
        *_, reserve = cell_layer.rnn_layer_train(*args)
        gradients = cell_layer.rnn_layer_backward(d_outputs, reserve, [True] * 4, *args)
        assert all(torch.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("cell", GATES)
def test_strided(cell):
    """Strides of any kind, and gradients of outputs that are expanded or absent."""
    args = arguments(cell, torch.float64, (3, 4, 6), 4, 17)
    strided = [x if x is None else x.mT.contiguous().mT for x in args[:3]]
    strided = (*strided, [w.T.contiguous().T if w.dim() == 2 else w for w in args[3]], *args[4:])
    *outputs, reserve = cell_layer.rnn_layer_train(*args)
    *same, _ = cell_layer.rnn_layer_train(*strided)
    torch.testing.assert_close(same, outputs, rtol=0, atol=1e-15)
    states = [None] * (len(outputs) - 1)
    expanded = cell_layer.rnn_layer_backward(
        [torch.ones(()).double().expand(outputs[0].shape), *states], reserve, [True] * 4, *strided
    )
    dense = cell_layer.rnn_layer_backward([torch.ones_like(outputs[0]), *states], reserve, [True] * 4, *args)
    torch.testing.assert_close(expanded, dense, rtol=0, atol=1e-13)


def test_needs():
    """Gradients that are not asked for are empty, as the operator's fake says."""
    args = arguments("lstm", torch.float64, (3, 4, 6), 4, 17)
    *outputs, reserve = cell_layer.rnn_layer_train(*args)
    for asked in range(4):
        needs = [k == asked for k in range(4)]
        gradients = cell_layer.rnn_layer_backward([torch.ones_like(o) for o in outputs], reserve, needs, *args)
        assert [g.numel() > 0 for g in gradients] == [*needs[:3], *[needs[3]] * 4]


def test_wrong_shapes_are_refused():
    args = arguments("gru", torch.float64, (3, 4, 6), 4, 17)
    for k, name in enumerate(("input", "h_0")):
        wrong = [*args]
        wrong[k] = wrong[k][..., :-1]
        with pytest.raises(RuntimeError, match="weight_ih" if name == "input" else name):
            cell_layer.rnn_layer(*wrong)
