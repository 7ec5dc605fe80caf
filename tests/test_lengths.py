"""`lengths=` gives what packing gives: outputs, states and every gradient."""

import pytest
import torch
from cases import draw, make_hx, make_layer, pack, twin
from error_rule import assert_as_accurate, run
from oracle import Oracle
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from seq2seq_fast import explain

BOTH_WAYS = pytest.mark.parametrize("bidirectional", (False, True), ids=("one_way", "both_ways"))


class Packs(torch.nn.RNNBase):
    """What a user of torch.nn writes instead of `lengths=`: pack, run, unpack."""

    def forward(self, input, hx=None, *, lengths):
        packed = pack(input, lengths, self.batch_first)
        output, states = type(self).layer_class.forward(self, packed, hx)
        output, _ = pad_packed_sequence(output, self.batch_first, total_length=input.size(int(self.batch_first)))
        return output, states


def packs(layer):
    """The twin of the layer, which packs what it is given with lengths."""
    theirs = twin(layer)
    theirs.__class__ = type("Packs", (Packs, type(theirs)), {"layer_class": type(theirs)})
    return theirs


def compare(layer, input, hx, lengths):
    lengths = torch.as_tensor(lengths)
    ours, theirs, oracle = (run(module, input, hx, lengths=lengths) for module in (layer, packs(layer), Oracle(layer)))
    assert_as_accurate(ours, theirs, oracle)
    return ours


@pytest.mark.sanitize
@BOTH_WAYS
@pytest.mark.parametrize("num_layers", (1, 2))
@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
@pytest.mark.parametrize("lengths", ((6, 4, 4, 1), (2, 1, 6, 4), (3, 2, 2, 1), (6, 6, 6, 6), (1, 1, 1, 1)), ids=str)
def test_equal_to_packing(cell, bidirectional, num_layers, batch_first, lengths):
    layer = make_layer(cell, 5, 7, num_layers, bidirectional=bidirectional, batch_first=batch_first)
    input = draw(6, 4, 5)
    compare(layer, input.transpose(0, 1) if batch_first else input, make_hx(layer, 4), lengths)


@BOTH_WAYS
@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16, torch.float16), ids=str)
def test_dtypes(cell, bidirectional, dtype):
    layer = make_layer(cell, 5, 7, bidirectional=bidirectional, dtype=dtype)
    if cell == "rnn_relu":
        # at 0 relu has no derivative, and rounding chooses a side: hold the units well on or well off
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                if name.startswith("bias_ih"):
                    parameter.copy_(8 - 16 * (torch.arange(7) % 2))
    compare(layer, draw(6, 4, 5, dtype=dtype), None, (2, 1, 6, 4))


@BOTH_WAYS
@pytest.mark.parametrize("steps, batch", ((5, 1), (1, 3), (33, 40), (63, 5), (4, 130)))
def test_sizes(cell, bidirectional, steps, batch):
    layer = make_layer(cell, 17, 65, bidirectional=bidirectional)
    lengths = torch.randint(1, steps + 1, (batch,), generator=torch.Generator().manual_seed(4))
    compare(layer, draw(steps, batch, 17), make_hx(layer, batch), lengths)


# a step has more rows than pass by the panels of the weights together, and not every step as many
@pytest.mark.sanitize
@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_more_rows_than_a_block(cell, dtype, batch_first):
    if cell == "rnn_relu" and dtype == torch.bfloat16:
        pytest.skip("among so many units a rounding puts one on the other side of the kink")
    batch, width = 1400, 1500
    layer = make_layer(cell, width, 33, dtype=dtype, batch_first=batch_first)
    input = draw(batch, 3, width, dtype=dtype) if batch_first else draw(3, batch, width, dtype=dtype)
    compare(layer, input, None if batch_first else make_hx(layer, batch, dtype), torch.arange(batch) * 7 % 3 + 1)


@pytest.mark.sanitize
@BOTH_WAYS
@pytest.mark.parametrize("with_hx", (False, True), ids=("zeros", "hx"))
@pytest.mark.parametrize("lengths", ((0, 4, 2), (3, 0, 0), (0, 0, 0)), ids=str)
def test_rows_of_no_steps(cell, bidirectional, with_hx, lengths):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional, dtype=torch.float64)
    hx = make_hx(layer, 3, torch.float64) if with_hx else None
    lengths = torch.tensor(lengths)
    input = draw(4, 3, 5, dtype=torch.float64)
    ours, oracle = run(layer, input, hx, lengths=lengths), run(Oracle(layer), input, hx, lengths=lengths)
    torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-14)
    empty = lengths == 0
    assert not ours["output"][:, empty].any()
    if with_hx:
        h_0 = hx[0] if cell == "lstm" else hx
        assert torch.equal(ours["h_n"][:, empty], h_0[:, empty])
    else:
        assert not ours["h_n"][:, empty].any()


@BOTH_WAYS
@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
@pytest.mark.parametrize("lengths", ((2, 1, 6, 4), (0, 4, 2, 0)), ids=str)
def test_without_the_extension(cell, bidirectional, batch_first, lengths, not_built):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional, batch_first=batch_first, dtype=torch.float64)
    input = draw(*((4, 6, 5) if batch_first else (6, 4, 5)), dtype=torch.float64)
    assert "not built" in explain(layer, input)
    hx = make_hx(layer, 4, torch.float64)
    given = {"lengths": torch.tensor(lengths)}
    torch.testing.assert_close(run(layer, input, hx, **given), run(Oracle(layer), input, hx, **given))


@pytest.mark.parametrize("kind", (list, tuple, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32)))
def test_kinds_of_lengths(cell, kind):
    layer = make_layer(cell, 5, 7)
    input = draw(4, 3, 5)
    ours = run(layer, input, lengths=kind([2, 4, 0]))
    expected = run(layer, input, lengths=torch.tensor([2, 4, 0]))
    for name in expected:
        assert torch.equal(ours[name], expected[name]), name


def test_lengths_are_not_written(cell):
    lengths = torch.tensor([2, 4, 0])
    make_layer(cell, 5, 7)(draw(4, 3, 5), lengths=lengths)
    assert lengths.tolist() == [2, 4, 0]


@BOTH_WAYS
@pytest.mark.parametrize("value", (float("nan"), float("inf")), ids=str)
def test_padding_leaks_nowhere(cell, bidirectional, value):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional)
    lengths = torch.tensor([2, 4, 1])
    padding = torch.arange(5)[:, None] >= lengths
    input = draw(5, 3, 5)
    clean = run(layer, input.masked_fill(padding[..., None], 0), make_hx(layer, 3), lengths=lengths)
    dirty = run(layer, input.masked_fill(padding[..., None], value), make_hx(layer, 3), lengths=lengths)
    for name in clean:
        assert torch.equal(clean[name], dirty[name]), name
    assert not dirty["output"][padding].any()
    assert not dirty["d_input"][padding].any()


@BOTH_WAYS
def test_gradients_of_padding_leak_nowhere(cell, bidirectional):
    """Outputs in the padding are constants: their gradient reaches nothing."""
    layer = make_layer(cell, 5, 7, bidirectional=bidirectional)
    lengths = torch.tensor([2, 4, 1])
    output, _ = layer(draw(5, 3, 5).requires_grad_(), lengths=lengths)
    d_output = torch.zeros_like(output)
    d_output[torch.arange(5)[:, None] >= lengths] = float("nan")
    for d_weight in torch.autograd.grad(output, list(layer.parameters()), d_output):
        assert not d_weight.any()


def test_full_lengths_change_nothing(cell):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    input, hx = draw(4, 3, 5), make_hx(layer, 3)
    torch.testing.assert_close(run(layer, input, hx, lengths=[4, 4, 4]), run(layer, input, hx))


def test_packed_output_is_packed_like_its_input(cell):
    layer = make_layer(cell, 5, 7)
    packed = pack(draw(4, 3, 5), (2, 4, 1))
    output, _ = layer(packed)
    assert isinstance(output, PackedSequence)
    assert all(map(torch.equal, output[1:], packed[1:]))
