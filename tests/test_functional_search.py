"""functional.greedy_search, beam_search, sample and feedback: what they return, and what they refuse."""

import pytest
import torch
from search_cases import OPS, Case
from torch.testing import assert_close

from seq2seq_fast.functional import beam_search, feedback, greedy_search, sample


def run(search, case, *args, **kwargs):
    return search(case.decoder, case.start, case.hx, *args, context=case.context, memory=case.memory, **kwargs)


def case_of(dtype=torch.float64, **kwargs):
    case = Case("lstm", layers=2, context=3, score="additive", width=4, ragged=True, **kwargs)

    def cast(x):
        if isinstance(x, list | tuple):
            cast_items = [cast(y) for y in x]
            return type(x)(*cast_items) if hasattr(x, "_fields") else type(x)(cast_items)
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    for name in ("decoder", "hx", "context", "memory"):
        setattr(case, name, cast(getattr(case, name)))
    return case


def test_each_is_its_operator():
    case = case_of()
    arguments = case.arguments()
    for found, choice in (
        (run(greedy_search, case, 6, eos=2, pad=-1, return_alphas=True), {}),
        (run(beam_search, case, 6, 1, eos=2, pad=-1, return_alphas=True), {}),
        (run(beam_search, case, 6, 3, eos=2, pad=-1, return_alphas=True), {"beams": 3}),
        (
            run(beam_search, case, 6, 4, eos=2, pad=-1, length_penalty=0.8, return_alphas=True),
            {"beams": 4, "length_penalty": 0.8},
        ),
    ):
        expected = OPS.search_composite(*arguments, *case.choice(6, eos=2, pad=-1, **choice))
        for name, got, wanted in zip(found._fields, found, expected, strict=True):
            assert_close(got, wanted.view_as(got), rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def test_shapes():
    case = case_of()
    one, many = run(greedy_search, case, 6), run(beam_search, case, 6, 4, return_alphas=True)
    assert [tuple(x.shape) for x in one[:3]] == [(3, 6), (3,), (3,)] and one.alphas is None
    assert [tuple(x.shape) for x in many] == [(3, 4, 6), (3, 4), (3, 4), (3, 4, 6, 6)]
    assert torch.equal(many.scores, many.scores.sort(descending=True).values)


def test_one_start_for_all_rows():
    case = case_of()
    many = greedy_search(case.decoder, torch.full((3,), 4), case.hx, 6, context=case.context, memory=case.memory)
    one = greedy_search(case.decoder, 4, case.hx, 6, context=case.context, memory=case.memory)
    assert torch.equal(one.tokens, many.tokens) and torch.equal(one.scores, many.scores)


def test_rows_do_not_know_each_other():
    case = case_of()
    together = run(beam_search, case, 8, 3, eos=0, return_alphas=True)
    memory = case.memory
    for row in range(3):
        only = slice(row, row + 1)
        rows = (x[only] for x in (memory.keys, memory.values))
        alone = beam_search(
            case.decoder,
            case.start[only],
            tuple(s[:, only] for s in case.hx),
            8,
            3,
            eos=0,
            context=case.context[only],
            memory=memory._replace(
                **dict(zip(("keys", "values"), rows, strict=True)), lengths=memory.lengths[only], mask=memory.mask[only]
            ),
            return_alphas=True,
        )
        for got, wanted in zip(alone, together, strict=True):
            assert_close(got, wanted[only], rtol=1e-12, atol=1e-12)


def test_manual_seed_fixes_the_sample():
    case = case_of()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(run(sample, case, 20, temperature=4.0).tokens)
    torch.manual_seed(3)
    generator = torch.Generator().manual_seed(1)
    found.append(run(sample, case, 20, temperature=4.0, generator=generator).tokens)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[3])
    assert not torch.equal(found[0], found[2])


def test_no_gradient():
    case = case_of()
    case.decoder.weight_out.requires_grad_()
    found = run(greedy_search, case, 4, return_alphas=True)
    assert not found.scores.requires_grad and not found.alphas.requires_grad


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_lesser_dtypes_run_the_reference(dtype):
    case = case_of(dtype)
    found = run(beam_search, case, 4, 2, return_alphas=True)
    assert found.scores.dtype == found.alphas.dtype == dtype
    expected = OPS.search_composite(*case.arguments(dtype), *case.choice(4, eos=None, pad=0, beams=2))
    assert torch.equal(found.tokens, expected[0])


def test_feedback_is_its_operator():
    case = Case(fed_back=True, vocabulary=2, score="dot", context=2)
    outputs, alphas = run(feedback, case, 5, return_alphas=True)
    expected = OPS.feedback_composite(*case.arguments(), 5, True)
    assert_close([outputs, alphas], expected, rtol=1e-12, atol=1e-12)
    assert run(feedback, case, 5)[1] is None


def swap(container, **values):
    return container._replace(**values)


CHOICES = [
    (greedy_search, (0,), {}, ValueError, "max_steps"),
    (greedy_search, (5,), {"eos": 11}, ValueError, "eos"),
    (greedy_search, (5,), {"eos": -1}, ValueError, "eos"),
    (beam_search, (5, 0), {}, ValueError, "beams"),
    (beam_search, (5, 12), {}, ValueError, "beams: expected 1 to 11"),
    (beam_search, (5, 2), {"length_penalty": -0.1}, ValueError, "length_penalty"),
    (greedy_search, (2,), {"forced": torch.full((3, 2), 11)}, ValueError, "forced: expected tokens below 11, got 11"),
    (greedy_search, (2,), {"forced": torch.zeros(2, 3).long()}, RuntimeError, r"forced: expected int64 \(3, 2\)"),
    (greedy_search, (2,), {"forced": torch.zeros(3, 2)}, RuntimeError, "forced: expected int64"),
    (
        greedy_search, (2,), {"forced": torch.zeros(3, 2).long(), "return_alphas": True}, ValueError,
        "forced: expected None where return_alphas",
    ),
    (sample, (5,), {"temperature": 0.0}, ValueError, "temperature"),
    (sample, (5,), {"temperature": -1.0}, ValueError, "temperature"),
    (sample, (5,), {"top_k": 12}, ValueError, "top_k"),
    (sample, (5,), {"top_k": -1}, ValueError, "top_k"),
    (sample, (5,), {"top_p": 0.0}, ValueError, "top_p"),
    (sample, (5,), {"top_p": 1.1}, ValueError, "top_p"),
]  # fmt: skip


@pytest.mark.parametrize(("search", "args", "kwargs", "error", "words"), CHOICES)
def test_refuses_a_choice(search, args, kwargs, error, words):
    with pytest.raises(error, match=words):
        run(search, case_of(), *args, **kwargs)


SMALL = torch.randn(2, 2, dtype=torch.float64)
TENSORS = [
    ("start", lambda c: torch.tensor([0, 11, 1]), ValueError, "start: expected tokens from 0 to 10, got 11"),
    ("start", lambda c: torch.tensor([0, -1, 1]), ValueError, "start: expected tokens from 0 to 10, got -1"),
    ("start", lambda c: 11, ValueError, "start: expected a token from 0 to 10"),
    ("start", lambda c: torch.zeros(2, dtype=torch.int64), RuntimeError, "start"),
    ("start", lambda c: torch.zeros(3), RuntimeError, "start: expected int64"),
    ("hx", lambda c: c.hx[0], TypeError, "hx: expected"),
    ("hx", lambda c: (c.hx[0], c.hx[1][:, :2]), RuntimeError, "c_0"),
    ("hx", lambda c: (c.hx[0][0], c.hx[1][0]), RuntimeError, "h_0"),
    ("context", lambda c: c.context[:2], RuntimeError, "context"),
    ("context", lambda c: c.context.float(), RuntimeError, "context: .*float64"),
    ("context", lambda c: None, RuntimeError, "weight_ih_l0"),
    ("decoder", lambda c: swap(c.decoder, cell="lru"), ValueError, "cell"),
    ("decoder", lambda c: swap(c.decoder, weights=c.decoder.weights[:-1]), RuntimeError, "weights"),
    ("decoder", lambda c: swap(c.decoder, weights=[*c.decoder.weights[:-1], SMALL]), RuntimeError, "bias_hh_l1"),
    ("decoder", lambda c: swap(c.decoder, weight_out=c.decoder.weight_out[:, :8]), RuntimeError, "weight_out"),
    ("decoder", lambda c: swap(c.decoder, bias_out=c.decoder.bias_out[:8]), RuntimeError, "bias_out"),
    ("decoder", lambda c: swap(c.decoder, embedding=c.decoder.embedding[:8]), RuntimeError, "embedding"),
    ("decoder", lambda c: swap(c.decoder, embedding=None), ValueError, "embedding"),
    ("memory", lambda c: swap(c.memory, keys=c.memory.keys[:2]), RuntimeError, "keys"),
    ("memory", lambda c: swap(c.memory, keys=c.memory.keys[:, :0]), RuntimeError, "keys"),
    ("memory", lambda c: swap(c.memory, values=c.memory.values[:, :2]), RuntimeError, "values"),
    ("memory", lambda c: swap(c.memory, lengths=torch.tensor([1, 2])), RuntimeError, "lengths"),
    ("memory", lambda c: swap(c.memory, lengths=torch.tensor([1, 2, 7])), RuntimeError, "lengths"),
    ("memory", lambda c: swap(c.memory, mask=c.memory.mask[:, :3]), RuntimeError, "mask"),
    ("memory", lambda c: swap(c.memory, mask=c.memory.mask.long()), RuntimeError, "mask"),
    ("memory", lambda c: swap(c.memory, score="cosine"), ValueError, "score"),
    ("memory", lambda c: swap(c.memory, score_weight=None), ValueError, "score_weight"),
    ("memory", lambda c: swap(c.memory, weight_query=SMALL), RuntimeError, "weight_query"),
    ("memory", lambda c: swap(c.memory, weight_query=None, bias_query=None), RuntimeError, "keys"),
    ("memory", lambda c: swap(c.memory, empty_rows="skip"), ValueError, "empty_rows"),
]


@pytest.mark.parametrize(("name", "change", "error", "words"), TENSORS)
def test_refuses_a_tensor(name, change, error, words):
    case = case_of()
    run(greedy_search, case, 2)
    setattr(case, name, change(case))
    with pytest.raises(error, match=words):
        run(greedy_search, case, 2)


def test_refuses_alphas_without_attention():
    with pytest.raises(ValueError, match="return_alphas"):
        run(greedy_search, Case(), 2, return_alphas=True)


def test_feedback_refuses():
    case = Case(fed_back=True, vocabulary=2)
    for start in (case.start[:2], case.start.float(), case.start[:, :1]):
        with pytest.raises(RuntimeError, match="start"):
            feedback(case.decoder, start, case.hx, 3)
    with pytest.raises(ValueError, match="steps"):
        run(feedback, case, 0)
    with pytest.raises(ValueError, match="embedding"):
        run(feedback, Case(), 3)


@pytest.mark.needs_extension
def test_the_operator_itself_refuses_what_it_would_read_past():
    """Called without functional, it checks the sizes again, since they are what its pointers rest on."""
    case = case_of()
    for place in range(len(case.arguments())):
        arguments = list(case.arguments())
        if isinstance(arguments[place], torch.Tensor):
            arguments[place] = arguments[place][..., :1]
            with pytest.raises((RuntimeError, ValueError)):
                OPS.search(*arguments, *case.choice())
    arguments = list(case.arguments())
    arguments[0] = torch.tensor([0, 11, 0])
    with pytest.raises(ValueError, match="start"):
        OPS.search(*arguments, *case.choice())
    for choice in ({"beams": 12}, {"max_steps": 0}, {"eos": 11}):
        with pytest.raises(ValueError, match=next(iter(choice))):
            OPS.search(*case.arguments(), *case.choice(**choice))
