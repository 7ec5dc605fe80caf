"""Encoder-decoders: training equal to the loop in Python, prediction, and bad input."""

import copy

import pytest
import torch
import torch.nn.functional as F
from cases import draw, twin

from seq2seq_fast import nn, seq2seq
from seq2seq_fast.nn.seq2seq_attention import SCORES

CELLS = {"GRU": torch.nn.GRU, "LSTM": torch.nn.LSTM, "RNN": torch.nn.RNN}
BOS, EOS, PAD, VOCABULARY, HIDDEN, WIDTH = 1, 2, 0, 11, 6, 5


def make(
    cell="GRU", *, tokens=True, layers=1, dropout=0.0, bidirectional=False, bridge=None, context=None, score=None,
    heads=1, embedding=True, dtype=torch.float64, **options,
):  # fmt: skip
    """A model of sizes that all differ; `score` None: no attention."""
    torch.manual_seed(0)
    rnn = CELLS[cell]
    states = HIDDEN * (2 if bidirectional else 1)
    encoder_rnn = rnn(WIDTH, HIDDEN, layers, dropout=dropout, bidirectional=bidirectional, batch_first=bool(layers % 2))
    width = WIDTH + (states if context == "last" else 0)
    hidden = states if isinstance(bridge, seq2seq.ConcatDirections) else HIDDEN
    decoder_rnn = rnn(width, hidden, layers, dropout=dropout, batch_first=not layers % 2)
    encoder = seq2seq.Encoder(encoder_rnn, torch.nn.Embedding(VOCABULARY, WIDTH) if tokens else None)
    says = VOCABULARY if tokens else WIDTH
    embed = torch.nn.Embedding(VOCABULARY, WIDTH) if tokens else None
    if score is None:
        decoder = seq2seq.Decoder(decoder_rnn, torch.nn.Linear(hidden, says), embed)
    else:
        attention = nn.Attention(
            hidden, states, proj_values=heads == 1 and score == "dot", query_dim=hidden, score=score, num_heads=heads,
            wide=heads > 1,
        )  # fmt: skip
        read = hidden if heads > 1 or attention.linear_value is not None else states
        decoder = seq2seq.AttentionDecoder(decoder_rnn, attention, torch.nn.Linear(read + hidden, says), embed)
    given = {"bos": BOS, "eos": EOS} if tokens else {}
    return seq2seq.Seq2Seq(encoder, decoder, bridge, context=context, **given | options).to(dtype)


def batch(tokens=True, rows=4, source_steps=5, target_steps=7, dtype=torch.float64):
    if not tokens:
        return draw(rows, source_steps, WIDTH, dtype=dtype), draw(rows, target_steps, WIDTH, dtype=dtype, seed=3)
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randint(3, VOCABULARY, (rows, n), generator=generator) for n in (source_steps, target_steps)
    )
    target[:, -1] = EOS
    return source, target


def plain(model):
    """The same modules with torch.nn's layers, and weights of their own."""
    model = copy.deepcopy(model)
    for half in (model.encoder, model.decoder):
        half.rnn = twin(half.rnn)
    return model


def loop(model, source, target, ratio=1.0, lengths=None):
    """The training loop as people write it: a step of the layer, then a coin."""
    decoder = model.decoder
    x = source if model.encoder.embedding is None else model.encoder.embedding(source)
    encoder_rnn = model.encoder.rnn
    if lengths is None:
        states, hx = encoder_rnn(x if encoder_rnn.batch_first else x.transpose(0, 1))
        states = states if encoder_rnn.batch_first else states.transpose(0, 1)
    else:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, True, False)
        states, hx = encoder_rnn(packed)
        states, _ = torch.nn.utils.rnn.pad_packed_sequence(states, True)
    context = None
    if model.context == "last":
        top = hx[0] if isinstance(hx, tuple) else hx
        context = torch.cat(list(top[-2 if encoder_rnn.bidirectional else -1 :]), -1)
    if model.bridge is not None:
        hx = tuple(model.bridge(h) for h in hx) if isinstance(hx, tuple) else model.bridge(hx)
    if isinstance(decoder, seq2seq.AttentionDecoder):
        decoder.attend(states, lengths=lengths)
    tokens = isinstance(decoder.embedding, torch.nn.Embedding)
    said = torch.full((len(source),), BOS) if tokens else source[:, -1]
    outputs, alphas = [], []
    for step in range(target.size(1)):
        x = said if decoder.embedding is None else decoder.embedding(said)
        if context is not None:
            x = torch.cat([x, context], -1)
        query, hx = decoder.rnn(x.unsqueeze(1 if decoder.rnn.batch_first else 0), hx)
        query = query if decoder.rnn.batch_first else query.transpose(0, 1)
        if isinstance(decoder, seq2seq.AttentionDecoder):
            query = torch.cat([decoder.attention(query), query], -1)
            alphas.append(decoder.attention.alphas)
        outputs.append(decoder.output(query)[:, 0])
        forced = torch.rand(()) < ratio if 0 < ratio < 1 else ratio == 1
        said = target[:, step] if forced else outputs[-1].argmax(-1) if tokens else outputs[-1]
    return torch.stack(outputs, 1), torch.cat(alphas, -2) if alphas else None


def assert_trains_alike(model, *, tokens=True, lengths=None, seed=5):
    """Losses and gradients are those of the loop, coins and dropout included."""
    source, target = batch(tokens)
    theirs = plain(model)
    results = []
    for each in (model, theirs):
        torch.manual_seed(seed)
        if each is model:
            outputs = model(source, target, source_lengths=lengths)
        else:
            outputs, _ = loop(theirs, source, target, model.teacher_forcing, lengths)
        loss = F.cross_entropy(outputs.transpose(1, 2), target) if tokens else F.mse_loss(outputs, target)
        loss.backward()
        results.append((outputs, dict(each.named_parameters())))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-10, atol=1e-12)
    assert results[0][1].keys() == results[1][1].keys()
    for name, parameter in results[0][1].items():
        torch.testing.assert_close(parameter.grad, results[1][1][name].grad, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("ratio", (0.0, 0.3, 0.7, 1.0))
@pytest.mark.parametrize("tokens", (True, False), ids=("tokens", "vectors"))
@pytest.mark.parametrize("cell", CELLS)
def test_trains_as_the_loop_does(cell, tokens, ratio):
    for seed in range(3):
        assert_trains_alike(make(cell, tokens=tokens, teacher_forcing=ratio), tokens=tokens, seed=seed)


@pytest.mark.needs_extension
@pytest.mark.parametrize("layers", (2, 3))
@pytest.mark.parametrize("cell", CELLS)
def test_dropout_masks_are_those_of_the_loop(cell, layers):
    assert_trains_alike(make(cell, layers=layers, dropout=0.4, teacher_forcing=0.5))


@pytest.mark.parametrize("bridge", (seq2seq.SumDirections, seq2seq.ConcatDirections, "projection"))
@pytest.mark.parametrize("cell", CELLS)
def test_two_directions_and_lengths(cell, bridge):
    module = seq2seq.Projection(2 * HIDDEN, HIDDEN) if bridge == "projection" else bridge()
    model = make(cell, layers=2, bidirectional=True, bridge=module, context="last", teacher_forcing=0.5)
    assert_trains_alike(model, lengths=torch.tensor([5, 1, 3, 2]))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tokens", (True, False), ids=("tokens", "vectors"))
def test_any_score(score, tokens):
    model = make(tokens=tokens, score=score, bidirectional=True, bridge=seq2seq.SumDirections(), teacher_forcing=0.5)
    assert_trains_alike(model, tokens=tokens, lengths=torch.tensor([5, 1, 3, 2]) if tokens else None)


def test_many_heads():
    assert_trains_alike(make(score="scaled_dot", heads=3, teacher_forcing=0.5))


def test_a_context_of_ones_own():
    model = make(teacher_forcing=0.5)
    model.decoder.rnn = nn.GRU(WIDTH + 2 * HIDDEN, HIDDEN).double()
    model.context = lambda states, hx: torch.cat([states.mean(1), states.amax(1)], -1)
    source, target = batch()
    model(source, target).sum().backward()
    assert model.encoder.rnn.weight_hh_l0.grad.abs().sum() > 0


def test_alphas_are_kept_for_every_step():
    model = make(score="additive", teacher_forcing=0.5)
    source, target = batch()
    torch.manual_seed(5)
    model(source, target)
    torch.manual_seed(5)
    _, alphas = loop(plain(model), source, target, 0.5)
    torch.testing.assert_close(model.decoder.attention.alphas, alphas)


def test_a_mask_of_the_source():
    model = make(score="dot")
    source, target = batch()
    mask = torch.rand(source.shape, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 0] = True
    model(source, target, source_mask=mask)
    assert (model.decoder.attention.alphas[(~mask).unsqueeze(1).expand(-1, 7, -1)] == 0).all()


def test_weights_may_be_tied():
    model = make()
    model.decoder.rnn = nn.GRU(WIDTH, WIDTH).double()
    model.encoder.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True).double()
    model.decoder.output = torch.nn.Linear(WIDTH, VOCABULARY).double()
    model.decoder.output.weight = model.decoder.embedding.weight
    source, target = batch()
    model.loss(source, target).backward()
    assert sum(1 for name, _ in model.named_parameters() if "decoder" in name) == 4 + 2
    assert model.greedy(source, 4).tokens.shape == (4, 4)


def test_the_gradient_reaches_one_hot_vectors():
    model = make()
    model.encoder.embedding = torch.nn.Linear(VOCABULARY, WIDTH, bias=False).double()
    source, target = batch()
    one_hots = F.one_hot(source, VOCABULARY).double().requires_grad_()
    model.loss(one_hots, target).backward()
    assert one_hots.grad.abs().sum(-1).min() > 0


def test_the_state_dict_is_that_of_the_plain_modules():
    model = make("LSTM", score="dot", layers=2)
    parts = {
        "encoder.embedding": torch.nn.Embedding(VOCABULARY, WIDTH), "encoder.rnn": torch.nn.LSTM(WIDTH, HIDDEN, 2),
        "decoder.embedding": torch.nn.Embedding(VOCABULARY, WIDTH), "decoder.rnn": torch.nn.LSTM(WIDTH, HIDDEN, 2),
        "decoder.output": torch.nn.Linear(2 * HIDDEN, VOCABULARY), "decoder.attention": nn.Attention(
            HIDDEN, proj_values=True),
    }  # fmt: skip
    weights = {f"{name}.{key}": w for name, part in parts.items() for key, w in part.state_dict().items()}
    assert weights.keys() == model.state_dict().keys()
    model.load_state_dict(weights)


@pytest.mark.parametrize("score", (None, "dot", "additive", "general"))
@pytest.mark.parametrize("cell", CELLS)
def test_greedy_is_the_loop_that_feeds_itself(cell, score):
    model = make(
        cell, layers=2, score=score, context="last", bidirectional=True, bridge=seq2seq.SumDirections(), dropout=0.5
    ).eval()
    source, target = batch(rows=20)
    lengths = torch.arange(20) % 5 + 1
    found = model.greedy(source, 7, source_lengths=lengths, return_alphas=score is not None)
    with torch.no_grad():
        logits, alphas = loop(plain(model), source, target, 0.0, lengths)
    check_found(found, logits, alphas)


def check_found(found, logits, alphas):
    scores, tokens = logits.log_softmax(-1).max(-1)
    for row in range(len(tokens)):
        end = (tokens[row] == EOS).nonzero()
        length = int(end[0]) + 1 if len(end) else tokens.size(1)
        assert found.lengths[row] == length
        assert torch.equal(found.tokens[row, :length], tokens[row, :length])
        assert (found.tokens[row, length:] == PAD).all()
        torch.testing.assert_close(found.scores[row], scores[row, :length].sum())
        if alphas is not None:
            torch.testing.assert_close(found.alphas[row, ..., :length, :], alphas[row, ..., :length, :])
            assert (found.alphas[row, ..., length:, :] == 0).all()


def test_greedy_with_many_heads():
    model = make(score="scaled_dot", heads=3)
    source, target = batch(rows=20)
    found = model.greedy(source, 7, return_alphas=True)
    assert model.decoder.training
    with torch.no_grad():
        logits, alphas = loop(plain(model), source, target, 0.0)
    check_found(found, logits, alphas)


def test_beams_and_samples():
    model = make(score="dot").eval()
    source, _ = batch(rows=9)
    greedy, one, five = model.greedy(source, 7), model.beam(source, 7, 1), model.beam(source, 7, 5, length_penalty=0.6)
    assert torch.equal(one.tokens[:, 0], greedy.tokens)
    assert five.tokens.shape == (9, 5, 7)
    assert (five.scores.diff(dim=1) <= 0).all()
    torch.manual_seed(3)
    drawn = model.sample(source, 7, top_k=4)
    torch.manual_seed(3)
    assert torch.equal(model.sample(source, 7, top_k=4).tokens, drawn.tokens)
    assert torch.equal(model.sample(source, 7, top_k=1).tokens, greedy.tokens)


@pytest.mark.parametrize("heads", (0, 1, 3))
def test_vectors_are_fed_back(heads):
    model = make(tokens=False, score="dot" if heads else None, heads=max(heads, 1)).eval()
    source, target = batch(False)
    outputs, alphas = model.feedback(source, 7, return_alphas=heads > 0)
    with torch.no_grad():
        expected, expected_alphas = loop(plain(model), source, target, 0.0)
    torch.testing.assert_close(outputs, expected)
    assert (alphas is None) == (heads == 0)
    if heads:
        torch.testing.assert_close(alphas, expected_alphas)


def test_vectors_start_from_the_last_one_of_the_row():
    model = make(tokens=False).eval()
    source, _ = batch(False)
    lengths = torch.tensor([2, 5, 1, 3])
    outputs, _ = model.feedback(source, 3, source_lengths=lengths)
    for row, length in enumerate(lengths):
        alone, _ = model.feedback(source[row : row + 1, :length], 3)
        torch.testing.assert_close(outputs[row : row + 1], alone)


def test_in_eval_mode_every_input_is_the_target():
    model = make(teacher_forcing=0.0).eval()
    source, target = batch()
    forced = make(teacher_forcing=1.0)
    torch.testing.assert_close(model(source, target), forced(source, target))


def test_the_loss_skips_what_is_no_part():
    outputs, target = draw(3, 4, VOCABULARY).requires_grad_(), torch.tensor([[3, 2, 0, 0], [4, 5, 6, 2], [2, 0, 0, 0]])
    lengths = torch.tensor([2, 4, 1])
    expected = torch.stack([
        F.cross_entropy(outputs[b, t], target[b, t]) for b in range(3) for t in range(int(lengths[b]))
    ])  # fmt: skip
    for given in ({"lengths": lengths}, {"pad": PAD}):
        torch.testing.assert_close(seq2seq.sequence_loss(outputs, target, **given), expected.mean())
        torch.testing.assert_close(seq2seq.sequence_loss(outputs, target, reduction="sum", **given), expected.sum())
        each = seq2seq.sequence_loss(outputs, target, reduction="none", **given)
        torch.testing.assert_close(each[each != 0], expected)


def test_the_loss_of_vectors_skips_even_nan():
    outputs, target = draw(3, 4, 2).requires_grad_(), draw(3, 4, 2, seed=2)
    lengths = torch.tensor([2, 4, 1])
    padded = target.clone()
    padded[0, 2:] = torch.nan
    loss = seq2seq.sequence_loss(outputs, padded, lengths)
    kept = torch.arange(4) < lengths[:, None]
    torch.testing.assert_close(loss, F.mse_loss(outputs[kept], target[kept]))
    loss.backward()
    assert outputs.grad.isfinite().all()
    assert (outputs.grad[~kept] == 0).all()


def test_schedules():
    assert [seq2seq.linear(1.0, 0.5, 4)(step) for step in (0, 2, 4, 9)] == [1.0, 0.75, 0.5, 0.5]
    assert seq2seq.exponential(0.5)(3) == 0.125
    assert seq2seq.constant(0.3)(10**6) == 0.3
    k = 10.0
    for step in (0, 20, 50, 10**6):
        exact = k / (k + torch.tensor(step / k, dtype=torch.float64).exp())
        assert seq2seq.inverse_sigmoid(k)(step) == pytest.approx(exact.item(), rel=1e-12, abs=1e-300)
    model = make(teacher_forcing=seq2seq.linear(1.0, 0.0, 10))
    source, target = batch()
    torch.testing.assert_close(model(source, target, step=0), make()(source, target))
    torch.testing.assert_close(model(source, target, step=10), make(teacher_forcing=0.0)(source, target))


TOKENS, TARGET = batch()
BAD = {
    "a token of the source": (lambda m: m(TOKENS + VOCABULARY, TARGET), ValueError, "source: expected tokens from 0"),
    "a token of the target": (lambda m: m(TOKENS, TARGET - VOCABULARY), ValueError, "target: expected tokens from 0"),
    "no eos": (lambda m: m(TOKENS, TARGET[:, :-1]), ValueError, "target: expected eos=2 in every row, row 0"),
    "an eos too late": (
        lambda m: m(TOKENS, TARGET, target_lengths=[7, 7, 6, 7]), ValueError, "eos=2 in every row, row 2",
    ),
    "an empty source row": (
        lambda m: m(TOKENS, TARGET, source_lengths=[5, 5, 0, 5]), ValueError, "source_lengths: expected 1 to 5, got 0",
    ),
    "a source row too long": (
        lambda m: m.greedy(TOKENS, 3, source_lengths=[5, 6, 1, 5]), ValueError, "source_lengths: .* got 6 for row 1",
    ),
    "lengths of other rows": (
        lambda m: m(TOKENS, TARGET, source_lengths=[5, 5]), RuntimeError, r"source_lengths: expected shape \(4,\)",
    ),
    "lengths of fractions": (
        lambda m: m(TOKENS, TARGET, target_lengths=[1.0] * 4), TypeError, "target_lengths: expected integers",
    ),
    "an empty source": (lambda m: m(TOKENS[:, :0], TARGET), RuntimeError, "source: expected at least one step"),
    "a target of other rows": (lambda m: m(TOKENS, TARGET[:2]), RuntimeError, r"target: expected \(4, T\)"),
    "beams": (lambda m: m.beam(TOKENS, 3, VOCABULARY + 1), ValueError, "beams: expected 1 to 11, the vocabulary"),
    "a mask with nothing to mask": (
        lambda m: m(TOKENS, TARGET, source_mask=TOKENS > 0), ValueError, "source_mask: expected a decoder with attent",
    ),
    "a schedule": (
        lambda m: (setattr(m, "teacher_forcing", lambda step: 1.5), m(TOKENS, TARGET)), ValueError,
        "teacher_forcing: expected a ratio from 0 to 1, got 1.5 at step 0",
    ),
    "vectors of tokens": (lambda m: m.feedback(TOKENS, 3), ValueError, "feedback: expected a decoder of vectors"),
    "a ratio": (lambda m: make(teacher_forcing=-0.1), ValueError, "teacher_forcing: expected a ratio"),
    "no bos": (lambda m: make(bos=None), ValueError, "bos: expected the token"),
    "an eos beyond the vocabulary": (lambda m: make(eos=VOCABULARY), ValueError, "eos: expected a token from 0 to 10"),
    "no bridge": (
        lambda m: make(bidirectional=True)(TOKENS, TARGET), ValueError, r"bridge: expected .*\(1, 4, 6\).*\(2, 4, 6\)",
    ),
    "two cells": (
        lambda m: seq2seq.Seq2Seq(make("LSTM").encoder, m.decoder, bos=1)(TOKENS, TARGET), ValueError,
        "encoder: expected no LSTM",
    ),
    "two directions": (
        lambda m: seq2seq.Decoder(torch.nn.GRU(5, 6, bidirectional=True), m.decoder.output), ValueError,
        "rnn: expected one direction",
    ),
    "linear schedule": (lambda m: seq2seq.linear(1.0, -0.1, 5), ValueError, "end: expected a ratio"),
    "exponential schedule": (lambda m: seq2seq.exponential(1.0), ValueError, "k: expected more than 0"),
    "inverse sigmoid schedule": (lambda m: seq2seq.inverse_sigmoid(0.5), ValueError, "k: expected 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, exception, message = BAD[name]
    with pytest.raises(exception, match=message):
        call(make())


def test_bad_input_is_said_before_anything_is_computed():
    model = make()
    model.encoder.rnn.register_forward_pre_hook(lambda *_: pytest.fail("the encoder ran"))
    for name in ("a token of the target", "no eos", "an empty source row", "beams", "a schedule"):
        call, exception, _ = BAD[name]
        with pytest.raises(exception):
            call(model)
