"""nn.MultiheadAttention against torch.nn's, with the same weights."""

import copy
import pickle

import pytest
import torch
from torch.func import functional_call, grad, jvp, vmap

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


@pytest.mark.parametrize("need_weights", (True, False))
@pytest.mark.parametrize("same", (True, False), ids=("self", "cross"))
def test_residual_added_in_place(same, need_weights):
    """Where torch.nn's can: batch first, its products read a copy."""
    theirs, ours = pair(batch_first=True)
    inputs = draw(ours)
    gradients = []
    for layer in (theirs, ours):
        leaves = [x.clone().requires_grad_() for x in inputs[: 1 if same else 3]]
        query, *rest = (x * 1 for x in leaves)
        key, value = rest or (query, query)
        query += layer(query, key, value, need_weights=need_weights)[0]
        query.sin().sum().backward()
        gradients.append([x.grad for x in (*leaves, *layer.parameters())])
    for own, expected in zip(*reversed(gradients), strict=True):
        torch.testing.assert_close(own, expected)


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


@pytest.mark.parametrize("sizes", [(1, 1), (1, 257), (63, 113), (257, 113)], ids=str)
@pytest.mark.parametrize("need_weights", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_other_dtypes_are_as_accurate_as_torch(sizes, need_weights, dtype):
    theirs, ours = pair(dtype)
    exact = copy.deepcopy(theirs).double()
    query, memory = (torch.randn(length, 2, EMBED, dtype=dtype) for length in sizes)
    d_output = torch.randn_like(query)
    results = []
    for layer in (ours, theirs, exact):
        wanted = [x.detach().to(layer.in_proj_weight.dtype).requires_grad_() for x in (query, memory)]
        output, weights = layer(wanted[0], wanted[1], wanted[1], need_weights=need_weights)
        gradients = torch.autograd.grad(output, (*wanted, *layer.parameters()), d_output.to(output))
        results.append([output, *([weights] if need_weights else []), *gradients])
    for k, (mine, true, correct) in enumerate(zip(*results, strict=True)):
        error, allowed = ((x.double() - correct).abs().max() for x in (mine, true))
        # 8 roundings: a sum over all rows, in which one of the two may be lucky
        assert error <= (2 if k <= need_weights else 3) * allowed + 8 * torch.finfo(dtype).eps * correct.abs().max()


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
    exported = torch.export.export(ours, inputs).module()
    torch.testing.assert_close(exported(*inputs), expected)
    with torch.autocast("cpu", torch.bfloat16):
        _, half = pair(torch.float32)
        assert half(*draw(half, dtype=torch.float32))[0].dtype == torch.bfloat16


@pytest.mark.parametrize("need_weights", (True, False))
def test_compiles(need_weights):
    _, ours = pair(batch_first=True)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6) == -torch.inf
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda *inputs: ours(*inputs, attn_mask=mask, need_weights=need_weights), fullgraph=True, backend="aot_eager"
    )
    for batch in (4, 6):  # another size the second time, which makes that size symbolic; the mask's stay as they are
        x = torch.randn(batch, 6, EMBED, dtype=torch.float64, requires_grad=True)
        if batch == 4:
            torch._dynamo.maybe_mark_dynamic(x, 1)
        results = []
        for layer in (compiled, lambda *inputs: ours(*inputs, attn_mask=mask, need_weights=need_weights)):
            outputs = [output for output in layer(x, x, x) if output is not None]
            loss = sum(output.square().sum() for output in outputs)
            results.append([*outputs, *torch.autograd.grad(loss, (x, *ours.parameters()))])
        assert_same(*results)


@pytest.mark.needs_extension
def test_dropout_compiles():
    _, ours = pair(dropout=0.4)
    inputs = draw(ours)
    output, weights = torch.compile(ours, fullgraph=True, backend="aot_eager")(*inputs, average_attn_weights=False)
    assert 0.2 < (weights == 0).double().mean() < 0.6
    assert all(g.isfinite().all() for g in torch.autograd.grad(output.sum(), list(ours.parameters())))


@pytest.mark.parametrize("need_weights", (True, False))
def test_derivatives_and_transforms(need_weights):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True, dtype=torch.float64)
    x = torch.randn(3, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)

    def call(x):
        output, weights = layer(x, x, x, attn_mask=mask, need_weights=need_weights)
        return output if weights is None else (output, weights)

    assert torch.autograd.gradgradcheck(call, (x,))
    weights = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def loss(weights, row):
        rows = (row.unsqueeze(0),) * 3
        return functional_call(layer, weights, rows, {"attn_mask": mask, "need_weights": need_weights})[0].exp().sum()

    per_sample = vmap(grad(loss), (None, 0))(weights, x.detach())
    for row in range(3):
        expected = torch.autograd.grad(loss(dict(layer.named_parameters()), x[row].detach()), list(layer.parameters()))
        for name, true in zip(weights, expected, strict=True):
            torch.testing.assert_close(per_sample[name][row], true)

    tangent, small = torch.randn_like(x), 1e-6
    mine = jvp(call, (x.detach(),), (tangent,))[1]
    ahead, behind = (call(x.detach() + sign * small * tangent) for sign in (1, -1))
    if not need_weights:
        mine, ahead, behind = (mine,), (ahead,), (behind,)
    for directional, up, down in zip(mine, ahead, behind, strict=True):
        torch.testing.assert_close(directional, (up - down) / (2 * small), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("sizes", [(0, 2, 3), (3, 0, 3), (3, 2, 0)], ids=str)
def test_nothing_to_do(sizes):
    queries, batch, keys = sizes
    theirs, ours = pair()
    query, memory = torch.randn(queries, batch, EMBED).double(), torch.randn(keys, batch, EMBED).double()
    for mine, true in zip(ours(query, memory, memory), theirs(query, memory, memory), strict=True):
        torch.testing.assert_close(mine, true)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_go_to_torch():
    theirs = torch.nn.MultiheadAttention(EMBED, 4, batch_first=True).eval()
    ours = accelerate(copy.deepcopy(theirs))
    x = torch.nested.nested_tensor([torch.randn(3, EMBED), torch.randn(5, EMBED)])
    with torch.no_grad():
        mine, true = (layer(x, x, x, need_weights=False)[0] for layer in (ours, theirs))
    for a, b in zip(mine.unbind(), true.unbind(), strict=True):
        assert torch.equal(a, b)
    assert "nested" in explain(ours, x)


MASKED = {
    "nothing": lambda padding, mask: {},
    "padding": lambda padding, mask: {"src_key_padding_mask": padding},
    "causal": lambda padding, mask: {"mask": mask, "is_causal": True},
    "both": lambda padding, mask: {"mask": mask, "src_key_padding_mask": padding},
}


@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize("mode", ("training", "gradients in eval mode", "no gradients"))
@pytest.mark.parametrize("heads", (3, 4), ids=("odd", "even"))  # torch's own operator serves even numbers only
@pytest.mark.parametrize("options", ({}, {"norm_first": True}, {"batch_first": False}), ids=" ".join)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nested tensors")
def test_accelerate_serves_an_encoder(masked, mode, heads, options):
    torch.manual_seed(0)
    options = {"batch_first": True, **options}
    layer = torch.nn.TransformerEncoderLayer(24, heads, 32, 0.0, dtype=torch.float64, **options)
    theirs = torch.nn.TransformerEncoder(layer, 2).train(mode == "training")
    ours = accelerate(copy.deepcopy(theirs))
    assert all(isinstance(layer.self_attn, nn.MultiheadAttention) for layer in ours.layers)
    x = torch.randn(2, 6, 24, dtype=torch.float64)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6) == -torch.inf
    arguments = MASKED[masked](padding, mask)
    with torch.set_grad_enabled(mode != "no gradients"):
        outputs = [
            encoder(x, **arguments)
            if options["batch_first"]
            else encoder(x.transpose(0, 1), **arguments).transpose(0, 1)
            for encoder in (ours, theirs)
        ]
    mine, true = (x[~padding] if "padding" in masked or masked == "both" else x for x in outputs)
    torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("training", (True, False))
@pytest.mark.parametrize("with_grad", (True, False))
def test_accelerate_serves_a_decoder(training, with_grad):
    torch.manual_seed(0)
    theirs = torch.nn.TransformerDecoderLayer(24, 3, 32, 0.0, batch_first=True, dtype=torch.float64).train(training)
    ours = accelerate(copy.deepcopy(theirs))
    x, memory = torch.randn(2, 6, 24, dtype=torch.float64), torch.randn(2, 9, 24, dtype=torch.float64)
    padding = torch.arange(9) >= torch.tensor([[9], [5]])
    mask = torch.nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    with torch.set_grad_enabled(with_grad):
        mine, true = (
            layer(x, memory, mask, tgt_is_causal=True, memory_key_padding_mask=padding) for layer in (ours, theirs)
        )
    torch.testing.assert_close(mine, true)


@pytest.mark.needs_extension
def test_explain():
    _, ours = pair()
    inputs = draw(ours)
    assert "fused" in explain(ours, *inputs)
    assert "call accelerate" in explain(torch.nn.MultiheadAttention(4, 2), torch.randn(3, 4))


@pytest.mark.needs_extension
def test_explain_knows_that_torchs_encoder_layer_goes_round_its_attention():
    model = accelerate(torch.nn.Transformer(8, 2, 1, 1, 16, batch_first=True))
    lines = dict(line.split(" ", 1) for line in explain(model, torch.randn(2, 5, 8), torch.randn(2, 4, 8)).splitlines())
    assert "not called (without gradients" in lines["encoder.layers.0.self_attn"]
    assert "fused" in lines["decoder.layers.0.self_attn"]
    assert "fused" in lines["decoder.layers.0.multihead_attn"]
    assert not any("forward" in vars(module) for module in model.modules())


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
