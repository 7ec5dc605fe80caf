"""The attention kernels against the oracle in float64; few programs, since the interpreter takes 3 ms for each."""

import pytest
import torch

from seq2seq_fast import reference_attention

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from seq2seq_fast.kernels import attention_backward, attention_forward

# batch, heads, key heads, queries, keys, width, value width
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 2, 1, 1, 63, 40, 40),
    (1, 2, 2, 63, 33, 59, 5),
    (2, 2, 1, 40, 113, 16, 32),
]
# relative to the size of a result: the products are taken in the dtype, the sums in float32 or more
BOUND = {torch.float64: 1e-12, torch.float32: 4e-6, torch.float16: 4e-3}


def draw(shape, dtype, masks, ragged):
    batch, heads, kv_heads, queries, keys, width, value_width = shape
    query = torch.randn(batch, queries, heads, width).to(dtype).transpose(1, 2)
    key, value = (torch.randn(batch, kv_heads, keys, w).to(dtype) for w in (width, value_width))
    drawn = []
    for kind in masks:
        full = {"b": (batch, heads, queries, keys), "f": (1, heads, queries, keys), "B": (batch, 1, 1, keys)}
        numbers = torch.randn(full[kind]).to(dtype)
        drawn.append(numbers.masked_fill(torch.rand(full[kind]) < 0.1, -torch.inf) if kind == "f" else numbers > -0.5)
    return query, key, value, drawn, torch.randint(0, keys + 1, (batch,)) if ragged else None


def wide(tensors):
    return [x.double().requires_grad_() if x.is_floating_point() else x for x in tensors]


def assert_close(ours, exact, dtype, what):
    assert torch.equal(ours.isnan(), exact.isnan()), what
    size = max(1.0, exact.detach().nan_to_num().abs().max().item())
    error = (ours.double() - exact).nan_to_num().abs().max().item()
    assert error <= BOUND[dtype] * size, f"{what}: {error:.1e}"


@pytest.mark.parametrize("dtype", BOUND, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("masks", "ragged", "causal", "dropout", "weights", "empty_rows"),
    [
        ("", False, False, 0.0, "none", "zeros"),
        ("b", True, False, 0.0, "heads", "zeros"),
        ("fB", False, True, 0.3, "average", "zeros"),
        ("f", True, True, 0.0, "none", "uniform"),
        ("b", False, False, 0.3, "heads", "uniform"),
    ],
)
def test_forward_and_backward(dtype, shape, masks, ragged, causal, dropout, weights, empty_rows):
    torch.manual_seed(0)
    query, key, value, drawn, lengths = draw(shape, dtype, masks, ragged)
    seed = torch.randint(-(2**62), 2**62, (1,)) if dropout else None
    rest = (lengths, seed, causal, dropout, shape[5] ** -0.5, weights, empty_rows)
    *outputs, lse = attention_forward.attention_train(query, key, value, drawn, *rest)
    inputs = wide([query, key, value, *drawn])
    exact = reference_attention.attention(*inputs[:3], inputs[3:], *rest)
    for mine, true in zip(outputs, exact, strict=True):
        assert_close(mine, true.detach(), dtype, "output")
    d_outputs = [torch.randn_like(x) for x in outputs]
    needs = [x.requires_grad for x in inputs]
    mine = attention_backward.attention_backward(d_outputs, outputs[0], lse, needs, query, key, value, drawn, *rest)
    true = torch.autograd.grad(exact, [x for x in inputs if x.requires_grad], [d.double() for d in d_outputs])
    for k, (a, b) in enumerate(zip([g for g, need in zip(mine, needs, strict=True) if need], true, strict=True)):
        assert_close(a, b, dtype, f"gradient {k}")


def test_nan_policy_and_padding_that_is_nan():
    query, key, value, _, _ = draw(SHAPES[1], torch.float32, "", False)
    lengths = torch.tensor([0, 5])
    key[1, :, 5:], value[1, :, 5:] = torch.nan, torch.nan
    output, weights = attention_forward.attention(
        query, key, value, [], lengths, None, False, 0.0, 1.0, "average", "nan"
    )
    assert output[0].isnan().all() and weights[0].isnan().all()
    assert output[1].isfinite().all() and not weights[1, :, 5:].any()


def test_dropout_keeps_what_the_reference_keeps():
    query, key, value, _, _ = draw((2, 2, 2, 20, 70, 16, 16), torch.float32, "", False)
    seed = torch.tensor([-(2**61) - 12345])
    _, weights = attention_forward.attention(query, key, value, [], None, seed, False, 0.3, 1.0, "heads", "zeros")
    assert torch.equal(weights != 0, reference_attention.dropout_keep(seed, 0.3, weights.shape))


@pytest.mark.parametrize("sizes", [(0, 1, 2, 3), (1, 1, 0, 3), (1, 1, 2, 0)])
def test_nothing_to_do(sizes):
    batch, heads, queries, keys = sizes
    query, key = torch.randn(batch, heads, queries, 8), torch.randn(batch, heads, keys, 8)
    output, _ = attention_forward.attention_train(query, key, key, [], None, None, False, 0.0, 1.0, "none", "zeros")
    assert output.shape == query.shape and not output.any()
