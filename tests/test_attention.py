"""functional.scaled_dot_product_attention and additive_attention, and nn.Attention."""

import copy
import math
import pickle

import pytest
import torch
from torch.nn import functional as F

from seq2seq_fast import functional, nn
from seq2seq_fast.functional import scaled_dot_product_attention
from seq2seq_fast.nn.seq2seq_attention import SCORES


def draw(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs)
    d_output = torch.randn_like(theirs)
    for mine, true in zip(
        torch.autograd.grad(ours, inputs, d_output), torch.autograd.grad(theirs, inputs, d_output), strict=True
    ):
        torch.testing.assert_close(mine, true)


SHAPES = {
    "2-D": ((5, 8), (7, 8), (7, 3)),
    "3-D": ((4, 5, 8), (4, 7, 8), (4, 7, 8)),
    "4-D": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)),
    "5-D": ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8)),
    "heads broadcast": ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8)),
    "batch broadcast": ((2, 3, 5, 8), (1, 3, 7, 8), (1, 3, 7, 8)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("mask", (None, "bool", "float", "row"))
@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16), ids=str)
def test_equals_torch(name, mask, dtype):
    inputs = draw(*SHAPES[name], dtype=dtype)
    attn_mask = {
        None: None,
        "bool": torch.rand(5, 7).index_fill(1, torch.tensor(0), 1) > 0.4,
        "float": torch.randn(5, 7, dtype=dtype),
        "row": torch.rand(1, 7).index_fill(1, torch.tensor(0), 1) > 0.4,
    }[mask]
    ours = scaled_dot_product_attention(*inputs, attn_mask)
    theirs = F.scaled_dot_product_attention(*inputs, attn_mask)
    if dtype == torch.float64:
        assert_same(ours, theirs, inputs)
    else:
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("queries", (5, 7, 9))
def test_causal_scale_and_groups(queries):
    inputs = draw((2, 4, queries, 8), (2, 2, 7, 8), (2, 2, 7, 8))
    options = {"is_causal": True, "scale": 0.3, "enable_gqa": True}
    assert_same(
        scaled_dot_product_attention(*inputs, **options), F.scaled_dot_product_attention(*inputs, **options), inputs
    )


def test_mask_and_causal_hold_together():
    inputs = draw((2, 3, 6, 8), (2, 3, 6, 8), (2, 3, 6, 8))
    mask = torch.rand(2, 1, 1, 6) > 0.3
    mask[..., 0] = True
    both = mask & torch.ones(6, 6, dtype=torch.bool).tril()
    assert_same(
        scaled_dot_product_attention(*inputs, mask, is_causal=True),
        F.scaled_dot_product_attention(*inputs, both),
        inputs,
    )


@pytest.mark.parametrize("name", ("3-D", "4-D", "5-D"))
@pytest.mark.parametrize("average", (False, True))
def test_weights_and_lengths(name, average):
    shapes = SHAPES[name]
    inputs = draw(*shapes)
    if name == "5-D":
        lengths, takes_part = None, torch.ones(7, dtype=torch.bool)
    else:
        lengths = [3, 7, 1, 5][: shapes[0][0]]
        takes_part = torch.arange(7) < torch.tensor(lengths).view(-1, *(1,) * (len(shapes[0]) - 1))
    output, weights = scaled_dot_product_attention(
        *inputs, lengths=lengths, return_weights=True, average_weights=average
    )
    scores = inputs[0] @ inputs[1].transpose(-2, -1) / math.sqrt(8)
    expected = scores.masked_fill(~takes_part, -torch.inf).softmax(-1)
    torch.testing.assert_close(output, expected @ inputs[2])
    if average and name != "3-D":
        expected = expected.mean(-3)
    assert_same(weights, expected, inputs[:2])


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

    assert why_torch_serves(torch.empty(1, dtype=torch.bfloat16), extras=False)
    assert why_torch_serves(torch.empty(1, dtype=torch.bfloat16), extras=True) is None
    assert why_torch_serves(torch.empty(1, device="meta"), extras=False)


Q, K = torch.zeros(2, 3, 5, 8), torch.zeros(2, 3, 7, 8)
BAD = [
    ((Q[0, 0, 0], K, K), {}, "query"),
    ((Q, K[..., :4], K), {}, "key"),
    ((Q, K, K[:, :, :4]), {}, "value"),
    ((Q, K.double(), K), {}, "key"),
    ((Q.long(), K.long(), K.long()), {}, "query"),
    ((Q, K[:, :2], K[:, :2]), {}, "query, key, value: .* broadcast"),
    ((Q, K[:, :2], K[:, :2]), {"enable_gqa": True}, "heads"),
    ((Q, K, K, torch.zeros(5, 6)), {}, "attn_mask"),
    ((Q, K, K, torch.zeros(5, 7, dtype=torch.int32)), {}, "attn_mask"),
    ((Q, K, K, None, 1.5), {}, "dropout_p"),
    ((Q, K, K), {"lengths": [1]}, "lengths"),
    ((Q, K, K), {"lengths": [1, 8]}, "lengths"),
    ((Q, K, K), {"lengths": [-1, 3]}, "lengths"),
    ((Q, K, K), {"lengths": torch.tensor([1.0, 2.0])}, "lengths"),
    ((Q, K, K), {"empty_rows": "none"}, "empty_rows"),
]


@pytest.mark.parametrize(("inputs", "options", "name"), BAD)
def test_bad_input_is_named(inputs, options, name):
    with pytest.raises((RuntimeError, ValueError, TypeError), match=name):
        scaled_dot_product_attention(*inputs, **options)


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
    assert_same(*contexts, [keys, query, *ours.parameters()][:2])
    torch.testing.assert_close(ours.alphas, theirs.alphas)
    assert not ours.alphas.requires_grad


def logits(attention, query, keys):
    q = attention.linear_query(query)
    k = keys if attention.linear_key is None else attention.linear_key(keys)
    distance = (q[:, :, None] - k[:, None]).square().sum(-1).sqrt()
    products = q @ k.transpose(1, 2)
    return {
        "scaled_dot": lambda: products / math.sqrt(q.size(-1)),
        "dot": lambda: products,
        "general": lambda: products,
        "additive": lambda: torch.tanh(q[:, :, None] + k[:, None]) @ attention.score_weight,
        "gaussian": lambda: -distance.square() / 2,
        "boxcar": lambda: (distance <= 1).to(q),
        "epanechnikov": lambda: (1 - distance).clamp(min=0),
    }[attention.score]()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("proj_values", (False, True))
def test_scores(score, proj_values):
    torch.manual_seed(0)
    attention = nn.Attention(4, 3, proj_values, score=score).double()
    keys, query = draw((5, 6, 3), (5, 2, 4))
    with torch.no_grad():
        keys *= 0.3
    lengths, mask = torch.tensor([6, 4, 1, 3, 6]), torch.rand(5, 6) > 0.3
    mask[:, 0] = True
    attention.init_keys(keys, lengths=lengths)
    context = attention(query, mask)
    takes_part = mask[:, None] & (torch.arange(6) < lengths.view(-1, 1, 1))
    alphas = logits(attention, query, keys).masked_fill(~takes_part, -torch.inf).softmax(-1)
    values = attention.linear_value(keys) if proj_values else keys
    torch.testing.assert_close(attention.alphas, alphas.detach())
    wanted = [keys] if score == "boxcar" else [keys, query, *attention.parameters()]
    d_context = torch.randn_like(context)
    ours, theirs = (torch.autograd.grad(x, wanted, d_context, allow_unused=True) for x in (context, alphas @ values))
    torch.testing.assert_close(context, alphas @ values)
    for mine, true in zip(ours, theirs, strict=True):
        if mine is None or true is None:
            assert (mine if true is None else true) is None or not (mine if true is None else true).any()
        else:
            torch.testing.assert_close(mine, true)


@pytest.mark.parametrize("wide", (False, True))
def test_many_heads(wide):
    attention = nn.Attention(8, 6, num_heads=4, wide=wide).double()
    keys, query = draw((3, 5, 6), (3, 2, 8))
    attention.init_keys(keys)
    context = attention(query)
    q, k, v = (
        linear(x).unflatten(-1, (4, 8 if wide else 2)).transpose(1, 2)
        for linear, x in (
            (attention.linear_query, query),
            (attention.linear_key, keys),
            (attention.linear_value, keys),
        )
    )
    alphas = (q @ k.transpose(2, 3) / math.sqrt(q.size(-1))).softmax(-1)
    torch.testing.assert_close(attention.alphas, alphas.detach())
    assert_same(context, attention.linear_out((alphas @ v).transpose(1, 2).flatten(2)), [keys, query])


@pytest.mark.needs_extension
def test_attention_is_a_citizen():
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

    @torch.compile(fullgraph=True, backend="aot_eager")
    def decode(keys, query):
        attention.init_keys(keys)
        return attention(query)

    torch.testing.assert_close(decode(keys, query), attention(query))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Attention(4, score="cosine"), "score"),
        (lambda: nn.Attention(4, num_heads=3), "num_heads"),
        (lambda: nn.Attention(4, num_heads=2, score="additive"), "score"),
        (lambda: nn.Attention(4, dropout=2.0), "dropout"),
        (lambda: nn.Attention(4)(torch.zeros(1, 1, 4)), "keys"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(1, 4)), "keys"),
        (lambda: nn.Attention(4).init_keys(torch.zeros(2, 3, 4), lengths=[4, 1]), "lengths"),
    ],
)
def test_bad_arguments_of_attention_are_named(make, name):
    with pytest.raises((ValueError, RuntimeError), match=name):
        make()


def test_bad_queries_are_named():
    attention = nn.Attention(4)
    attention.init_keys(torch.zeros(2, 3, 4))
    with pytest.raises(RuntimeError, match="query"):
        attention(torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="mask"):
        attention(torch.zeros(2, 1, 4), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(RuntimeError, match="mask"):
        attention(torch.zeros(2, 1, 4), torch.ones(2, 3))
