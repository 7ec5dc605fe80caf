"""functional.scaled_dot_product_attention and additive_attention, against torch and by their definition."""

import math

import pytest
import torch
from error_rule import assert_as_accurate
from leaves import assert_same, assert_the_same_for_further_derivatives, draw
from torch.func import grad, jvp, vmap
from torch.nn import functional as F

from seq2seq_fast import _native, functional
from seq2seq_fast.functional import scaled_dot_product_attention

SHAPES = {
    "2-D": ((5, 8), (7, 8), (7, 3)),
    "3-D": ((4, 5, 8), (4, 7, 8), (4, 7, 8)),
    "4-D": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    "5-D": ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)),
    "heads broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "batch broadcast": ((2, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 8)),
    "query broadcast": ((1, 1, 5, 8), (2, 3, 7, 8), (2, 1, 7, 8)),
    "5-D broadcast": ((2, 1, 3, 5, 8), (1, 4, 3, 7, 8), (4, 3, 7, 8)),
    "query of fewer dimensions": ((5, 8), (2, 3, 7, 8), (3, 7, 8)),
    "query of more dimensions": ((2, 3, 5, 8), (3, 7, 8), (7, 8)),
    "no width": ((2, 3, 5, 0), (2, 3, 7, 0), (2, 3, 7, 4)),
    "no batch": ((0, 3, 5, 8), (0, 3, 7, 8), (0, 3, 7, 8)),
    "no keys": ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mask", (None, "bool", "float", "row"))
@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16), ids=str)
def test_equals_torch(name, mask, dtype):
    inputs = draw(*SHAPES[name], dtype=dtype)
    keys = inputs[1].size(-2)
    takes_part = torch.rand(5, keys) > 0.4
    takes_part[:, :1] = True
    attn_mask = {
        None: None,
        "bool": takes_part,
        "float": torch.randn(5, keys, dtype=dtype),
        "row": takes_part[:1],
    }[mask]
    ours = scaled_dot_product_attention(*inputs, attn_mask)
    theirs = F.scaled_dot_product_attention(*inputs, attn_mask)
    if dtype == torch.float64:
        assert_same(ours, theirs, inputs)
    else:
        wide = attn_mask.double() if mask == "float" else attn_mask
        exact = F.scaled_dot_product_attention(*(x.double() for x in inputs), wide)
        assert_as_accurate({"output": ours}, {"output": theirs}, {"output": exact})


@pytest.mark.parametrize(
    ("name", "mask_shape"),
    [
        ("3-D", (4, 1, 7)),
        ("3-D", (1, 5, 7)),
        ("4-D", (3, 1, 7)),
        ("4-D", (2, 1, 5, 1)),
        ("5-D", (2, 5, 7)),
        ("5-D", (3, 1, 5, 7)),
        ("5-D", (2, 1, 2, 1, 7)),
        ("5-D broadcast", (2, 4, 1, 5, 7)),
        ("query of fewer dimensions", (2, 1, 5, 7)),
    ],
)
def test_masks_broadcast(name, mask_shape):
    inputs = draw(*SHAPES[name], mask_shape)
    assert_same(scaled_dot_product_attention(*inputs), F.scaled_dot_product_attention(*inputs), inputs)


@pytest.mark.parametrize("queries", (5, 7, 9))
@pytest.mark.parametrize("heads", [(2, 2), (4, 1), (1, 2)], ids=str)
def test_causal_scale_and_groups(queries, heads):
    inputs = draw((2, 4, queries, 8), (2, heads[0], 7, 8), (2, heads[1], 7, 8))
    options = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    assert_same(
        scaled_dot_product_attention(*inputs, **options), F.scaled_dot_product_attention(*inputs, **options), inputs
    )


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16), ids=str)
def test_mask_and_causal_hold_together(leading, dtype):
    inputs = draw(*[(*leading, 6, 8)] * 3, dtype=dtype)
    mask = torch.rand(*leading[:1], *(1,) * len(leading[1:]), 1, 6) > 0.3
    mask[..., 0] = True
    both = mask & torch.ones(6, 6, dtype=torch.bool).tril()
    ours = scaled_dot_product_attention(*inputs, mask, is_causal=True)
    theirs = F.scaled_dot_product_attention(*inputs, both)
    if dtype == torch.float64:
        assert_same(ours, theirs, inputs)
    else:
        exact = F.scaled_dot_product_attention(*(x.double() for x in inputs), both)
        assert_as_accurate({"output": ours}, {"output": theirs}, {"output": exact})


@pytest.mark.parametrize("name", ("2-D", "3-D", "4-D", "5-D", "query broadcast"))
@pytest.mark.parametrize("average", (False, True))
def test_weights_and_lengths(name, average):
    inputs = draw(*SHAPES[name])
    leading = torch.broadcast_shapes(*(x.shape[:-2] for x in inputs))
    batch = leading if name == "3-D" else leading[:-1]
    lengths = torch.randint(1, 8, batch)
    takes_part = (torch.arange(7) < lengths[..., None, None]).view(*batch, *(1,) * (len(leading) - len(batch)), 1, 7)
    output, weights = scaled_dot_product_attention(
        *inputs, lengths=lengths.tolist(), return_weights=True, average_weights=average
    )
    scores = inputs[0] @ inputs[1].transpose(-2, -1) / math.sqrt(8)
    expected = scores.masked_fill(~takes_part, -torch.inf).softmax(-1)
    torch.testing.assert_close(output, expected @ inputs[2])
    if average and len(batch) < len(leading):
        expected = expected.mean(-3)
    assert_same(weights, expected, inputs[:2])


@pytest.mark.parametrize("options", ({}, {"is_causal": True}, {"return_weights": True}, {"lengths": [113, 0]}), ids=str)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 257), (63, 113), (257, 113)], ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_as_accurate_as_torch(options, sizes, dtype):
    queries, keys = sizes
    torch.manual_seed(0)
    inputs = draw((2, 3, queries, 40), (2, 3, keys, 40), (2, 3, keys, 40), dtype=dtype)
    lengths = torch.tensor(options["lengths"]).clamp(max=keys) if "lengths" in options else None
    takes_part = torch.ones(2, 1, queries, keys, dtype=torch.bool)
    if lengths is not None:
        takes_part &= torch.arange(keys) < lengths.view(-1, 1, 1, 1)
        options = {"lengths": lengths}
    if "is_causal" in options:
        takes_part = takes_part.tril()
    ours = scaled_dot_product_attention(*inputs, **options)
    ours = ours[0] if "return_weights" in options else ours
    theirs = F.scaled_dot_product_attention(*inputs, takes_part)
    wide = [x.double() for x in inputs]
    exact = F.scaled_dot_product_attention(*wide, takes_part)
    results = [(2, ours, theirs, exact)]
    d_output = torch.randn_like(ours)
    gradients = [torch.autograd.grad(x, inputs, d_output.to(x), retain_graph=True) for x in (ours, theirs)]
    gradients.append(torch.autograd.grad(exact, wide, d_output.double()))
    results += [(3, *x) for x in zip(*gradients, strict=True)]
    for times, mine, true, correct in results:
        error, allowed = ((x.double() - correct).abs().max() for x in (mine, true))
        assert error <= times * allowed + 4 * torch.finfo(dtype).eps * correct.abs().max()


@pytest.mark.parametrize("weights", (False, True))
def test_padding_may_be_nan(weights):
    inputs = draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    padded = [x.detach().clone() for x in inputs]
    padded[1][0, :, 4:] = padded[2][0, :, 4:] = torch.nan
    padded = [x.requires_grad_() for x in padded]
    outputs = []
    for tensors in (inputs, padded):
        output = scaled_dot_product_attention(*tensors, lengths=[4, 7], return_weights=weights)
        output = torch.cat(output, -1) if weights else output
        outputs.append((output, *torch.autograd.grad(output.square().sum(), tensors)))
    for clean, with_nan in zip(*outputs, strict=True):
        torch.testing.assert_close(with_nan, clean)


@pytest.mark.needs_extension
@pytest.mark.parametrize("empty_rows", ("zeros", "nan", "uniform"))
def test_empty_rows(empty_rows):
    inputs = draw((1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 4))
    mask = torch.tensor([[True, True, False], [False, False, False]])
    output, weights = scaled_dot_product_attention(*inputs, mask, return_weights=True, empty_rows=empty_rows)
    expected = {"zeros": 0.0, "nan": math.nan, "uniform": 1 / 3}[empty_rows]
    torch.testing.assert_close(weights[0, 0, 1], torch.full((3,), expected, dtype=torch.float64), equal_nan=True)
    gradients = torch.autograd.grad(output[:, :, 0].sum(), inputs)
    assert all(g.isfinite().all() for g in gradients)


def test_dropout_scales_what_it_keeps():
    query, key, value = draw((2, 3, 40, 8), (2, 3, 50, 8), (2, 3, 50, 8))
    torch.manual_seed(3)
    output, weights = scaled_dot_product_attention(query, key, value, None, 0.25, return_weights=True)
    _, whole = scaled_dot_product_attention(query, key, value, return_weights=True)
    kept = weights != 0
    torch.testing.assert_close(weights, whole * kept / 0.75)
    assert 0.7 < kept.double().mean() < 0.8
    torch.testing.assert_close(output, weights @ value)
    torch.manual_seed(3)
    assert torch.equal(output, scaled_dot_product_attention(query, key, value, None, 0.25))


def test_explain_of_the_dispatch():
    from seq2seq_fast.functional.attention import why_torch_serves

    assert "bfloat16" in why_torch_serves(torch.empty(1, dtype=torch.bfloat16), extras=False)
    assert why_torch_serves(torch.empty(1, dtype=torch.bfloat16), extras=True) is None
    assert "meta" in why_torch_serves(torch.empty(1, device="meta"), extras=False)
    assert why_torch_serves(torch.empty(1), extras=False) == _native.reason


def test_autocast_casts_before_the_checks():
    query, key, value = draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=torch.float32)
    mask = torch.randn(5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        for extras in ({}, {"lengths": [7, 3]}):
            output = scaled_dot_product_attention(query, key.bfloat16(), value, mask, **extras)
            assert output.dtype == torch.bfloat16
        assert scaled_dot_product_attention(query.double(), key.double(), value.double()).dtype == torch.float64
        _, weights = scaled_dot_product_attention(query, key, value, return_weights=True)
        torch.testing.assert_close(
            scaled_dot_product_attention(query, key, value), F.scaled_dot_product_attention(query, key, value)
        )
    exact = (query.double() @ key.double().transpose(-2, -1) / math.sqrt(8)).softmax(-1)
    torch.testing.assert_close(weights, exact.bfloat16(), rtol=0.03, atol=0.01)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_to_torch():
    nested = torch.nested.nested_tensor([torch.randn(3, 5, 8), torch.randn(3, 4, 8)])
    ours, theirs = (f(nested, nested, nested) for f in (scaled_dot_product_attention, F.scaled_dot_product_attention))
    for mine, true in zip(ours.unbind(), theirs.unbind(), strict=True):
        assert torch.equal(mine, true)
    with pytest.raises(RuntimeError, match="query"):
        scaled_dot_product_attention(nested, nested, nested, return_weights=True)


@pytest.mark.parametrize(
    "options",
    ({}, {"is_causal": True}, {"lengths": [7, 3], "return_weights": True}, {"return_weights": True, "scale": 0.3}),
    ids=str,
)
def test_derivatives_and_transforms(options):
    inputs = draw((2, 2, 3, 4), (2, 2, 7, 4), (2, 2, 7, 4))
    plain = [x.detach() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: scaled_dot_product_attention(*x, **options), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: scaled_dot_product_attention(*x, **options), inputs)

    def loss(query, key, value, length):
        given = options | ({"lengths": length.unsqueeze(0)} if "lengths" in options else {})
        output = scaled_dot_product_attention(*(x.unsqueeze(0) for x in (query, key, value)), **given)
        return (output[0] if "return_weights" in options else output).square().sum()

    lengths = torch.tensor([7, 3])
    per_sample = vmap(grad(loss, (0, 1, 2)))(*plain, lengths)
    whole = scaled_dot_product_attention(*inputs, **options)
    whole = whole[0] if "return_weights" in options else whole
    for mine, true in zip(per_sample, torch.autograd.grad(whole.square().sum(), inputs), strict=True):
        torch.testing.assert_close(mine, true)

    tangents = [torch.randn_like(x) for x in plain]
    _, directional = jvp(lambda *x: scaled_dot_product_attention(*x, **options), tuple(plain), tuple(tangents))
    small = 1e-6
    ahead, behind = (
        scaled_dot_product_attention(*(x + sign * small * t for x, t in zip(plain, tangents, strict=True)), **options)
        for sign in (1, -1)
    )
    if "return_weights" not in options:
        directional, ahead, behind = (directional,), (ahead,), (behind,)
    for mine, up, down in zip(directional, ahead, behind, strict=True):
        torch.testing.assert_close(mine, (up - down) / (2 * small), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    (
        {},
        {"is_causal": True},
        {"lengths": [7, 3], "return_weights": True, "average_weights": True},
    ),
    ids=lambda options: " ".join(options),
)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_compiles(options, dtype):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *x: scaled_dot_product_attention(*x, **options), fullgraph=True, backend="aot_eager"
    )
    for queries in (5, 6):  # another size the second time, which makes that size symbolic
        inputs = draw((2, 3, queries, 8), (2, 3, 7, 8), (2, 3, 7, 8), dtype=dtype)
        ours, theirs = compiled(*inputs), scaled_dot_product_attention(*inputs, **options)
        if "return_weights" not in options:
            ours, theirs = (ours,), (theirs,)
        for mine, true in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, true)
        d_output = torch.randn_like(ours[0])
        gradients = (torch.autograd.grad(x[0], inputs, d_output) for x in (ours, theirs))
        for mine, true in zip(*gradients, strict=True):
            torch.testing.assert_close(mine, true)


def test_compiles_where_sizes_are_symbolic_and_those_of_the_mask_are_not():
    inputs, mask = draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)), torch.rand(5, 7) > 0.3
    torch._dynamo.reset()
    for x in inputs:
        torch._dynamo.maybe_mark_dynamic(x, 2)
    compiled = torch.compile(lambda *x: scaled_dot_product_attention(*x, mask), fullgraph=True, backend="aot_eager")
    assert_same(compiled(*inputs), scaled_dot_product_attention(*inputs, mask), inputs)


def test_dropout_compiles():
    compiled = torch.compile(
        lambda *x: scaled_dot_product_attention(*x, dropout_p=0.4, return_weights=True),
        fullgraph=True,
        backend="aot_eager",
    )
    inputs = draw((2, 3, 20, 8), (2, 3, 30, 8), (2, 3, 30, 8))
    output, weights = compiled(*inputs)
    assert 0.5 < (weights != 0).double().mean() < 0.7
    torch.testing.assert_close(output, weights @ inputs[2])
    assert not torch.equal(output, compiled(*inputs)[0])
    d_weights = torch.randn_like(output) @ inputs[2].detach().transpose(2, 3)
    assert torch.autograd.grad(weights, inputs[0], d_weights)[0].isfinite().all()


def test_exports_with_lengths_of_any_size():
    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return scaled_dot_product_attention(query, key, value, is_causal=True, return_weights=True)

    queries, keys = torch.export.Dim("queries"), torch.export.Dim("keys")
    exported = torch.export.export(
        Module(),
        tuple(draw((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))),
        dynamic_shapes=({2: queries}, {2: keys}, {2: keys}),
    ).module()
    inputs = draw((2, 3, 8, 8), (2, 3, 9, 8), (2, 3, 9, 8))
    for mine, true in zip(exported(*inputs), Module()(*inputs), strict=True):
        torch.testing.assert_close(mine, true)


Q, K = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8)
BAD = [
    ((Q[0, 0, 0], K, K), {}, "query"),
    ((Q, K[..., :4], K), {}, "key"),
    ((Q, K, K[:, :, :4]), {}, "value: expected 7 rows"),
    ((Q, K.double(), K), {}, "key"),
    ((Q.long(), K.long(), K.long()), {}, "query"),
    ((Q, K[:, :2], K[:, :2]), {}, "query, key, value: .* broadcast"),
    ((Q, K[:, :2], K[:, :2]), {"enable_gqa": True}, "heads"),
    ((Q, K, K, torch.zeros(5, 6)), {}, "attn_mask"),
    ((Q, K, K, torch.zeros(5, 7, dtype=torch.int32)), {}, "attn_mask"),
    ((Q, K, K, None, 1.5), {}, "dropout_p"),
    (([1.0], K, K), {}, "query"),
    ((Q, K, [1.0]), {}, "value"),
    ((Q[0, 0], K[0, 0], K[0, 0]), {"enable_gqa": True}, "query"),
    ((Q, K, K, torch.zeros(7)), {}, "attn_mask"),
    ((Q, K, K, torch.zeros(2, 2, 3, 5, 7)), {}, "attn_mask"),
    ((Q, K, K, torch.zeros(5, 7, dtype=torch.float64)), {}, "attn_mask"),
    ((Q, K, K), {"lengths": [1]}, "lengths"),
    ((Q[0, 0], K[0, 0], K[0, 0]), {"lengths": [1]}, "lengths"),
    ((Q, K, K), {"lengths": [1, 8]}, "lengths"),
    ((Q, K, K), {"lengths": [-1, 3]}, "lengths"),
    ((Q, K, K), {"lengths": torch.tensor([1.0, 2.0])}, "lengths"),
    ((Q, K, K), {"empty_rows": "none"}, "empty_rows"),
]


@pytest.mark.parametrize(("inputs", "options", "name"), BAD)
def test_bad_input_is_named(inputs, options, name):
    with pytest.raises((RuntimeError, IndexError, ValueError, TypeError), match=name) as ours:
        scaled_dot_product_attention(*inputs, **options)
    # torch has no lengths, and reads values that are not there
    if not {"lengths", "empty_rows"} & options.keys() and name != "value: expected 7 rows":
        with pytest.raises((RuntimeError, IndexError, TypeError)) as theirs:
            F.scaled_dot_product_attention(*inputs, **options)
        assert issubclass(theirs.type, ours.type)


# the keys come into the first query as well: a gradient that took both ways would count it twice
def test_calls_that_share_keys():
    query, key, weight = inputs = draw((2, 2, 3, 4), (2, 2, 7, 4), (4,))
    between, _ = scaled_dot_product_attention(query, key, key, return_weights=True)
    mask = key.sum(-1).unsqueeze(2)
    outputs, _ = scaled_dot_product_attention(between, key, key, attn_mask=mask, return_weights=True)
    assert_the_same_for_further_derivatives(outputs, inputs[:2])
    between, _ = functional.additive_attention(query[0], key[0], weight, key[0])
    outputs, _ = functional.additive_attention(between, key[0], weight, key[0])
    assert_the_same_for_further_derivatives(outputs, inputs)


def test_additive_attention():
    query, key, weight, value = draw((2, 3, 6), (2, 5, 6), (6,), (2, 5, 4))
    mask = torch.rand(2, 1, 5) > 0.3
    mask[..., 0] = True
    output, weights = functional.additive_attention(query, key, weight, value, attn_mask=mask, lengths=[5, 3])
    scores = torch.tanh(query[:, :, None] + key[:, None]) @ weight
    takes_part = mask & (torch.arange(5) < torch.tensor([5, 3]).view(-1, 1, 1))
    expected = scores.masked_fill(~takes_part, -torch.inf).softmax(-1)
    torch.testing.assert_close(weights, expected)
    assert_same(output, expected @ value, [query, key, weight, value])
    for bad in ((query[0], key, weight, value), (query, key, weight[:3], value), (query, key, weight, value[:1])):
        with pytest.raises(RuntimeError):
            functional.additive_attention(*bad)
