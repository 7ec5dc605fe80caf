"""The persistent loop on a GPU: as accurate as torch there and as cuDNN, the same bits each time, on any stream."""

import pytest
import torch
from cases import make_hx, make_layer, pack, twin
from cell_operators import GATES, arguments, check
from error_rule import assert_as_accurate, run
from forced import DEVICE, FORMS, forced
from test_lengths import packs

from seq2seq_fast.cuda import forms

pytestmark = pytest.mark.gpu

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# among many units a rounding puts one on the other side of relu's kink, where its gradient is another one
SMOOTH = ("gru", "lstm", "rnn_tanh")

operators = torch.ops.seq2seq_fast


@pytest.fixture(params=FORMS)
def form(request):
    with forced(request.param), torch.backends.cudnn.flags(allow_tf32=False):
        yield request.param


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param


def takes_form(form, cell, dtype, hidden, batch, directions=1, ragged=False):
    """Skips what does not fit this GPU."""
    choice = forms.choose(
        cell, dtype, hidden, forms.rounded(batch), directions, ragged, True, torch.device(DEVICE, 0)
    )  # fmt: skip
    if choice.forward != form:
        pytest.skip(choice.why)


@pytest.mark.parametrize("steps, batch, width, hidden", ((1, 1, 1, 1), (9, 3, 5, 63)))
def test_a_layer_of_relu(form, dtype, steps, batch, width, hidden):
    takes_form(form, "rnn_relu", dtype, hidden, batch)
    check(arguments("rnn_relu", dtype, (steps, batch, width), batch, hidden, device=DEVICE), operators)


@pytest.mark.parametrize(
    "steps, batch, width, hidden",
    ((1, 1, 1, 1), (7, 20, 63, 113), (4, 70, 40, 257), (9, 3, 5, 63), (20, 32, 512, 512), (5, 64, 64, 1000)),
)
@pytest.mark.parametrize("cell", SMOOTH)
def test_layer(form, cell, dtype, steps, batch, width, hidden):
    takes_form(form, cell, dtype, hidden, batch)
    check(arguments(cell, dtype, (steps, batch, width), batch, hidden, device=DEVICE), operators)


@pytest.mark.parametrize("bias, state", ((True, True), (False, False)))
@pytest.mark.parametrize("cell", GATES)
def test_two_directions(form, cell, dtype, bias, state):
    takes_form(form, cell, dtype, 113, 20, directions=2)
    options = {"bias": bias, "state": state, "bidirectional": True, "device": DEVICE}
    check(arguments(cell, dtype, (7, 20, 63), 20, 113, **options), operators)


@pytest.mark.parametrize("bidirectional", (False, True))
@pytest.mark.parametrize("cell", GATES)
def test_lengths_and_packed(form, cell, dtype, bidirectional):
    takes_form(form, cell, dtype, 63, 5, directions=1 + bidirectional, ragged=True)
    options = {"bidirectional": bidirectional, "device": DEVICE}
    lengths = torch.tensor([2, 4, 1, 3, 0], device=DEVICE)
    check(arguments(cell, dtype, (4, 5, 40), 5, 63, lengths=lengths, **options), operators)
    check(arguments(cell, dtype, (9, 40), 4, 63, batch_sizes=torch.tensor([4, 2, 2, 1]), **options), operators)


def layer_of(cell, hidden, dtype, **flags):
    return make_layer(cell, hidden, hidden, dtype=dtype, **flags).to(DEVICE)


def input_of(steps, batch, width, dtype):
    generator = torch.Generator().manual_seed(11)
    return (torch.randint(-64, 65, (steps, batch, width), generator=generator) / 64).to(DEVICE, dtype)


@pytest.mark.parametrize("tf32", (False, True))
@pytest.mark.parametrize("cell", SMOOTH)
def test_as_accurate_as_cudnn(form, cell, dtype, tf32):
    """A stack of two layers, two directions, as cuDNN computes it."""
    if tf32 and dtype != torch.float32:
        pytest.skip("TF32 is a way of float32")
    takes_form(form, cell, dtype, 256, 32, directions=2)
    layer = layer_of(cell, 256, dtype, num_layers=2, bidirectional=True)
    input, hx = input_of(30, 32, 256, dtype), make_hx(layer, 32, dtype)
    hx = tuple(h.to(DEVICE) for h in hx) if isinstance(hx, tuple) else hx.to(DEVICE)
    with torch.backends.cudnn.flags(allow_tf32=tf32):
        assert layer.why_not_fused(input) is None
        ours, theirs = run(layer, input, hx), run(twin(layer), input, hx)
    assert_as_accurate(ours, theirs, run(twin(layer).double(), input, hx))


@pytest.mark.parametrize("cell", SMOOTH)
def test_lengths_as_accurate_as_cudnn_packed(form, cell, dtype):
    takes_form(form, cell, dtype, 256, 32, ragged=True)
    layer = layer_of(cell, 256, dtype)
    input, lengths = input_of(30, 32, 256, dtype), torch.arange(32) * 7 % 30 + 1
    ours = run(layer, input, lengths=lengths.to(DEVICE))
    assert_as_accurate(ours, *(run(packs(twin(layer).to(to)), input, lengths=lengths) for to in (dtype, torch.float64)))


@pytest.mark.parametrize("cell", GATES)
def test_the_same_bits_a_hundred_times(form, cell, dtype):
    takes_form(form, cell, dtype, 512, 32)
    layer, input = layer_of(cell, 512, dtype), input_of(20, 32, 512, dtype)
    first = run(layer, input)
    for _ in range(99):
        for name, again in run(layer, input).items():
            assert torch.equal(again, first[name]), name


def test_under_a_captured_graph_and_on_another_stream(form, cell):
    takes_form(form, cell, torch.bfloat16, 256, 8)
    layer, input = layer_of(cell, 256, torch.bfloat16), input_of(20, 8, 256, torch.bfloat16)
    with torch.no_grad():
        expected = layer(-input)[0]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = layer(-input)[0]
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = layer(input)[0]
        input.neg_()
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(beside, expected)
    assert torch.equal(output, expected)


def test_packed_input_and_lengths_give_the_same_numbers(form, cell):
    takes_form(form, cell, torch.float32, 64, 16, ragged=True)
    layer, input = layer_of(cell, 64, torch.float32), input_of(12, 16, 64, torch.float32)
    lengths = (torch.arange(16) * 5 % 12 + 1).sort(descending=True).values
    with torch.no_grad():
        padded, _ = layer(input, lengths=lengths)
        data = layer(pack(input.cpu(), lengths, enforce_sorted=True).to(DEVICE))[0].data
    assert torch.equal(pack(padded.cpu(), lengths, enforce_sorted=True).data, data.cpu())


@pytest.mark.parametrize("which", FORMS)
def test_leaves_multiprocessors_to_others(which):
    with forced(which, max_sms=16):
        takes_form(which, "gru", torch.bfloat16, 256, 64)
        check(arguments("gru", torch.bfloat16, (20, 64, 63), 64, 256, device=DEVICE), operators)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_on_another_device(form, cell):
    layer, input = layer_of(cell, 64, torch.bfloat16), input_of(5, 8, 64, torch.bfloat16)
    elsewhere = [x.to(f"{DEVICE}:1") for x in (layer, input)]
    with torch.no_grad():
        assert torch.equal(layer(input)[0].to(f"{DEVICE}:1"), elsewhere[0](elsewhere[1])[0])
