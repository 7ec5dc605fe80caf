"""The kernels of additive attention against the oracle in float64."""

import pytest
import torch

from seq2seq_fast import reference_attention

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from error_rule import error

from seq2seq_fast.kernels import additive_attention, additive_attention_backward

# batch, queries, keys, width, value width
SHAPES = [(1, 1, 1, 1, 1), (2, 1, 113, 40, 33), (2, 5, 63, 17, 5), (1, 7, 33, 70, 65)]
# the interpreter computes bfloat16 on its bit patterns: tests/gpu has it
DTYPES = (torch.float64, torch.float32, torch.float16)


def draw(shape, dtype, masks, ragged):
    """query, key, score_weight, value; masks; lengths. `masks`: b(ool) and f(loat), whole; B and F broadcast."""
    batch, queries, keys, width, value_width = shape
    query = torch.randn(batch, width, queries).to(dtype).transpose(1, 2)
    key, value = (torch.randn(keys, batch, w).to(dtype).transpose(0, 1) for w in (width, value_width))
    score_weight = torch.randn(2 * width).to(dtype)[::2]
    drawn = []
    for kind in masks:
        numbers = torch.randn({"b": (batch, queries, keys), "f": (1, queries, keys)}.get(kind, (batch, 1, keys)))
        holes = numbers.to(dtype).masked_fill(torch.rand(numbers.shape) < 0.1, -torch.inf)
        drawn.append(numbers > -0.5 if kind in "bB" else holes)
    return [query, key, score_weight, value], drawn, torch.randint(0, keys + 1, (batch,)) if ragged else None


def leaves(tensors, dtype):
    return [x.to(dtype, copy=True).requires_grad_() if x.is_floating_point() else x for x in tensors]


def assert_as_accurate(ours, theirs, exact, times, what):
    """At most `times` the error of plain torch operations in the same dtype, and some roundings; float64 1e-12."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    assert torch.equal(ours.isnan(), exact.isnan()), what
    ours, theirs, exact = (x.detach().nan_to_num() for x in (ours, theirs, exact))
    size = exact.abs().max().item() if exact.numel() else 0.0
    if ours.dtype == torch.float64:
        floor = 1e-12 * max(size, 1.0)
    else:  # a sum that cancels has the rounding of its terms
        floor = 8 * torch.finfo(ours.dtype).eps * size + 4 * torch.finfo(torch.float32).eps
    got, allowed = error(ours, exact), times * error(theirs, exact) + floor
    assert got <= allowed, f"{what}: error {got:.1e}, allowed {allowed:.1e}"


KINDS = pytest.mark.parametrize(
    ("masks", "ragged", "empty_rows"),
    [
        ("", False, "zeros"),
        ("b", True, "nan"),
        ("fB", False, "uniform"),
        ("Ff", True, "uniform"),
        ("bF", True, "zeros"),
    ],
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@KINDS
def test_forward_and_backward(dtype, shape, masks, ragged, empty_rows):
    torch.manual_seed(0)
    tensors, drawn, lengths = draw(shape, dtype, masks, ragged)
    theirs, exact = (leaves([*tensors, *drawn], d) for d in (dtype, torch.float64))
    if ragged:  # what lies after a row's end is not read
        tensors = [x.clone() for x in tensors]
        for row, length in enumerate(lengths):
            tensors[1][row, length:] = tensors[3][row, length:] = torch.nan
    *outputs, lse = additive_attention.additive_attention_train(*tensors, drawn, lengths, empty_rows)
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    plain, true = (reference_attention.additive_attention(*x[:4], x[4:], lengths, empty_rows) for x in (theirs, exact))
    for name, *results in zip(("output", "weights"), outputs, plain, true, strict=True):
        assert_as_accurate(*results, 2, name)

    # what comes back from a NaN is one
    d_outputs = [(torch.randint(-8, 9, x.shape) / 8).masked_fill(x.isnan(), torch.nan) for x in true]
    needs = [x.requires_grad for x in exact]
    gradients = additive_attention_backward.additive_attention_backward(
        [d.to(dtype) for d in d_outputs], outputs[0], lse, needs, *tensors, drawn, lengths, empty_rows
    )
    assert [g.numel() > 0 for g in gradients] == needs
    given = [g for g, need in zip(gradients, needs, strict=True) if need]
    wanted = (
        torch.autograd.grad(out, [x for x in leaf if x.requires_grad], [d.to(out[0].dtype) for d in d_outputs])
        for out, leaf in ((plain, theirs), (true, exact))
    )
    for k, results in enumerate(zip(given, *wanted, strict=True)):
        assert_as_accurate(*results, 3, f"gradient {k}")
