"""A decoder in training as one node of autograd: where it serves, where the modules do, and all of its derivatives."""

import contextlib
import copy
import functools
import unittest.mock

import pytest
import torch
import torch._dynamo.compiled_autograd
import torch.utils.checkpoint
from leaves import assert_the_same_for_further_derivatives
from test_seq2seq import EOS, HIDDEN, PAD, VOCABULARY, WIDTH, batch, make
from torch.utils.flop_counter import FlopCounterMode

from seq2seq_fast import nn, seq2seq
from seq2seq_fast.seq2seq import decoder as decoder_module

pytestmark = pytest.mark.needs_extension

KINDS = {
    "tokens": {},
    "vectors": {"tokens": False},
    "lstm": {"cell": "LSTM", "layers": 2},
    "no bias": {"cell": "RNN", "score": "general"},
    "context": {"context": "last"},
    "dot": {"score": "scaled_dot", "tokens": False},
    "heads": {"score": "scaled_dot", "heads": 3},
    "gaussian": {"score": "gaussian", "tokens": False},
    "additive": {"score": "additive"},
    "dropout": {"layers": 3, "dropout": 0.4, "score": "dot"},
}


def is_one_node(outputs) -> bool:
    return "DecoderFunction" in outputs.grad_fn.name()


def leaving_it_to(by_modules: bool):
    """Within it, the modules serve, where they are to."""
    if not by_modules:
        return contextlib.nullcontext()
    return unittest.mock.patch.object(decoder_module, "in_one_call", lambda *args: None)


def trained(model, *, by_modules=False, seed=5, **given):
    """The outputs and the gradients of all parameters."""
    source, target = batch(model.decoder.of_tokens, dtype=model.decoder.output.weight.dtype)
    torch.manual_seed(seed)
    with leaving_it_to(by_modules):
        outputs = model(source, target, **given)
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad((outputs * weights.to(outputs.dtype)).sum(), list(parameters.values()))
    return outputs, dict(zip(parameters, gradients, strict=True))


def assert_same(ours, theirs, **tolerance):
    tolerance = tolerance or {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(ours[0], theirs[0], **tolerance)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in ours[1].items():
        torch.testing.assert_close(
            gradient, theirs[1][name], msg=lambda text, name=name: f"{name}: {text}", **tolerance
        )


@pytest.mark.sanitize
@pytest.mark.parametrize("ratio", (0.5, 1.0))
@pytest.mark.parametrize("kind", KINDS)
def test_serves(kind, ratio):
    model = make(teacher_forcing=ratio, **KINDS[kind])
    # without coins torch's own code draws the masks between the layers, as a whole
    one = is_one_node(trained(model)[0])
    assert one == (kind != "dropout" or ratio < 1)
    assert_same(trained(model), trained(model, by_modules=True))


def assert_as_accurate(ours, modules, exact):
    """At most twice the modules' error (a gradient: three times) and a few roundings."""
    of_all = [{"outputs": outputs, **gradients} for outputs, gradients in (ours, modules, exact)]
    for name, got in of_all[0].items():
        theirs, oracle = of_all[1][name], of_all[2][name]
        assert got.dtype == theirs.dtype
        error, allowed = ((x.double() - oracle).abs().max() for x in (got, theirs))
        # as of the module's largest gradient: the keys' bias moves all scores alike, and its own is all rounding
        alike = [x for other, x in of_all[2].items() if other.rpartition(".")[0] == name.rpartition(".")[0]]
        rounding = 4 * torch.finfo(got.dtype).eps * max(x.abs().max() for x in alike)
        assert error <= (2 if name == "outputs" else 3) * allowed + rounding, name


@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("kind", ("vectors", "dot", "heads", "context"))
def test_other_dtypes(kind, dtype):
    model = make(teacher_forcing=1.0, **KINDS[kind])
    lesser = copy.deepcopy(model).to(dtype)
    ours = trained(lesser)
    assert is_one_node(ours[0])
    assert_as_accurate(ours, trained(lesser, by_modules=True), trained(model))


# small products are the engine's, large ones torch's
@pytest.mark.sanitize
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
@pytest.mark.parametrize("hidden, says", ((1, 2), (63, 17), (16, 257), (257, 63), (31, 1000)))
@pytest.mark.parametrize("rows, steps", ((1, 1), (3, 7), (63, 2)))
def test_sizes(rows, steps, hidden, says, dtype):
    torch.manual_seed(0)
    layer, embedding = torch.nn.GRU(WIDTH, hidden), torch.nn.Embedding(says, WIDTH)
    attention = nn.Attention(hidden, 9, query_dim=hidden, proj_values=True)
    model = seq2seq.AttentionDecoder(layer, attention, torch.nn.Linear(2 * hidden, says), embedding).double()
    tokens = torch.randint(says, (rows, steps))
    states, h_0 = torch.randn(rows, 5, 9, dtype=torch.float64), torch.randn(1, rows, hidden, dtype=torch.float64)
    weights = torch.randn(rows, steps, says, dtype=torch.float64)

    def results(model, by_modules=False):
        dtype = model.output.weight.dtype
        with leaving_it_to(by_modules):
            model.attend(states.to(dtype))
            outputs = model(tokens, h_0.to(dtype))
        assert is_one_node(outputs) != by_modules
        parameters = dict(model.named_parameters())
        gradients = torch.autograd.grad((outputs * weights.to(dtype)).sum(), list(parameters.values()))
        return outputs, dict(zip(parameters, gradients, strict=True))

    ours = copy.deepcopy(model).to(dtype)
    if dtype == torch.float64:
        assert_same(results(ours), results(ours, by_modules=True), rtol=1e-9, atol=1e-11)
    else:
        assert_as_accurate(results(ours), results(ours, by_modules=True), results(model))


PARAMETERS = (
    "decoder.rnn.weight_hh_l0", "decoder.output.bias", "decoder.attention.linear_query.weight",
    "decoder.attention.linear_key.weight", "decoder.embedding.weight", "encoder.rnn.bias_hh_l0",
)  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_gradient_of_a_single_parameter(name):
    model = make(score="scaled_dot", heads=3, teacher_forcing=0.5)
    everything = trained(model)
    for each, parameter in model.named_parameters():
        parameter.requires_grad_(each == name)
    ours = trained(model)
    assert is_one_node(ours[0])
    torch.testing.assert_close(ours[1], {name: everything[1][name]}, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cell", ("GRU", "LSTM"))
@pytest.mark.parametrize("ratio", (0.5, 1.0))
def test_gradients_of_what_it_is_given(cell, ratio):
    model = make(cell, tokens=False, score="gaussian", layers=2, context="last", teacher_forcing=ratio)
    decoder = model.decoder
    states = torch.randn(2, 4, HIDDEN, dtype=torch.float64)
    hx = tuple(torch.randn(2, 2, HIDDEN, dtype=torch.float64) for _ in range(2 if cell == "LSTM" else 1))
    given = [states, *hx, torch.randn(2, HIDDEN, dtype=torch.float64), torch.randn(2, 5, WIDTH, dtype=torch.float64)]

    def outputs(states, *rest):
        *hx, context, inputs = rest
        torch.manual_seed(2)
        decoder.attend(states)
        return decoder(inputs, tuple(hx) if cell == "LSTM" else hx[0], context=context, teacher_forcing=ratio)

    given = [x.requires_grad_() for x in given]
    assert is_one_node(outputs(*given))
    assert torch.autograd.gradcheck(outputs, given)
    assert torch.autograd.gradgradcheck(outputs, given, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_double_backward(kind):
    def second(by_modules):
        model = make(teacher_forcing=0.5, **KINDS[kind])
        source, target = batch(model.decoder.of_tokens)
        torch.manual_seed(3)
        with leaving_it_to(by_modules):
            loss = model(source, target).square().sum()
        parameters = dict(model.named_parameters())
        first = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
        sum(g.square().sum() for g in first).backward()
        return loss, {name: p.grad for name, p in parameters.items()}

    assert_same(second(False), second(True))


@pytest.mark.sanitize
def test_many_gradients_at_once():
    model = make(tokens=False, score="dot", teacher_forcing=0.5)
    outputs = model(*batch(False))
    assert is_one_node(outputs)
    assert_the_same_for_further_derivatives(outputs, list(model.parameters()))


def test_torch_func():
    model = make(score="scaled_dot", teacher_forcing=1.0)
    source, target = batch()
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, source, target):
        return torch.func.functional_call(model, parameters, (source, target)).square().sum()

    whole = torch.func.grad(loss)(parameters, source, target)
    own = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss(own, source, target), list(own.values()))
    torch.testing.assert_close(whole, dict(zip(own, gradients, strict=True)))
    # other parameters than the module's own, in one node
    other = {name: (p.detach() + 0.1).requires_grad_() for name, p in model.named_parameters()}
    outputs = torch.func.functional_call(model, other, (source, target))
    assert is_one_node(outputs)
    changed = copy.deepcopy(model)
    changed.load_state_dict({name: p.detach() for name, p in other.items()})
    torch.testing.assert_close(outputs, changed(source, target))
    _, tangent = torch.func.jvp(lambda p: loss(p, source, target), (parameters,), (parameters,))
    torch.testing.assert_close(tangent, sum((whole[name] * parameters[name]).sum() for name in whole))


class Noisy(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Half(torch.nn.Module):
    def forward(self, weight):
        return weight / 2


def forward_hook(model):
    calls = []
    model.decoder.output.register_forward_hook(lambda *args: calls.append(args))
    return calls


def hook_on_the_query(model):
    calls = []
    model.decoder.attention.linear_query.register_forward_pre_hook(lambda *args: calls.append(args))
    return calls


def backward_hook(model):
    calls = []
    model.decoder.rnn.register_full_backward_hook(lambda *args: calls.append(args))
    return calls


def subclass(model):
    model.decoder.output.__class__ = Noisy


def parametrization(model):
    torch.nn.utils.parametrize.register_parametrization(model.decoder.output, "weight", Half())


def forward_of_its_own(model):
    linear = model.decoder.output
    linear.forward = lambda x: 2 * torch.nn.functional.linear(x, linear.weight, linear.bias)


def weights_with_a_norm(model):
    model.decoder.embedding.max_norm = 0.5


def distance(model):
    model.decoder.attention.score = "boxcar"


def dropped_weights(model):
    model.decoder.attention.dropout = 0.5


BY_MODULES = (forward_hook, hook_on_the_query, backward_hook, subclass, parametrization, forward_of_its_own,
              weights_with_a_norm, distance, dropped_weights)  # fmt: skip


@pytest.mark.parametrize("change", BY_MODULES)
def test_modules_serve(change):
    model = make(score="scaled_dot", teacher_forcing=0.5)
    unchanged, _ = trained(model)
    calls = change(model)
    ours = trained(model)
    assert not is_one_node(ours[0])
    assert calls is None or calls
    assert_same(ours, trained(model, by_modules=True))
    if calls is None:
        assert not torch.equal(ours[0], unchanged)


def test_a_global_hook_is_called():
    model, calls = make(score="dot"), []
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *args: calls.append(module))
    try:
        trained(model)
    finally:
        handle.remove()
    assert model.decoder.output in calls


def test_autocast_sees_the_modules():
    model = make(score="dot", dtype=torch.float32)
    source, target = batch()
    with torch.autocast("cpu"):
        outputs = model(source, target)
    assert outputs.dtype == torch.bfloat16
    torch.testing.assert_close(outputs.float(), model(source, target), rtol=0.1, atol=0.05)


def test_a_dispatch_mode_sees_every_operation():
    model = make(score="dot", teacher_forcing=0.5)
    with FlopCounterMode(display=False) as counter:
        outputs, _ = trained(model)
    assert not is_one_node(outputs)
    counted = counter.get_total_flops()
    outputs = model(*batch())
    assert is_one_node(outputs)
    with FlopCounterMode(display=False) as counter:
        outputs.sum().backward()
    assert 0 < counter.get_total_flops() < counted


def test_states_may_be_a_list():
    decoder = make("LSTM").decoder
    states = [torch.zeros(1, 2, HIDDEN, dtype=torch.float64) for _ in range(2)]
    tokens = torch.ones(2, 3, dtype=torch.int64)
    torch.testing.assert_close(decoder(tokens, states), decoder(tokens, tuple(states)))


def test_padding_idx_gets_no_gradient():
    model = make(teacher_forcing=1.0)
    source, target = batch()
    target[:, 2] = PAD
    model.decoder.embedding.padding_idx = PAD
    outputs = model(source, target)
    assert is_one_node(outputs)
    outputs.square().sum().backward()
    gradient = model.decoder.embedding.weight.grad
    assert gradient[PAD].abs().sum() == 0
    assert gradient[EOS + 1 :].abs().sum() > 0


@pytest.mark.sanitize
@pytest.mark.parametrize("token", (-1, VOCABULARY))
@pytest.mark.parametrize("ratio", (0.5, 1.0))
def test_a_token_that_the_embedding_does_not_have(token, ratio):
    decoder = make().decoder
    inputs = torch.ones(2, 4, dtype=torch.int64)
    inputs[1, 2] = token
    with pytest.raises(IndexError, match=f"inputs: expected tokens from 0 to {VOCABULARY - 1}, got {token}"):
        decoder(inputs, torch.zeros(1, 2, HIDDEN, dtype=torch.float64), teacher_forcing=ratio)


def widened(decoder):
    decoder.output = torch.nn.Linear(2 * HIDDEN + 1, WIDTH).double()


def with_a_longer_bias(decoder):
    decoder.output.bias = torch.nn.Parameter(torch.zeros(WIDTH + 1, dtype=torch.float64))


def with_another_query(decoder):
    decoder.attention.linear_query = torch.nn.Linear(HIDDEN + 1, HIDDEN).double()


# each is an error of torch's modules, and must not be a crash or a number here
WRONG = {
    "inputs": ((2, 3, WIDTH + 1), (1, 2, HIDDEN), None),
    "dimensions of inputs": ((2, WIDTH), (1, 2, HIDDEN), None),
    "batch of hx": ((2, 3, WIDTH), (1, 3, HIDDEN), None),
    "layers of hx": ((2, 3, WIDTH), (2, 2, HIDDEN), None),
    "width of hx": ((2, 3, WIDTH), (1, 2, HIDDEN + 1), None),
    "dimensions of hx": ((2, 3, WIDTH), (2, HIDDEN), None),
    "batch of the keys": ((3, 3, WIDTH), (1, 3, HIDDEN), None),
    "output": ((2, 3, WIDTH), (1, 2, HIDDEN), widened),
    "bias": ((2, 3, WIDTH), (1, 2, HIDDEN), with_a_longer_bias),
    "query": ((2, 3, WIDTH), (1, 2, HIDDEN), with_another_query),
}


@pytest.mark.sanitize
@pytest.mark.parametrize("ratio", (0.0, 1.0))
@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit(case, ratio):
    inputs, h_0, change = WRONG[case]
    decoder = make(tokens=False, score="dot").decoder
    decoder.attend(torch.zeros(2, 4, HIDDEN, dtype=torch.float64))
    if change is not None:
        change(decoder)
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        decoder(torch.zeros(inputs, dtype=torch.float64), torch.zeros(h_0, dtype=torch.float64), teacher_forcing=ratio)


def test_the_graph_may_be_kept_and_its_weights_may_not_be_changed():
    model = make(score="dot", teacher_forcing=0.5)
    source, target = batch()
    outputs = model(source, target)
    weight = model.decoder.output.weight
    once, twice = (torch.autograd.grad(outputs.sum(), weight, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, twice)
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        outputs.sum().backward()


def test_without_a_gradient_there_is_no_node():
    model = make(score="dot", teacher_forcing=0.5)
    source, target = batch()
    torch.manual_seed(1)
    with torch.no_grad():
        outputs = model(source, target)
    torch.manual_seed(1)
    assert outputs.grad_fn is None
    torch.testing.assert_close(outputs, model(source, target).detach())
    assert not model.decoder.attention.alphas.requires_grad


def test_a_subclass_that_projects_otherwise_is_asked():
    class Doubled(seq2seq.Decoder):
        def project(self, query):
            return 2 * super().project(query)

    model = make(teacher_forcing=1.0)
    expected, _ = trained(model)
    model.decoder.__class__ = Doubled
    torch.testing.assert_close(trained(model)[0], 2 * expected)


def test_checkpoints_and_compiled_autograd():
    model = make(tokens=False, score="scaled_dot", layers=2, teacher_forcing=0.5)
    source, target = batch(False)
    parameters = list(model.parameters())

    def gradients(call):
        torch.manual_seed(3)
        outputs = call(source, target)
        return torch.autograd.grad(outputs.square().sum(), parameters)

    expected = gradients(model)
    checkpointed = functools.partial(torch.utils.checkpoint.checkpoint, model, use_reentrant=False)
    torch.testing.assert_close(gradients(checkpointed), expected)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        torch.testing.assert_close(gradients(model), expected)
