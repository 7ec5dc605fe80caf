"""GRUCell, LSTMCell and RNNCell against the oracle in float64 and against torch.nn with the same weights."""

import pytest
import torch
from cases import CELLS, draw, make_cell, make_layer, twin
from error_rule import assert_as_accurate, run
from oracle import OracleCell

from seq2seq_fast import explain

BOOLS = (False, True)


def make_states(name, hidden_size, batch, dtype):
    h, c = (draw(*batch, hidden_size, dtype=dtype, seed=seed) / 2 for seed in (2, 3))
    return (h, c) if name == "lstm" else h


def compare(name, cell, input, hx=None):
    if name == "rnn_relu" and input.dtype in (torch.bfloat16, torch.float16):
        # at 0 relu has no derivative, and rounding chooses a side: hold the units well on or well off
        with torch.no_grad():
            if cell.bias:
                cell.bias_ih.copy_(8 - 16 * (torch.arange(cell.hidden_size) % 2))
    backward = name != "rnn_relu" or cell.bias
    ours, theirs, oracle = (
        run(module, input, hx, backward=backward) for module in (cell, twin(cell), OracleCell(cell, name))
    )
    assert_as_accurate(ours, theirs, oracle)


@pytest.mark.sanitize
@pytest.mark.parametrize("sizes", ((1, 1, 1), (2, 3, 2), (63, 5, 7), (3, 63, 257), (1, 257, 63), (40, 16, 16)), ids=str)
@pytest.mark.parametrize("bias", BOOLS, ids=("no_bias", "bias"))
@pytest.mark.parametrize("with_hx", BOOLS, ids=("zeros", "hx"))
def test_batched(single, dtype, sizes, bias, with_hx):
    batch, input_size, hidden_size = sizes
    cell = make_cell(single, input_size, hidden_size, bias=bias, dtype=dtype)
    hx = make_states(single, hidden_size, (batch,), dtype) if with_hx else None
    compare(single, cell, draw(batch, input_size, dtype=dtype), hx)


@pytest.mark.parametrize("bias", BOOLS, ids=("no_bias", "bias"))
@pytest.mark.parametrize("with_hx", BOOLS, ids=("zeros", "hx"))
def test_unbatched(single, dtype, bias, with_hx):
    cell = make_cell(single, 5, 7, bias=bias, dtype=dtype)
    compare(single, cell, draw(5, dtype=dtype), make_states(single, 7, (), dtype) if with_hx else None)


@pytest.mark.sanitize
def test_empty_batch(single, dtype):
    cell = make_cell(single, 5, 7, dtype=dtype)
    input, hx = draw(0, 5, dtype=dtype), make_states(single, 7, (0,), dtype)
    ours, theirs = run(cell, input, hx), run(twin(cell), input, hx)
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0, msg=name)


LAYOUTS = {
    "transposed": lambda x: x.T.contiguous().T,
    "every_second": lambda x: x.repeat_interleave(2, -1)[:, ::2],
    "expanded": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(single, layout):
    cell = make_cell(single, 6, 8)
    strided = LAYOUTS[layout]
    hx = make_states(single, 8, (3,), torch.float32)
    hx = tuple(map(strided, hx)) if isinstance(hx, tuple) else strided(hx)
    compare(single, cell, strided(draw(3, 6)), hx)


def test_loop_of_steps_is_a_layer(single):
    layer, cell = make_layer(single, 5, 7), make_cell(single, 5, 7)
    cell.load_state_dict({name.removesuffix("_l0"): value for name, value in layer.state_dict().items()})
    input = draw(6, 3, 5)
    hx = None
    outputs = []
    for step in input:
        hx = cell(step, hx)
        outputs.append(hx[0] if single == "lstm" else hx)
    torch.testing.assert_close(torch.stack(outputs), layer(input)[0])


def test_hx_is_not_written(single):
    cell = make_cell(single, 5, 7)
    hx = make_states(single, 7, (3,), torch.float32)
    before = torch.utils._pytree.tree_map(torch.clone, hx)
    with torch.no_grad():
        cell(draw(3, 5), hx)
    assert all(map(torch.equal, *(states if isinstance(states, tuple) else (states,) for states in (hx, before))))


@pytest.mark.needs_extension
def test_the_fused_loop_is_what_was_tested(single, dtype):
    cell = make_cell(single, 5, 7, dtype=dtype)
    assert explain(cell, draw(3, 5, dtype=dtype)).startswith(f"{CELLS[single][0].__name__}: fused")
