"""The attention operators on the CPU, held against the oracle in float64 and against themselves."""

import pytest
import torch
from torch.library import opcheck

from seq2seq_fast import attention_ops, reference_attention  # noqa: F401  (attention_ops defines the operators)

OPS = torch.ops.seq2seq_fast

pytestmark = pytest.mark.needs_extension

# batch, heads, key heads, queries, keys, width, value width
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 4, 2, 1, 63, 40, 40),
    (2, 3, 3, 5, 257, 16, 48),
    (1, 2, 1, 113, 203, 59, 59),
    (3, 2, 2, 63, 17, 111, 5),
    (2, 2, 2, 257, 113, 128, 128),
    (1, 1, 1, 20, 1023, 32, 256),
]
DROPOUTS = (0.0, 0.17, 1.0)


def draw(shape, dtype=torch.float64, masks="", ragged=False):
    """query, key, value, masks, lengths; `masks` spells their kinds: b(ool), f(loat), B and F broadcast."""
    batch, heads, kv_heads, queries, keys, width, value_width = shape
    query = torch.randn(batch, queries, heads, width, dtype=dtype).transpose(1, 2)
    key = torch.randn(batch, kv_heads, keys, width, dtype=dtype)
    value = torch.randn(batch, keys, kv_heads, value_width, dtype=dtype).transpose(1, 2)
    drawn = []
    for kind in masks:
        full = (batch, heads, queries, keys) if kind.islower() else (batch, 1, 1, keys) if kind == "B" else (queries, 1)
        full = (1,) * (4 - len(full)) + full
        numbers = torch.randn(full, dtype=dtype)
        drawn.append(numbers > -0.5 if kind in "bB" else numbers.masked_fill(torch.rand(full) < 0.1, -torch.inf))
    lengths = torch.randint(0, keys + 1, (batch,)) if ragged else None
    return query, key, value, drawn, lengths


def seed_for(dropout):
    return torch.randint(-(2**62), 2**62, (1,)) if dropout else None


def leaves(tensors, dtype=None):
    return [x.detach().to(dtype or x.dtype).requires_grad_() if x.is_floating_point() else x for x in tensors]


def assert_as_accurate(ours, theirs, exact, times, what):
    """At most `times` the error of plain torch operations in the same dtype, and some roundings; float64 1e-12."""
    ours, theirs, exact = (x.detach().double() for x in (ours, theirs, exact))
    assert torch.equal(ours.isnan(), exact.isnan()), what
    if not exact.numel():
        return
    size = max(1.0, exact.nan_to_num().abs().max().item())
    error, allowed = ((x - exact).nan_to_num().abs().max().item() for x in (ours, theirs))
    floor = 1e-12 * size if what.startswith("torch.float64") else 8 * torch.finfo(torch.float32).eps * size
    assert error <= times * allowed + floor, f"{what}: error {error:.1e}, torch's {allowed:.1e}"


@pytest.mark.parametrize("dropout", DROPOUTS)
@pytest.mark.parametrize("weights", reference_attention.WEIGHTS)
@pytest.mark.parametrize("empty_rows", reference_attention.EMPTY_ROWS)
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(("masks", "ragged"), [("", False), ("b", True), ("fB", False), ("FB", True)])
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
def test_forward_and_gradients(dropout, weights, empty_rows, causal, masks, ragged, dtype):
    torch.manual_seed(0)
    for shape in SHAPES:
        query, key, value, drawn, lengths = draw(shape, dtype, masks, ragged)
        rest = (lengths, seed_for(dropout), causal, dropout, shape[5] ** -0.5, weights, empty_rows)
        given = [query, key, value, *drawn]
        ours, theirs, exact = leaves(given), leaves(given), leaves(given, torch.float64)
        if ragged and empty_rows != "uniform":
            with torch.no_grad():  # what lies after a row's end is not read
                for row, length in enumerate(lengths):
                    ours[1][row, :, length:] = ours[2][row, :, length:] = torch.nan
        outputs = OPS.attention(*ours[:3], ours[3:], *rest)
        plain, true = (OPS.attention_composite(*x[:3], x[3:], *rest) for x in (theirs, exact))
        for k, results in enumerate(zip(outputs, plain, true, strict=True)):
            assert results[0].dtype == dtype
            assert_as_accurate(*results, 2, f"{dtype} {shape} output {k}")
        if empty_rows == "nan":
            continue
        d_outputs = [torch.randn_like(x) for x in outputs]
        gradients = [
            torch.autograd.grad(results, [x for x in inputs if x.requires_grad], [d.to(results[0]) for d in d_outputs])
            for results, inputs in ((outputs, ours), (plain, theirs), (true, exact))
        ]
        for k, results in enumerate(zip(*gradients, strict=True)):
            assert_as_accurate(*results, 3, f"{dtype} {shape} gradient {k}")


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_half_precision_rounds_once(dtype):
    """Computed in float32: the result is the exact one, rounded, give or take a neighbour."""
    query, key, value, masks, lengths = draw(SHAPES[3], dtype, "fB", True)
    rest = (lengths, None, True, 0.0, 0.1, "heads", "zeros")
    ours = OPS.attention(query, key, value, masks, *rest)
    wide = [x.double() if x.is_floating_point() else x for x in masks]
    exact = OPS.attention_composite(query.double(), key.double(), value.double(), wide, *rest)
    for mine, true in zip(ours, exact, strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - true).abs().max() <= torch.finfo(dtype).eps * true.abs().max()


@pytest.mark.sanitize
def test_dropout_keeps_what_the_reference_keeps():
    query, key, value, _, _ = draw((2, 3, 3, 33, 130, 8, 8))
    seed = torch.tensor([-(2**61) - 12345])
    _, weights = OPS.attention(query, key, value, [], None, seed, False, 0.3, 1.0, "heads", "zeros")
    assert torch.equal(weights != 0, reference_attention.dropout_keep(seed, 0.3, weights.shape))


@pytest.mark.sanitize
@pytest.mark.parametrize("shape", SHAPES[1:4])
@pytest.mark.parametrize("masks", ("", "f", "FB"))
def test_additive_attention(shape, masks, dtype=torch.float64):
    batch, _, _, queries, keys, width, value_width = shape
    _, _, _, drawn, lengths = draw((batch, 1, 1, *shape[3:]), dtype, masks, True)
    tensors = [torch.randn(s, dtype=dtype) for s in ((batch, queries, width), (batch, keys, width), (width,))]
    tensors += [torch.randn(batch, keys, value_width, dtype=dtype), *(mask.squeeze(1) for mask in drawn)]
    for empty_rows in ("zeros", "uniform"):
        ours, exact = leaves(tensors), leaves(tensors)
        outputs = OPS.additive_attention(*ours[:4], ours[4:], lengths, empty_rows)
        expected = OPS.additive_attention_composite(*exact[:4], exact[4:], lengths, empty_rows)
        d_outputs = [torch.randn_like(x) for x in outputs]
        mine = torch.autograd.grad(outputs, [x for x in ours if x.requires_grad], d_outputs)
        true = torch.autograd.grad(expected, [x for x in exact if x.requires_grad], d_outputs)
        for k, (a, b) in enumerate(zip([*outputs, *mine], [*expected, *true], strict=True)):
            assert_as_accurate(a, b, b, 1, f"{dtype} {empty_rows} {k}")


@pytest.mark.sanitize
@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)])
@pytest.mark.parametrize("empty_rows", reference_attention.EMPTY_ROWS)
def test_nothing_to_do(sizes, empty_rows):
    batch, heads, queries, keys = sizes
    query = torch.randn(batch, heads, queries, 8, requires_grad=True)
    key, value = (torch.randn(batch, max(heads, 1), keys, 8, requires_grad=True) for _ in range(2))
    rest = (None, None, False, 0.0, 1.0, "heads", empty_rows)
    outputs = OPS.attention(query, key, value, [], *rest)
    expected = OPS.attention_composite(query, key, value, [], *rest)
    for mine, true in zip(outputs, expected, strict=True):
        assert torch.equal(mine.isnan(), true.isnan()) and torch.equal(mine.nan_to_num(), true.nan_to_num())
    for gradient in torch.autograd.grad(outputs[0].sum(), (query, key, value)):
        assert not gradient.any()


@pytest.mark.sanitize
def test_same_bits_every_time_and_for_any_threads():
    query, key, value, masks, lengths = draw((3, 4, 2, 65, 130, 32, 32), torch.float32, "bf", True)
    inputs = leaves([query, key, value, *masks])
    seed = seed_for(0.2)

    def run():
        outputs = OPS.attention(*inputs[:3], inputs[3:], lengths, seed, True, 0.2, 0.2, "average", "zeros")
        wanted = [x for x in inputs[:3]]
        return [*outputs, *torch.autograd.grad([x.square().sum() for x in outputs], wanted)]

    threads = torch.get_num_threads()
    first = run()
    try:
        for count in (threads, 1, 2, 3):
            torch.set_num_threads(count)
            assert all(torch.equal(a, b) for a, b in zip(first, run(), strict=True))
    finally:
        torch.set_num_threads(threads)


def small(**kinds):
    query, key, value, masks, lengths = draw((2, 2, 1, 3, 5, 4, 3), torch.float64, **kinds)
    return leaves([query, key, value, *masks]), lengths


@pytest.mark.parametrize("weights", reference_attention.WEIGHTS)
def test_gradcheck_and_gradgradcheck(weights):
    inputs, lengths = small(masks="bf", ragged=True)
    inputs[4] = torch.randn_like(inputs[4]).requires_grad_()  # -inf has no finite difference
    seed = torch.tensor([7])

    def run(query, key, value, number_mask):
        masks = [inputs[3], number_mask]
        return tuple(OPS.attention(query, key, value, masks, lengths, seed, True, 0.3, 0.7, weights, "zeros"))

    wanted = (*inputs[:3], inputs[4])
    assert torch.autograd.gradcheck(run, wanted)
    assert torch.autograd.gradgradcheck(run, wanted)
    assert torch.autograd.gradcheck(run, wanted, check_forward_ad=True, check_backward_ad=False)


# the weights have nothing of the values
@pytest.mark.parametrize("weights", reference_attention.WEIGHTS)
@pytest.mark.parametrize("wanted", (0, 1, 2), ids=("query", "key", "value"))
def test_further_derivatives_of_one_argument(weights, wanted):
    inputs, lengths = small(ragged=True)
    arguments = [x.detach() for x in inputs]

    def run(x):
        given = [*arguments[:wanted], x, *arguments[wanted + 1 :]]
        return tuple(OPS.attention(*given, [], lengths, None, False, 0.0, 0.7, weights, "zeros"))

    assert torch.autograd.gradcheck(run, inputs[wanted], check_batched_grad=True)
    assert torch.autograd.gradgradcheck(run, inputs[wanted])


def test_operators_pass_opcheck():
    inputs, lengths = small(masks="bf", ragged=True)
    rest = (lengths, torch.tensor([7]), True, 0.3, 0.7, "average", "zeros")
    opcheck(OPS.attention.default, (*inputs[:3], inputs[3:], *rest))
    detached = [x.detach() for x in inputs]
    *outputs, lse = OPS.attention_train(*detached[:3], detached[3:], *rest)
    opcheck(OPS.attention_train.default, (*detached[:3], detached[3:], *rest))
    needs = [True, False, True, False, True]
    opcheck(OPS.attention_backward.default, (outputs, outputs[0], lse, needs, *detached[:3], detached[3:], *rest))
    additive = [
        torch.randn(s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (2, 5, 4), (4,), (2, 5, 3))
    ]
    opcheck(OPS.additive_attention.default, (*additive, [], lengths, "uniform"))


def test_compile_and_per_sample_gradients():
    inputs, _ = small()

    def run(query, key, value):
        return OPS.attention(query, key, value, [], None, None, True, 0.0, 0.7, "heads", "zeros")[0].square().sum()

    expected = torch.autograd.grad(run(*inputs), inputs)
    compiled = torch.autograd.grad(torch.compile(run, fullgraph=True, backend="aot_eager")(*inputs), inputs)
    for a, b in zip(compiled, expected, strict=True):
        torch.testing.assert_close(a, b)
    detached = [x.detach() for x in inputs]
    per_sample = torch.func.vmap(torch.func.grad(lambda *x: run(*(y.unsqueeze(0) for y in x)), (0, 1, 2)))(*detached)
    for a, b in zip(per_sample, expected, strict=True):
        torch.testing.assert_close(a, b)


BAD = {
    "query: expected 4 dimensions": lambda a: a.update(query=a["query"][0]),
    "key: expected a batch": lambda a: a.update(key=a["key"][..., :3]),
    "value: expected": lambda a: a.update(value=a["value"][:, :, :2]),
    "key: expected dtype": lambda a: a.update(key=a["key"].float()),
    "query: expected its heads": lambda a: a.update(query=a["query"][:, :1].repeat(1, 3, 1, 1)),
    "masks: expected a shape": lambda a: a.update(masks=[torch.ones(1, 1, 2, 5, dtype=torch.bool)]),
    "masks: expected bool or": lambda a: a.update(masks=[torch.ones(1, 1, 3, 5, dtype=torch.int32)]),
    "masks: expected at most": lambda a: a.update(masks=[torch.ones(1, 1, 1, 1, dtype=torch.bool)] * 3),
    "lengths: expected 0 <= length": lambda a: a.update(lengths=torch.tensor([1, 6])),
    "lengths: expected 2": lambda a: a.update(lengths=torch.tensor([1.0, 2.0])),
    "seed: expected": lambda a: a.update(dropout=0.5),
    "dropout: expected": lambda a: a.update(dropout=1.5),
    "weights: expected": lambda a: a.update(weights="all"),
    "empty_rows: expected": lambda a: a.update(empty_rows="none"),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    query, key, value = (torch.randn(2, 2, n, 4, dtype=torch.float64) for n in (3, 5, 5))
    arguments = dict(query=query, key=key, value=value, masks=[], lengths=None, seed=None, causal=False, dropout=0.0)
    arguments |= dict(scale=1.0, weights="none", empty_rows="zeros")
    BAD[message](arguments)
    with pytest.raises((RuntimeError, ValueError), match=message):
        OPS.attention(**arguments)
