"""Every layer with every flag against the oracle in float64 and against torch.nn with the same weights."""

import itertools

import pytest
import torch
from cases import LAYERS, draw, make_hx, make_layer, pack, twin
from error_rule import assert_as_accurate, run
from oracle import Oracle

from seq2seq_fast import explain

BOOLS = (False, True)
FOUR_FLAGS = list(itertools.product(BOOLS, repeat=4))


def compare(layer, input, hx=None, *, backward=True):
    if layer.mode == "RNN_RELU" and layer.weight_hh_l0.dtype in (torch.bfloat16, torch.float16):
        keep_from_kinks(layer)
        backward = backward and layer.bias
    ours, theirs, oracle = (run(module, input, hx, backward=backward) for module in (layer, twin(layer), Oracle(layer)))
    assert_as_accurate(ours, theirs, oracle)


def keep_from_kinks(layer):
    """Holds the units of a relu layer on or off: at 0 it has no derivative, and rounding picks a side."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.startswith("bias_ih"):
                parameter.copy_(4 - 8 * (torch.arange(parameter.numel()) % 2))
            else:
                parameter /= 4


def names(*flags):
    return lambda values: "-".join(f for f, v in zip(flags, values, strict=True) if v) or "plain"


@pytest.mark.parametrize("num_layers", (1, 2, 3))
@pytest.mark.parametrize("flags", FOUR_FLAGS, ids=names("no_bias", "batch_first", "bidirectional", "hx"))
def test_flags(cell, dtype, num_layers, flags):
    no_bias, batch_first, bidirectional, with_hx = flags
    layer = make_layer(
        cell,
        5,
        7,
        num_layers,
        bias=not no_bias,
        batch_first=batch_first,
        bidirectional=bidirectional,
        dtype=dtype,
    )
    hx = make_hx(layer, 3, dtype) if with_hx else None
    compare(layer, draw(*((3, 4, 5) if batch_first else (4, 3, 5)), dtype=dtype), hx)


@pytest.mark.parametrize("flags", FOUR_FLAGS, ids=names("two_layers", "batch_first", "bidirectional", "hx"))
def test_unbatched(cell, dtype, flags):
    two_layers, batch_first, bidirectional, with_hx = flags
    layer = make_layer(cell, 5, 7, 1 + two_layers, batch_first=batch_first, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(4, 5, dtype=dtype), make_hx(layer, None, dtype) if with_hx else None)


@pytest.mark.parametrize("flags", FOUR_FLAGS, ids=names("two_layers", "sorted", "bidirectional", "hx"))
def test_packed(cell, dtype, flags):
    two_layers, in_order, bidirectional, with_hx = flags
    layer = make_layer(cell, 5, 7, 1 + two_layers, bidirectional=bidirectional, dtype=dtype)
    lengths = (6, 4, 4, 1) if in_order else (4, 1, 6, 4)
    input = pack(draw(6, 4, 5, dtype=dtype), lengths, enforce_sorted=in_order)
    compare(layer, input, make_hx(layer, 4, dtype) if with_hx else None)


SIZES = (
    # T, B, I, H
    (1, 1, 1, 1),
    (1, 1, 2, 2),
    (2, 1, 1, 63),
    (1, 63, 2, 1),
    (63, 2, 1, 2),
    (2, 2, 63, 63),
    (1, 1, 257, 257),
    (2, 257, 2, 2),
    (3, 63, 3, 63),
    (257, 1, 2, 1),
    (63, 63, 2, 2),
    (2, 2, 257, 63),
    (5, 7, 63, 257),
    (3, 16, 16, 16),
    (3, 17, 15, 17),
    (4, 5, 33, 31),
)


@pytest.mark.sanitize
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(cell, dtype, sizes, bidirectional):
    steps, batch, input_size, hidden_size = sizes
    layer = make_layer(cell, input_size, hidden_size, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(steps, batch, input_size, dtype=dtype), make_hx(layer, batch, dtype))


@pytest.mark.parametrize(
    "sizes",
    (
        # work enough for two threads: by hidden units, by rows of the batch, ragged both ways
        (20, 1, 64, 512),
        (5, 128, 32, 64),
        (7, 37, 90, 131),
        (6, 130, 40, 257),
        # more rows than the gradients of weights are summed over at a time, on one thread and on two
        (70, 33, 3, 2),
        (70, 63, 9, 33),
        # a few rows and weights that leave the first-level cache together
        (3, 37, 290, 321),
    ),
    ids=str,
)
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_work_for_two_threads(cell, dtype, sizes, bidirectional):
    steps, batch, input_size, hidden_size = sizes
    layer = make_layer(cell, input_size, hidden_size, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(steps, batch, input_size, dtype=dtype), make_hx(layer, batch, dtype))


# one step meets no state; of two with so many rows, nor does the first block of those that gradients are summed over
@pytest.mark.sanitize
@pytest.mark.parametrize("sizes", ((1, 40, 48, 64), (1, 33, 63, 257), (2, 2100, 3, 5), (3, 7, 16, 48)), ids=str)
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_first_step_without_a_state(cell, dtype, sizes, bidirectional):
    steps, batch, input_size, hidden_size = sizes
    layer = make_layer(cell, input_size, hidden_size, bidirectional=bidirectional, dtype=dtype)
    compare(layer, draw(steps, batch, input_size, dtype=dtype))


@pytest.mark.parametrize("lengths", ([20] + [3] * 63, list(range(1, 65))), ids=("one_long_row", "staircase"))
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
def test_ragged_work_for_two_threads(cell, lengths, bidirectional):
    layer = make_layer(cell, 33, 65, bidirectional=bidirectional)
    compare(layer, pack(draw(max(lengths), 64, 33), lengths), make_hx(layer, 64))


@pytest.mark.sanitize
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
@pytest.mark.parametrize("num_layers", (1, 2))
def test_empty_batch(cell, dtype, num_layers, bidirectional):
    layer = make_layer(cell, 5, 7, num_layers, bidirectional=bidirectional, dtype=dtype)
    input, hx = draw(4, 0, 5, dtype=dtype), make_hx(layer, 0, dtype)
    ours, theirs = run(layer, input, hx), run(twin(layer), input, hx)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        assert ours[name].dtype == dtype
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0, msg=name)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "feature_outermost": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "every_second_feature": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every_second_row": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "expanded_over_time": lambda x: x[:1].expand(x.shape),
    "expanded_over_batch": lambda x: x[:, :1].expand(x.shape),
    "expanded_over_features": lambda x: x[..., :1].expand(x.shape),
    "flipped": lambda x: x.flip(0),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("batch_first", BOOLS, ids=("time_first", "batch_first"))
def test_layout_of_input(cell, layout, batch_first):
    layer = make_layer(cell, 6, 7, 2, batch_first=batch_first, bidirectional=True)
    compare(layer, LAYOUTS[layout](draw(4, 3, 6)), make_hx(layer, 4 if batch_first else 3))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_hx(cell, layout):
    layer = make_layer(cell, 6, 8, 2, bidirectional=True)
    hx = make_hx(layer, 3)
    hx = tuple(map(LAYOUTS[layout], hx)) if isinstance(hx, tuple) else LAYOUTS[layout](hx)
    compare(layer, draw(4, 3, 6), hx)


@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_layout_of_weights(cell, dtype):
    layer = make_layer(cell, 6, 8, 2, bidirectional=True, dtype=dtype)
    for name, parameter in list(layer.named_parameters()):
        strided = (
            parameter.detach().T.contiguous().T
            if parameter.dim() == 2
            else parameter.detach().repeat_interleave(2)[::2]
        )
        assert not strided.is_contiguous()
        setattr(layer, name, torch.nn.Parameter(strided))
    compare(layer, draw(4, 3, 6, dtype=dtype), make_hx(layer, 3, dtype))


def test_packed_data_of_any_layout(cell):
    layer = make_layer(cell, 6, 8, 2, bidirectional=True)
    packed = pack(draw(5, 3, 6), (5, 3, 1))
    strided = packed._replace(data=packed.data.T.contiguous().T)
    assert not strided.data.is_contiguous()
    compare(layer, strided, make_hx(layer, 3))


# large weights for one step of one layer: more would magnify the first rounding, torch's or ours, beyond comparison
@pytest.mark.parametrize("scale, steps, layers", ((1e-3, 4, 2), (30.0, 1, 1)), ids=("small_weights", "large_weights"))
def test_magnitude_of_weights(cell, dtype, scale, steps, layers):
    layer = make_layer(cell, 9, 21, layers, dtype=dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter *= scale
    compare(layer, draw(steps, 3, 9, dtype=dtype), make_hx(layer, 3, dtype))


@pytest.mark.parametrize("scale", (1e-20, 1e-39), ids=("small", "denormal"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_small_input(cell, dtype, scale):
    layer = make_layer(cell, 9, 21, dtype=dtype)
    compare(layer, draw(4, 3, 9, dtype=dtype) * scale, make_hx(layer, 3, dtype))


@pytest.mark.parametrize("scale", (1e4, 1e30), ids=("large", "huge"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
@pytest.mark.parametrize("cell", ("gru", "lstm", "rnn_tanh"))
def test_input_that_saturates_every_gate(cell, dtype, scale):
    layer = make_layer(cell, 9, 21, dtype=dtype)
    # terms of one sign, so that no sum of large ones cancels
    with torch.no_grad():
        layer.weight_ih_l0.copy_(layer.weight_ih_l0.abs() * layer.bias_ih_l0.sign()[:, None])
    input, hx = (draw(4, 3, 9, dtype=dtype).abs() + 1) * scale, make_hx(layer, 3, dtype)
    compare(layer, input, hx, backward=False)
    ours, oracle = run(layer, input, hx), run(Oracle(layer), input, hx)
    # gradients are zeros, or as good as: the smallest numbers there are, times the inputs of all rows that they sum up
    smallest = 1e-36 * input.double().sum((0, 1)).max().item()
    for name in ("d_input", "d_weight_ih_l0", "d_bias_ih_l0"):
        torch.testing.assert_close(ours[name].double(), oracle[name], rtol=0.02, atol=smallest)


def test_denormal_state(cell):
    layer = make_layer(cell, 9, 21, bias=False)
    hx = torch.utils._pytree.tree_map(lambda s: s * 1e-39, make_hx(layer, 3))
    # denormals may be taken for 0, where relu has no derivative
    compare(layer, torch.zeros(4, 3, 9), hx, backward=cell != "rnn_relu")


@pytest.mark.parametrize("value", (float("inf"), -float("inf"), float("nan")), ids=str)
@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
def test_values_that_are_not_finite_spread_as_in_torch(cell, dtype, value, bidirectional):
    layer = make_layer(cell, 9, 21, bidirectional=bidirectional, dtype=dtype)
    input = draw(5, 4, 9, dtype=dtype)
    input[2, 1, 3] = value
    hx = make_hx(layer, 4, dtype)
    ours, theirs, oracle = (run(module, input, hx, backward=False) for module in (layer, twin(layer), Oracle(layer)))
    for name in theirs:
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(kind(ours[name]), kind(theirs[name])), name
        finite = theirs[name].isfinite()
        for results in (ours, theirs, oracle):
            results[name] = results[name].where(finite, 0)
    assert_as_accurate(ours, theirs, oracle)


@pytest.mark.parametrize("bidirectional", BOOLS, ids=("one_way", "both_ways"))
def test_nan_reaches_the_gradients_it_reaches_in_torch(cell, bidirectional):
    layer = make_layer(cell, 9, 21, bidirectional=bidirectional)
    input = draw(5, 4, 9)
    input[2, 1, 3] = float("nan")
    ours, theirs = run(layer, input), run(twin(layer), input)
    for name in theirs:
        assert torch.equal(ours[name].isnan(), theirs[name].isnan()), name


def test_inference_gives_what_training_gives(cell, dtype):
    layer = make_layer(cell, 9, 21, 2, bidirectional=True, dtype=dtype)
    input, hx = draw(4, 3, 9, dtype=dtype), make_hx(layer, 3, dtype)
    training = run(layer, input, hx)
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode():
            inference = run(layer, input, hx, backward=False)
        for name, result in inference.items():
            torch.testing.assert_close(result, training[name], msg=lambda m, name=name: f"{name}: {m}")


def test_last_output_is_last_state(cell):
    layer = make_layer(cell, 5, 7, bidirectional=True)
    output, states = layer(draw(4, 3, 5))
    h_n = states[0] if cell == "lstm" else states
    assert torch.equal(output[-1, :, :7], h_n[0])
    assert torch.equal(output[0, :, 7:], h_n[1])


@pytest.mark.needs_extension
def test_the_fused_loop_is_what_was_tested(cell, dtype):
    layer = make_layer(cell, 5, 7, dtype=dtype)
    assert explain(layer, draw(4, 3, 5, dtype=dtype)).startswith(f"{LAYERS[cell][0].__name__}: fused")


def test_memory_is_poisoned():
    assert torch.empty(1000).isnan().all()
    assert torch.ops.aten.empty.memory_format([1000], dtype=torch.bfloat16).isnan().all()


# rows and widths at the edges of the 16 x 32 tiles of a matrix unit; rows of batch_first input are not evenly spaced
@pytest.mark.sanitize
@pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
@pytest.mark.parametrize(
    "batch, width, hidden", ((4, 32, 32), (15, 31, 64), (16, 64, 33), (17, 96, 63), (31, 33, 65), (66, 257, 128))
)
def test_bfloat16_at_the_edges_of_a_tile(cell, batch_first, batch, width, hidden):
    if cell == "rnn_relu" and hidden > 64:
        pytest.skip("among so many units a rounding puts one on the other side of the kink")
    layer = make_layer(cell, width, hidden, bidirectional=True, dtype=torch.bfloat16, batch_first=batch_first)
    shape = (batch, 3, width) if batch_first else (3, batch, width)
    compare(layer, draw(*shape, dtype=torch.bfloat16), make_hx(layer, batch, torch.bfloat16))
