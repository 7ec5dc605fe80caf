"""Any shape, any flags: hypothesis looks for a case in which ours is less accurate than torch.nn."""

import pytest
import torch
from cases import LAYERS, draw, make_hx, make_layer, pack, twin
from error_rule import assert_as_accurate, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import Oracle

SETTINGS = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
# relu has no derivative at 0, and in few bits many sums are near it: float32 and float64 for that cell
SIZES = st.integers(1, 5) | st.sampled_from((7, 8, 15, 16, 17, 31, 33, 47, 64, 65))


@st.composite
def problems(draw_from):
    """A layer of any kind, the steps and batch to run it on, and whether it is given hx."""
    cell = draw_from(st.sampled_from(list(LAYERS)))
    dtypes = [torch.float32, torch.float64]
    if cell != "rnn_relu":
        dtypes += [torch.bfloat16, torch.float16]
    layer = make_layer(
        cell,
        draw_from(SIZES),
        draw_from(SIZES),
        draw_from(st.integers(1, 2)),
        bias=draw_from(st.booleans()),
        batch_first=draw_from(st.booleans()),
        bidirectional=draw_from(st.booleans()),
        dtype=draw_from(st.sampled_from(dtypes)),
    )
    return layer, draw_from(st.integers(1, 9)), draw_from(SIZES), draw_from(st.booleans())


def arguments(layer, steps, batch, with_hx):
    dtype = layer.weight_hh_l0.dtype
    shape = (batch, steps) if layer.batch_first else (steps, batch)
    return draw(*shape, layer.input_size, dtype=dtype), make_hx(layer, batch, dtype) if with_hx else None


@pytest.mark.sanitize
@SETTINGS
@given(problems())
def test_padded(problem):
    layer, input, hx = problem[0], *arguments(*problem)
    assert_as_accurate(*(run(module, input, hx) for module in (layer, twin(layer), Oracle(layer))))


@SETTINGS
@given(problems(), st.data())
def test_packed(problem, data):
    layer, steps, batch, _ = problem
    input, hx = arguments(*problem)
    lengths = data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch), label="lengths")
    input = pack(input, lengths, layer.batch_first)
    assert_as_accurate(*(run(module, input, hx) for module in (layer, twin(layer), Oracle(layer))))


@SETTINGS
@given(problems(), st.data())
def test_lengths_equal_packing(problem, data):
    layer, steps, batch, _ = problem
    input, hx = arguments(*problem)
    lengths = data.draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch), label="lengths")
    padded = run(layer, input, hx, backward=False, lengths=lengths)
    packed = run(layer, pack(input, lengths, layer.batch_first), hx, backward=False)
    rows = pack(padded.pop("output"), lengths, layer.batch_first).data
    torch.testing.assert_close(rows, packed.pop("output"))
    torch.testing.assert_close(padded, packed)


@SETTINGS
@given(problems(), st.data())
def test_lengths_of_zero(problem, data):
    layer, steps, batch, _ = problem
    input, hx = arguments(*problem)
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch), label="lengths"))
    oracle = run(Oracle(layer), input, hx, lengths=lengths)
    ours = run(layer, input, hx, lengths=lengths)
    # no twin: torch.nn takes no rows of no steps. In float64 the oracle is enough
    if layer.weight_hh_l0.dtype == torch.float64:
        assert_as_accurate(ours, {name: oracle[name] for name in ours}, oracle)
    for name in oracle:
        assert ours[name].isfinite().all(), name
        assert ours[name].shape == oracle[name].shape
