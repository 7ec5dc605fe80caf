"""nn.MultiheadAttention against torch.nn's, with the same weights."""

import copy
import pickle

import pytest
import torch

from seq2seq_fast import accelerate, explain, nn

EMBED, HEADS, BATCH, QUERIES, KEYS = 24, 3, 4, 5, 7

KINDS = {
    "plain": {},
    "no bias": {"bias": False},
    "kdim vdim": {"kdim": 10, "vdim": 17},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "all": {"kdim": 10, "vdim": 17, "add_bias_kv": True, "add_zero_attn": True},
    "batch_first": {"batch_first": True},
}
MASKS = ("none", "bool", "float", "each head")
PADDINGS = ("none", "bool", "float")


def pair(dtype=torch.float64, **kwargs):
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(EMBED, HEADS, dtype=dtype, **kwargs)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.uniform_(-0.5, 0.5)
    ours = nn.MultiheadAttention(EMBED, HEADS, dtype=dtype, **kwargs)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def draw(layer, batched=True, dtype=torch.float64):
    def one(length, width):
        shape = (length, width) if not batched else (length, BATCH, width)
        x = torch.randn(shape, dtype=dtype)
        return x.transpose(0, 1).contiguous() if batched and layer.batch_first else x

    return one(QUERIES, EMBED), one(KEYS, layer.kdim), one(KEYS, layer.vdim)


def draw_masks(mask, padding, batched=True, dtype=torch.float64):
    batch = BATCH if batched else 1
    attn_mask = {
        "none": lambda: None,
        "bool": lambda: (torch.rand(QUERIES, KEYS) < 0.3).index_fill(1, torch.tensor(0), False),
        "float": lambda: torch.randn(QUERIES, KEYS, dtype=dtype),
        "each head": lambda: (torch.rand(batch * HEADS, QUERIES, KEYS) < 0.3).index_fill(2, torch.tensor(0), False),
    }[mask]()
    shape = (BATCH, KEYS) if batched else (KEYS,)
    key_padding_mask = {
        "none": lambda: None,
        "bool": lambda: (torch.rand(shape) < 0.3).index_fill(-1, torch.tensor(0), False),
        "float": lambda: torch.randn(shape, dtype=dtype),
    }[padding]()
    return {"attn_mask": attn_mask, "key_padding_mask": key_padding_mask}


def results(layer, inputs, **kwargs):
    inputs = [x.clone().requires_grad_() for x in inputs]
    output, weights = layer(*inputs, **kwargs)
    loss = output.square().sum() + (0 if weights is None else (weights * weights.exp()).sum())
    gradients = torch.autograd.grad(loss, (*inputs, *layer.parameters()))
    return [output] + ([] if weights is None else [weights]) + list(gradients)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("batched", (True, False), ids=("batched", "unbatched"))
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_every_flag(kind, mask, padding, batched):
    theirs, ours = pair(**KINDS[kind])
    inputs, masks = draw(theirs, batched), draw_masks(mask, padding, batched)
    for need_weights, average in ((False, True), (True, True), (True, False)):
        for training in (True, False):
            arguments = {**masks, "need_weights": need_weights, "average_attn_weights": average}
            assert_same(
                results(ours.train(training), inputs, **arguments), results(theirs.train(training), inputs, **arguments)
            )


def test_self_attention_and_shared_memory_are_one_product_each():
    theirs, ours = pair(batch_first=True)
    x, memory = torch.randn(2, 5, EMBED, dtype=torch.float64), torch.randn(2, 7, EMBED, dtype=torch.float64)
    for call in (lambda layer: layer(x, x, x), lambda layer: layer(x, memory, memory)):
        for mine, true in zip(call(ours), call(theirs), strict=True):
            torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("padding", PADDINGS[:2])
@pytest.mark.parametrize("need_weights", (True, False))
def test_is_causal_is_a_hint(padding, need_weights):
    theirs, ours = pair()
    query = torch.randn(QUERIES, BATCH, EMBED, dtype=torch.float64)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(QUERIES, dtype=torch.float64)
    key_padding_mask = torch.rand(BATCH, QUERIES) < 0.3 if padding == "bool" else None
    if key_padding_mask is not None:
        key_padding_mask[:, 0] = False
        mask = mask == -torch.inf
    arguments = {"attn_mask": mask, "is_causal": True, "need_weights": need_weights}
    mine, true = (layer(*[query] * 3, key_padding_mask, **arguments) for layer in (ours, theirs))
    torch.testing.assert_close(mine[0], true[0])
    with pytest.raises(RuntimeError, match="attn_mask"):
        ours(*[query] * 3, is_causal=True)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_other_dtypes_are_as_accurate_as_torch(dtype):
    theirs, ours = pair(dtype)
    exact = copy.deepcopy(theirs).double()
    inputs = draw(theirs, dtype=dtype)
    mine, true, oracle = ours(*inputs), theirs(*inputs), exact(*(x.double() for x in inputs))
    for a, b, c in zip(mine, true, oracle, strict=True):
        floor = 4 * torch.finfo(dtype).eps * c.abs().max()
        assert (a.double() - c).abs().max() <= 2 * (b.double() - c).abs().max() + floor


def test_a_query_with_no_key_gives_zero_weights_and_finite_gradients():
    _, ours = pair()
    inputs = draw(ours)
    mask = torch.zeros(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = True
    output, weights, *gradients = results(ours, inputs, attn_mask=mask)
    assert not weights[:, 2].any() and not output[2].sub(ours.out_proj.bias).any()
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.needs_extension
def test_dropout_in_training_only():
    _, ours = pair(dropout=0.4)
    inputs = draw(ours)
    torch.manual_seed(1)
    first, weights = ours(*inputs, average_attn_weights=False)
    assert 0.2 < (weights == 0).double().mean() < 0.6
    torch.manual_seed(1)
    assert torch.equal(first, ours(*inputs)[0])
    assert not torch.equal(first, ours(*inputs)[0])
    ours.eval()
    assert torch.equal(ours(*inputs)[0], ours(*inputs)[0])


def test_citizen():
    theirs, ours = pair(batch_first=True)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    inputs = draw(ours)
    expected = ours(*inputs)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert torch.equal(other(*inputs)[0], expected[0])
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert_same(results(compiled, inputs), results(ours, inputs))
    exported = torch.export.export(ours, inputs).module()
    torch.testing.assert_close(exported(*inputs), expected)
    with torch.autocast("cpu", torch.bfloat16):
        _, half = pair(torch.float32)
        assert half(*draw(half, dtype=torch.float32))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("training", (True, False))
def test_accelerate_serves_transformer_layers(training):
    torch.manual_seed(0)
    encoder = torch.nn.TransformerEncoderLayer(24, 3, 32, 0.0, batch_first=True, dtype=torch.float64)
    decoder = torch.nn.TransformerDecoderLayer(24, 3, 32, 0.0, batch_first=True, dtype=torch.float64)
    model = torch.nn.ModuleList([encoder, decoder]).train(training)
    x, memory = torch.randn(2, 6, 24, dtype=torch.float64), torch.randn(2, 9, 24, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6) == -torch.inf

    def run():
        first = encoder(x, src_key_padding_mask=padding)
        return first[~padding], decoder(x, memory, tgt_mask=mask, tgt_is_causal=True)

    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            expected = run()
            accelerated = accelerate(copy.deepcopy(model))
            assert isinstance(accelerated[0].self_attn, nn.MultiheadAttention)
            encoder, decoder = accelerated
            for mine, true in zip(run(), expected, strict=True):
                torch.testing.assert_close(mine, true)
            encoder, decoder = model


@pytest.mark.needs_extension
def test_explain():
    _, ours = pair()
    inputs = draw(ours)
    assert "fused" in explain(ours, *inputs)
    assert "call accelerate" in explain(torch.nn.MultiheadAttention(4, 2), torch.randn(3, 4))


BAD = [
    (lambda q, k, v: ((q[0, 0], k, v), {}), AssertionError, "query"),
    (lambda q, k, v: ((q, k[0], v), {}), AssertionError, "key"),
    (lambda q, k, v: ((q, k, v[..., :3]), {}), AssertionError, "value"),
    (lambda q, k, v: ((q, k, v[:-1]), {}), AssertionError, "value"),
    (lambda q, k, v: ((q, k, v), {"attn_mask": torch.ones(2, 2)}), RuntimeError, "attn_mask"),
    (lambda q, k, v: ((q, k, v), {"key_padding_mask": torch.ones(2, 2)}), RuntimeError, "key_padding_mask"),
    (
        lambda q, k, v: ((q, k, v), {"attn_mask": torch.ones(QUERIES, KEYS, dtype=torch.int64)}),
        AssertionError,
        "attn_mask",
    ),
]


@pytest.mark.parametrize(("make", "kind", "name"), BAD)
def test_bad_input_raises_what_torch_raises(make, kind, name):
    theirs, ours = pair()
    arguments, kwargs = make(*draw(ours))
    for layer in (ours, theirs):
        with pytest.raises((kind, RuntimeError, AssertionError)):
            layer(*arguments, **kwargs)
    with pytest.raises(kind, match=name):
        ours(*arguments, **kwargs)
