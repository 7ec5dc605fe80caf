"""nn.Attention, against its definition in plain operations."""

import copy
import math
import pickle

import pytest
import torch
from leaves import assert_same, draw
from torch.func import functional_call, grad, jvp, vmap

from seq2seq_fast import explain, nn
from seq2seq_fast.nn.seq2seq_attention import SCORES

SMOOTH = ("scaled_dot", "dot", "general", "additive", "gaussian")


def logits(attention, query, keys):
    """The scores (B, L, S) of an attention with one head."""
    q = attention.linear_query(query)
    k = keys if attention.linear_key is None else attention.linear_key(keys)
    square = (q[:, :, None] - k[:, None]).square().sum(-1)
    at_zero = square == 0
    distance = square.masked_fill(at_zero, 1).sqrt().masked_fill(at_zero, 0)
    products = q @ k.transpose(1, 2)
    return {
        "scaled_dot": lambda: products / math.sqrt(q.size(-1)),
        "dot": lambda: products,
        "general": lambda: products,
        "additive": lambda: torch.tanh(q[:, :, None] + k[:, None]) @ attention.score_weight,
        "gaussian": lambda: -square / 2,
        "boxcar": lambda: (distance <= 1).to(q),
        "epanechnikov": lambda: (1 - distance).clamp(min=0),
    }[attention.score]()


def by_definition(attention, query, keys, values, takes_part):
    """The context and the weights of an attention with one head."""
    alphas = logits(attention, query, keys).masked_fill(~takes_part, -torch.inf).softmax(-1)
    values = values if attention.linear_value is None else attention.linear_value(values)
    return alphas @ values, alphas


class SeqAttention(torch.nn.Module):
    """Attention as a seq2seq tutorial writes it: what nn.Attention has to equal."""

    def __init__(self, hidden, features):
        super().__init__()
        self.linear_query, self.linear_key = torch.nn.Linear(hidden, hidden), torch.nn.Linear(features, hidden)

    def init_keys(self, keys):
        self.keys, self.projected = keys, self.linear_key(keys)

    def forward(self, query, mask=None):
        scores = self.linear_query(query) @ self.projected.transpose(1, 2) / math.sqrt(query.size(-1))
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        self.alphas = scores.softmax(-1).detach()
        return scores.softmax(-1) @ self.keys


@pytest.mark.parametrize("queries", (1, 4))
def test_replaces_a_tutorials_attention(queries):
    theirs, ours = SeqAttention(8, 5).double(), nn.Attention(8, 5, empty_rows="uniform").double()
    ours.load_state_dict(theirs.state_dict())
    keys, query = draw((3, 6, 5), (3, queries, 8))
    mask = torch.rand(3, 1, 6) > 0.4
    mask[1] = False
    contexts = []
    for attention in (ours, theirs):
        attention.init_keys(keys)
        contexts.append(attention(query, mask))
    assert_same(*contexts, [keys, query])
    torch.testing.assert_close(ours.alphas, theirs.alphas)
    assert not ours.alphas.requires_grad


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("proj_values", (False, True))
@pytest.mark.parametrize("widths", ({}, {"query_dim": 5, "value_dim": 7}), ids=("alike", "each its own"))
def test_scores(score, proj_values, widths):
    torch.manual_seed(0)
    attention = nn.Attention(4, 3, proj_values, score=score, **widths).double()
    keys, values, query = draw((5, 6, 3), (5, 6, attention.value_dim), (5, 2, attention.query_dim))
    with torch.no_grad():
        keys *= 0.3
    lengths, mask = torch.tensor([6, 4, 1, 3, 6]), torch.rand(5, 6) > 0.3
    mask[:, 0] = True
    attention.init_keys(keys, values=values, lengths=lengths)
    context = attention(query, mask)
    takes_part = mask[:, None] & (torch.arange(6) < lengths.view(-1, 1, 1))
    expected, alphas = by_definition(attention, query, keys, values, takes_part)
    torch.testing.assert_close(attention.alphas, alphas.detach())
    torch.testing.assert_close(context, expected)
    wanted = [values] if score == "boxcar" else [keys, values, query, *attention.parameters()]
    d_context = torch.randn_like(context)
    ours, theirs = (torch.autograd.grad(x, wanted, d_context, allow_unused=True) for x in (context, expected))
    for mine, true in zip(ours, theirs, strict=True):
        # a linear layer's bias moves all scores of a query alike: no gradient, or one of zeros
        torch.testing.assert_close(*(torch.zeros(()) if x is None else x for x in (mine, true)), check_dtype=False)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1, 63), (2, 63, 113), (1, 5, 257)], ids=str)
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_as_accurate_as_plain_operations(score, sizes, dtype):
    torch.manual_seed(1)
    batch, queries, length = sizes
    attention = nn.Attention(16, 24, score=score).to(dtype)
    exact = copy.deepcopy(attention).double()
    keys, query = draw((batch, length, 24), (batch, queries, 16), dtype=dtype)
    takes_part = torch.rand(batch, queries, length) > 0.2
    takes_part[..., 0] = True
    true, _ = by_definition(exact, query.double(), keys.double(), keys.double(), takes_part)
    if score == "boxcar":  # a distance within rounding of 1 counts or not
        wide = (exact.linear_query(query.double())[:, :, None] - exact.linear_key(keys.double())[:, None]).norm(dim=-1)
        takes_part = takes_part & ((wide - 1).abs() > 64 * torch.finfo(dtype).eps)
        takes_part[..., 0] |= ~takes_part.any(-1)
        true, _ = by_definition(exact, query.double(), keys.double(), keys.double(), takes_part)
    theirs, _ = by_definition(attention, query, keys, keys, takes_part)
    attention.init_keys(keys)
    ours = attention(query, takes_part)
    assert ours.dtype == dtype
    results = [(ours, theirs, true)]
    if score != "boxcar":
        d_context = torch.randn_like(ours)
        gradients = [torch.autograd.grad(x, (keys, query), d_context.to(x)) for x in (ours, theirs, true)]
        results += zip(*gradients, strict=True)
    for times, (mine, plain, correct) in zip((2, 3, 3), results, strict=False):
        error, allowed = ((x.double() - correct.double()).abs().max() for x in (mine, plain))
        assert error <= times * allowed + 4 * torch.finfo(dtype).eps * correct.abs().max()


@pytest.mark.parametrize("wide", (False, True))
@pytest.mark.parametrize("score", ("scaled_dot", "gaussian", "epanechnikov"))
def test_many_heads(wide, score):
    attention = nn.Attention(8, 6, num_heads=4, wide=wide, score=score).double()
    keys, query = draw((3, 5, 6), (3, 2, 8))
    context = attention(query, keys=keys)
    q, k, v = (
        linear(x).unflatten(-1, (4, 8 if wide else 2)).transpose(1, 2)
        for linear, x in (
            (attention.linear_query, query),
            (attention.linear_key, keys),
            (attention.linear_value, keys),
        )
    )
    distance = (q[:, :, :, None] - k[:, :, None]).square().sum(-1).sqrt()
    scores = {
        "scaled_dot": q @ k.transpose(2, 3) / math.sqrt(q.size(-1)),
        "gaussian": -distance.square() / 2,
        "epanechnikov": (1 - distance).clamp(min=0),
    }[score]
    alphas = scores.softmax(-1)
    torch.testing.assert_close(attention.alphas, alphas.detach())
    assert_same(context, attention.linear_out((alphas @ v).transpose(1, 2).flatten(2)), [keys, query])


def test_masks_of_keys_and_of_the_call_hold_together():
    attention = nn.Attention(4).double()
    keys, query = draw((3, 6, 4), (3, 2, 4))
    of_keys, of_call = torch.rand(3, 6) > 0.3, torch.rand(3, 2, 6) > 0.3
    of_keys[:, 0] = of_call[..., 0] = True
    everything = torch.ones(3, 1, 6, dtype=torch.bool)
    for given, passed, takes_part in (
        (of_keys, of_call, of_keys[:, None] & of_call),
        (of_keys, None, of_keys[:, None]),
        (None, of_call, of_call),
        (None, None, everything),
    ):
        attention.init_keys(keys, given)
        expected, _ = by_definition(attention, query, keys, keys, takes_part)
        assert_same(attention(query, passed), expected, [keys, query])


def test_one_call_is_init_keys_and_a_query():
    attention = nn.Attention(4, 3, value_dim=5)
    keys, values, query = draw((3, 6, 3), (3, 6, 5), (3, 2, 4), dtype=torch.float32)
    at_once = attention(query, keys=keys, values=values, lengths=[6, 2, 1])
    assert torch.equal(at_once, attention(query))
    attention.init_keys(keys, values=values, lengths=[6, 2, 1])
    assert torch.equal(at_once, attention(query))


@pytest.mark.parametrize("score", SCORES)
def test_a_row_without_keys_and_padding_that_is_nan(score):
    attention = nn.Attention(4, proj_values=True, score=score).double()
    keys, query = draw((3, 6, 4), (3, 2, 4))
    lengths = [4, 0, 6]
    padded = keys.detach().clone()
    padded[0, 4:] = padded[1] = torch.nan
    with torch.no_grad():
        expected = attention(query, keys=keys, lengths=lengths)
        assert torch.equal(attention(query, keys=padded, lengths=lengths), expected)
    assert not expected[1].any() and not attention.alphas[1].any() and not attention.alphas[0, :, 4:].any()
    context = attention(query, keys=keys, lengths=lengths)
    gradients = torch.autograd.grad(context.sum(), (keys, query), allow_unused=True)
    assert all(g.isfinite().all() for g in gradients if g is not None)
    assert not gradients[0][1].any()


@pytest.mark.parametrize("score", ("epanechnikov", "boxcar", "gaussian"))
def test_a_query_that_equals_a_key(score):
    attention = nn.Attention(3, score=score).double()
    with torch.no_grad():
        for linear in (attention.linear_query, attention.linear_key):
            linear.weight.copy_(torch.eye(3))
            linear.bias.zero_()
    query = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    keys = torch.cat([query.detach(), query.detach() + 0.2], 1).requires_grad_()
    context = attention(query, keys=keys)
    expected, alphas = by_definition(attention, query, keys, keys, torch.ones(2, 4, 8, dtype=torch.bool))
    torch.testing.assert_close(attention.alphas, alphas.detach())
    if score == "boxcar":
        torch.testing.assert_close(context, expected)
    else:
        assert_same(context, expected, [keys, query])


def test_small_distances_far_from_zero():
    """Distances from products would be lost here: 1e-3 of vectors of a length of a hundred."""
    attention = nn.Attention(4, score="epanechnikov")
    with torch.no_grad():
        for linear in (attention.linear_query, attention.linear_key):
            linear.weight.copy_(torch.eye(4))
            linear.bias.zero_()
    query = torch.full((1, 30, 4), 64.0)
    keys = query + torch.linspace(0, 0.5, 30).view(1, 30, 1)
    attention(query, keys=keys)
    distance = (query.double()[:, :, None] - keys.double()[:, None]).norm(dim=-1)
    torch.testing.assert_close(attention.alphas.double(), (1 - distance).clamp(min=0).softmax(-1), rtol=1e-6, atol=0)


@pytest.mark.needs_extension
def test_dropout_in_training_only():
    attention = nn.Attention(4, dropout=0.5)
    keys, query = draw((4, 50, 4), (4, 20, 4), dtype=torch.float32)
    whole = attention.eval()(query, keys=keys)
    alphas = attention.alphas
    torch.manual_seed(0)
    dropped = attention.train()(query, keys=keys)
    kept = attention.alphas != 0
    assert 0.45 < kept.double().mean() < 0.55
    torch.testing.assert_close(attention.alphas, alphas * kept * 2)
    torch.testing.assert_close(dropped, attention.alphas @ keys)
    torch.manual_seed(0)
    assert torch.equal(dropped, attention(query, keys=keys))
    assert torch.equal(whole, attention.eval()(query, keys=keys))


@pytest.mark.parametrize("score", SMOOTH)
def test_second_derivatives_and_transforms(score):
    attention = nn.Attention(3, 2, score=score).double()
    keys, query = draw((2, 4, 2), (2, 2, 3))
    assert torch.autograd.gradgradcheck(lambda k, q: attention(q, keys=k, lengths=[4, 2]), (keys, query))
    weights = {name: p.detach() for name, p in attention.named_parameters()}

    def loss(weights, query, keys):
        return functional_call(attention, weights, (query[None],), {"keys": keys[None]}).square().sum()

    per_sample = vmap(grad(loss), (None, 0, 0))(weights, query.detach(), keys.detach())
    for row in range(2):
        context = attention(query[row : row + 1], keys=keys[row : row + 1])
        wanted = list(attention.parameters())
        expected = torch.autograd.grad(context.square().sum(), wanted, materialize_grads=True, allow_unused=True)
        for name, true in zip(weights, expected, strict=True):
            torch.testing.assert_close(per_sample[name][row], true)
    attention(query.detach(), keys=keys.detach())  # the transforms' tensors are not kept

    tangent = torch.randn_like(query)
    _, directional = jvp(lambda q: attention(q, keys=keys.detach()), (query.detach(),), (tangent,))
    small = 1e-6
    ahead, behind = (attention(query.detach() + s * small * tangent, keys=keys.detach()) for s in (1, -1))
    torch.testing.assert_close(directional, (ahead - behind) / (2 * small), rtol=1e-6, atol=1e-8)


def test_citizen():
    attention = nn.Attention(4, dropout=0.2)
    keys, query = draw((2, 5, 4), (2, 1, 4), dtype=torch.float32)
    attention.init_keys(keys)
    attention(query)
    attention.eval()
    for other in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        with pytest.raises(RuntimeError, match="init_keys"):
            other(query)
        other.init_keys(keys)
        torch.testing.assert_close(other(query), attention(query))
    with torch.autocast("cpu", torch.bfloat16):
        for score in SCORES:
            half = nn.Attention(4, score=score)
            assert half(query, keys=keys).dtype == half.alphas.dtype == torch.bfloat16


@pytest.mark.parametrize("score", ("scaled_dot", "gaussian", "epanechnikov", "additive"))
@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_compiles_and_exports(score):
    attention = nn.Attention(4, score=score)
    keys, query = draw((2, 5, 4), (2, 1, 4), dtype=torch.float32)
    mask = torch.tensor([[True, True, False, True, True], [True, False, True, True, False]])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def decode(keys, query):
        attention.init_keys(keys, mask, lengths=[5, 3])
        return attention(query)

    context, alphas = decode(keys, query), attention.alphas
    attention.init_keys(keys, mask, lengths=[5, 3])
    assert_same(context, attention(query), [keys, query])
    torch.testing.assert_close(alphas, attention.alphas)

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Attention(4, score=score)

        def forward(self, query, keys):
            return self.attention(query, keys=keys)

    decoder = Decoder()
    exported = torch.export.export(decoder, (query, keys)).module()
    torch.testing.assert_close(exported(query, keys), decoder(query, keys))


@pytest.mark.needs_extension
def test_explain():
    attention = nn.Attention(4)
    attention.init_keys(torch.zeros(2, 3, 4))
    assert "fused" in explain(attention, torch.zeros(2, 1, 4))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Attention(4, score="cosine"), "score"),
        (lambda: nn.Attention(4, num_heads=3), "num_heads"),
        (lambda: nn.Attention(4, num_heads=0), "num_heads"),
        (lambda: nn.Attention(4, num_heads=2, score="additive"), "score"),
        (lambda: nn.Attention(4, num_heads=2, score="general"), "score"),
        (lambda: nn.Attention(4, score="additive", dropout=0.1), "score"),
        (lambda: nn.Attention(4, dropout=2.0), "dropout"),
        (lambda: nn.Attention(4)(torch.zeros(1, 1, 4)), "keys"),
        (lambda: nn.Attention(4)(torch.zeros(1, 1, 4), lengths=[1]), "lengths"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(1, 4)), "keys"),
        (lambda: nn.Attention(4, 3).init_keys(torch.zeros(2, 3, 4)), "keys"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(2, 3, 4), values=torch.zeros(2, 2, 4)), "values"),
        (lambda: nn.Attention(4, value_dim=5).init_keys(torch.zeros(2, 3, 4)), "values"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(2, 3, 4), lengths=[4, 1]), "lengths"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(2, 3, 4), lengths=[1]), "lengths"),
    ],
)
def test_bad_arguments_are_named(make, name):
    with pytest.raises((ValueError, RuntimeError), match=name):
        make()


def test_bad_queries_are_named():
    attention = nn.Attention(4)
    attention.init_keys(torch.zeros(2, 3, 4))
    for query in (torch.zeros(2, 4), torch.zeros(3, 1, 4), torch.zeros(2, 1, 5)):
        with pytest.raises(RuntimeError, match="query"):
            attention(query)
    for mask in (torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 2, 3, dtype=torch.bool), torch.ones(2, 3)):
        with pytest.raises(RuntimeError, match="mask"):
            attention(torch.zeros(2, 1, 4), mask)
