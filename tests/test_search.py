"""The search operators, held against the oracle, against brute force and against themselves."""

import itertools

import pytest
import torch
from search_cases import OPS, Case
from torch.library import opcheck

from seq2seq_fast.reference_search import SCORES, penalty

pytestmark = pytest.mark.needs_extension

RECURRENT = ("gru", "lstm", "rnn_tanh", "rnn_relu")
NAMES = ("tokens", "lengths", "scores", "alphas")


def assert_equal(ours, oracle):
    """Integers equal, numbers to 1e-12 of their size."""
    assert len(ours) == len(oracle)
    for name, x, y in zip(NAMES, ours, oracle, strict=False):
        assert x.shape == y.shape and x.dtype == y.dtype, name
        if x.dtype == torch.int64:
            assert torch.equal(x, y), name
        else:
            torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}")


def assert_searches(case: Case, **choice):
    """Ours equals the oracle in float64, and in float32 finds the same with at most twice torch's error."""
    rest = case.choice(**choice)
    exact = OPS.search_composite(*case.arguments(), *rest)
    assert_equal(OPS.search(*case.arguments(), *rest), exact)
    ours, theirs = (op(*case.arguments(torch.float32), *rest) for op in (OPS.search, OPS.search_composite))
    for k, name in enumerate(NAMES[: len(exact)]):
        if k < 2:
            assert torch.equal(ours[k], exact[k]), name
            continue
        assert ours[k].dtype == torch.float32
        error, allowed = ((x[k].double() - exact[k]).abs().max().item() for x in (ours, theirs))
        size = exact[k].abs().max().item()
        assert error <= 2 * allowed + 16 * torch.finfo(torch.float32).eps * size, f"{name}: {error}, torch's {allowed}"
    return exact


@pytest.mark.parametrize("beams", (1, 4))
@pytest.mark.parametrize("bias", (True, False))
@pytest.mark.parametrize("layers", (1, 2, 3))
@pytest.mark.parametrize("cell", RECURRENT)
def test_cells(cell, layers, bias, beams):
    tokens, *_ = assert_searches(Case(cell, layers=layers, bias=bias, context=3), beams=beams, length_penalty=0.6)
    assert tokens.unique().numel() > 1


@pytest.mark.parametrize("score", (None, "dot"))
def test_forced_tokens(score):
    """Of no rows, of some and of all at a step; an end that is forced is one."""
    case = Case("gru", rows=40, vocabulary=7, score=score)
    forced = torch.randint(7, (9, 40))
    forced[:, 20:][torch.rand(9, 20) < 0.5] = -1
    forced[3] = -1
    tokens, lengths, _ = assert_searches(case, forced=forced)
    runs = torch.arange(9)[:, None] < lengths.view(-1)
    assert torch.equal(tokens[:, 0].T[runs & (forced >= 0)], forced[runs & (forced >= 0)])
    assert_searches(case, forced=torch.where(forced < 0, 0, forced), eos=None)
    assert_searches(case, forced=torch.full_like(forced, -1))


@pytest.mark.parametrize("beams", (1, 5))
@pytest.mark.parametrize("ragged", (False, True))
@pytest.mark.parametrize("width", (None, 5))
@pytest.mark.parametrize("score", SCORES)
def test_scores(score, width, ragged, beams):
    assert_searches(Case("lstm", score=score, width=width, ragged=ragged, keys=19), beams=beams)


@pytest.mark.parametrize("empty_rows", ("zeros", "uniform"))
def test_empty_rows(empty_rows):
    case = Case(score="dot")
    case.memory = case.memory._replace(lengths=torch.tensor([0, 3, 6]), empty_rows=empty_rows)
    assert_searches(case, beams=2)


def test_padding_is_not_read():
    case = Case(score="gaussian", ragged=True)
    exact = OPS.search(*case.arguments(), *case.choice(beams=3))
    for row, length in enumerate(case.memory.lengths):
        case.memory.keys[row, length:] = case.memory.values[row, length:] = torch.nan
    assert_equal(OPS.search(*case.arguments(), *case.choice(beams=3)), exact)


@pytest.mark.parametrize("hidden", (1, 63, 257))
@pytest.mark.parametrize("rows", (1, 63))
@pytest.mark.parametrize("beams", (1, 3))
def test_sizes(hidden, rows, beams):
    case = Case(hidden=hidden, rows=rows, layers=2, score="scaled_dot", width=33, value_width=48, keys=5, ragged=True)
    assert_searches(case, beams=beams, max_steps=6)


@pytest.mark.parametrize("vocabulary", (2, 17, 300))
def test_vocabularies(vocabulary):
    """A table of the vocabulary's first products, packed or not, and none where the steps multiply less."""
    for rows in (1, 40):
        case = Case("gru", vocabulary=vocabulary, rows=rows, context=2, hidden=20)
        assert_searches(case, beams=2, max_steps=12)


def test_one_key():
    assert_searches(Case(score="additive", keys=1, ragged=True), beams=3)


def test_no_end():
    tokens, lengths, _ = assert_searches(Case(), eos=None, max_steps=5, beams=2)
    assert (lengths == 5).all() and (tokens >= 0).all()


def test_many_steps_pack_the_weights_on_the_way():
    assert_searches(Case("lstm", rows=1, score="dot"), eos=None, max_steps=60)


@pytest.mark.parametrize("beams", (1, 3))
def test_end_at_once(beams):
    case = Case()
    case.decoder.bias_out[4] = 1e6
    tokens, lengths, scores = assert_searches(case, eos=4, beams=beams)
    assert torch.equal(tokens[:, 0], torch.tensor([[4] + [-7] * 8] * 3)) and (lengths[:, 0] == 1).all()
    assert (scores[:, 0] == 0).all()


def test_ends_early():
    """Rows that end at different steps, all before the last one, are padded."""
    case = Case(rows=20, vocabulary=5, score="dot")
    case.decoder.bias_out[2] += 2
    tokens, lengths, _, alphas = assert_searches(case, eos=2, max_steps=40)
    assert lengths.min() < lengths.max() < 40
    for row, length in enumerate(lengths[:, 0]):
        assert tokens[row, 0, length - 1] == 2 and 2 not in tokens[row, 0, : length - 1]
        assert (tokens[row, 0, length:] == -7).all()
        assert (alphas[row, 0, length:] == 0).all() and (alphas[row, 0, :length].sum(-1) - 1).abs().max() < 1e-12


def test_one_beam_is_greedy_search():
    """A loop over the decoder's logits, one prefix at a time, finds what greedy search finds."""
    case = Case("lstm", layers=2, score="general", width=9, context=2)
    tokens, lengths, scores, _ = OPS.search(*case.arguments(), *case.choice(eos=3))
    for row, length in enumerate(lengths[:, 0].tolist()):
        prefix = tokens[row, 0, :length].tolist()
        log_probs = torch.stack([continuation(case, row, prefix[:t]) for t in range(length)])
        assert log_probs.argmax(-1).tolist() == prefix
        torch.testing.assert_close(log_probs.amax(-1).sum(), scores[row, 0], rtol=1e-12, atol=1e-12)


def continuation(case, row, prefix):
    """The log-probabilities of what follows `prefix` in `row`, from torch.nn's modules."""
    decoder, memory = case.decoder, case.memory
    hx = tuple(s[:, row : row + 1] for s in case.hx)
    layers = len(decoder.weights) // 4
    inputs = decoder.embedding[torch.tensor([case.start[row], *prefix])]
    inputs = torch.cat([inputs, case.context[row].expand(len(inputs), -1)], -1)
    lstm = torch.nn.LSTM(inputs.size(-1), hx[0].size(-1), layers, dtype=torch.float64)
    with torch.no_grad():
        for own, given in zip(lstm._flat_weights, decoder.weights, strict=True):
            own.copy_(given)
        query = lstm(inputs.unsqueeze(1), hx)[0][-1, 0]
    q = memory.weight_query @ query + memory.bias_query
    vector = (memory.keys[row] @ q).softmax(0) @ memory.values[row]
    return (decoder.weight_out @ torch.cat([vector, query]) + decoder.bias_out).log_softmax(0)


@pytest.mark.parametrize("length_penalty", (0.0, 1.0))
@pytest.mark.parametrize("vocabulary", (2, 3, 5))
def test_as_many_beams_as_tokens_find_the_best_of_all_pairs(vocabulary, length_penalty):
    case = Case("lstm", layers=2, score="general", width=9, context=2, vocabulary=vocabulary)
    rest = case.choice(max_steps=2, eos=1, pad=-1, beams=vocabulary, length_penalty=length_penalty)
    tokens, lengths, scores, _ = OPS.search(*case.arguments(), *rest)
    for row in range(3):
        all = {}
        first = continuation(case, row, [])
        for one, two in itertools.product(range(vocabulary), repeat=2):
            if one == 1:
                all[1, -1] = first[1].item() / penalty(1, length_penalty)
            else:
                total = first[one] + continuation(case, row, [one])[two]
                all[one, two] = total.item() / penalty(2, length_penalty)
        best = sorted(all, key=all.get, reverse=True)[:vocabulary]
        assert [tuple(t) for t in tokens[row].tolist()] == best
        assert lengths[row].tolist() == [1 if pair == (1, -1) else 2 for pair in best]
        torch.testing.assert_close(scores[row].tolist(), [all[pair] for pair in best], rtol=1e-12, atol=1e-12)


def test_equal_logits_take_the_lower_token_first():
    case = Case(vocabulary=6)
    case.decoder.weight_out.zero_()
    case.decoder.bias_out.fill_(0.5)
    for beams, expected in ((1, [[5, 5]]), (4, [[0, 0], [0, 1], [0, 2], [0, 3]])):
        # a higher logit of the last token for one beam: otherwise a search that always takes token 0 would pass
        case.decoder.bias_out[5] = 1.0 if beams == 1 else 0.5
        for op in (OPS.search, OPS.search_composite):
            tokens = op(*case.arguments(), *case.choice(max_steps=2, eos=None, beams=beams))[0]
            assert tokens.tolist() == [expected] * 3


@pytest.mark.parametrize(
    "filters",
    (
        {},
        {"temperature": 0.3},
        {"temperature": 5.0, "top_k": 3},
        {"top_p": 0.7},
        {"top_p": 1e-9},
        {"top_k": 1},
        {"temperature": 3.0, "top_k": 6, "top_p": 0.5},
    ),
    ids=str,
)
def test_sampling(filters):
    case = Case(rows=50, vocabulary=9, score="dot")
    uniforms = torch.rand(9, 50, dtype=torch.float64)
    uniforms[0, :2] = torch.tensor([0, 1 - 2**-53], dtype=torch.float64)
    tokens, *_ = assert_searches(case, uniforms=uniforms, **filters)
    greedy, *_ = OPS.search(*case.arguments(), *case.choice())
    assert torch.equal(tokens, greedy) == (filters in ({"top_k": 1}, {"top_p": 1e-9}))


def test_samples_have_the_probabilities_of_the_logits():
    case = Case(rows=4000, vocabulary=4, hidden=2)
    case.decoder.weight_out.zero_()
    case.decoder.bias_out.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]).log())
    uniforms = torch.rand(1, 4000, dtype=torch.float64)
    tokens = OPS.search(*case.arguments(), *case.choice(1, eos=None, uniforms=uniforms))[0]
    shares = tokens.flatten().bincount(minlength=4) / 4000
    # five standard deviations
    assert (shares - torch.tensor([0.1, 0.2, 0.3, 0.4])).abs().max() < 5 * (0.25 / 4000) ** 0.5
    kept = OPS.search(*case.arguments(), *case.choice(1, eos=None, uniforms=uniforms, top_p=0.65))[0]
    assert kept.unique().tolist() == [2, 3]


@pytest.mark.parametrize("cell", RECURRENT)
@pytest.mark.parametrize("score", (None, "dot", "epanechnikov"))
def test_feedback(cell, score):
    for rows, width in ((1, 2), (16, 2), (40, 19)):
        case = Case(cell, fed_back=True, rows=rows, vocabulary=width, context=3, layers=2, score=score, ragged=True)
        rest = (7, score is not None)
        exact = OPS.feedback_composite(*case.arguments(), *rest)
        for ours, oracle in zip(OPS.feedback(*case.arguments(), *rest), exact, strict=True):
            torch.testing.assert_close(ours, oracle, rtol=1e-12, atol=1e-12)
        ours, theirs = (op(*case.arguments(torch.float32), *rest) for op in (OPS.feedback, OPS.feedback_composite))
        for x, y, z in zip(ours, theirs, exact, strict=True):
            error, allowed = (x.double() - z).abs().max(), (y.double() - z).abs().max()
            assert error <= 2 * allowed + 16 * torch.finfo(torch.float32).eps * z.abs().max()


@pytest.mark.parametrize("rows", (1, 5, 40))
@pytest.mark.parametrize("beams", (1, 5))
def test_two_threads_find_what_one_finds(rows, beams):
    case = Case("gru", layers=2, hidden=160, rows=rows, vocabulary=50, score="dot", ragged=True)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(OPS.search(*case.arguments(), *case.choice(30, beams=beams)))
    finally:
        torch.set_num_threads(threads)
    assert_equal(*found)


def test_opcheck():
    case = Case("lstm", score="dot", ragged=True)
    opcheck(OPS.search.default, (*case.arguments(), *case.choice(beams=2)))
    opcheck(OPS.search_composite.default, (*case.arguments(), *case.choice(beams=2)))
    case = Case("gru", fed_back=True, score="dot")
    opcheck(OPS.feedback.default, (*case.arguments(), 4, True))
