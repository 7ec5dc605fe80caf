"""Derivatives: numerically checked, of every order and mode, for every subset of the inputs and outputs."""

import itertools

import pytest
import torch
from cases import draw, make_cell, make_hx, make_layer, pack, twin
from leaves import assert_the_same_for_further_derivatives
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call
from torch.nn.utils.rnn import PackedSequence

BOTH_WAYS = pytest.mark.parametrize("bidirectional", (False, True), ids=("one_way", "both_ways"))


def as_function(module, input, hx=None, **kwargs):
    """`module` as a function of plain tensors, and those tensors in float64: input, states, weights."""
    names, weights = zip(*module.named_parameters(), strict=True)
    states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
    packed = isinstance(input, PackedSequence)

    def function(data, *rest):
        given = rest[: len(states)]
        state = given if len(given) == 2 else given[0] if given else None
        x = PackedSequence(data, *input[1:]) if packed else data
        result = functional_call(module, dict(zip(names, rest[len(states) :], strict=True)), (x, state), kwargs)
        leaves = torch.utils._pytree.tree_leaves(result)
        return tuple(leaf for leaf in leaves if torch.is_tensor(leaf) and leaf.is_floating_point())

    tensors = (input.data if packed else input, *states, *weights)
    return function, tuple(x.detach().double().requires_grad_() for x in tensors)


# module, input, the batch of hx if there is one, other arguments
CASES = {
    "plain": lambda cell: (make_layer(cell, 2, 3), draw(3, 2, 2), None, {}),
    "hx": lambda cell: (make_layer(cell, 2, 2), draw(3, 2, 2), 2, {}),
    "two_layers_both_ways": lambda cell: (
        make_layer(cell, 2, 2, 2, bidirectional=True, batch_first=True),
        draw(2, 2, 2),
        2,
        {},
    ),
    "no_bias": lambda cell: (make_layer(cell, 2, 2, bias=False), draw(3, 2, 2), None, {}),
    "packed": lambda cell: (make_layer(cell, 2, 2, bidirectional=True), pack(draw(3, 2, 2), (2, 3)), 2, {}),
    "lengths": lambda cell: (
        make_layer(cell, 2, 2, bidirectional=True),
        draw(3, 3, 2),
        3,
        {"lengths": [2, 3, 0]},
    ),
    "unbatched": lambda cell: (make_layer(cell, 2, 2), draw(3, 2), None, {}),
    "one_step": lambda cell: (make_layer(cell, 2, 2), draw(1, 2, 2), 2, {}),
    "cell": lambda cell: (make_cell(cell, 2, 3), draw(2, 2), None, {}),
}


def make_case(name, cell):
    module, input, batch, options = CASES[name](cell)
    return as_function(module.double(), input, batch and make_hx(module, batch), **options)


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(cell, case):
    function, tensors = make_case(case, cell)
    assert gradcheck(function, tensors)


@pytest.mark.parametrize("case", CASES)
def test_gradgradcheck(cell, case):
    function, tensors = make_case(case, cell)
    assert gradgradcheck(function, tensors)


# a state's history leads to the same weights: a gradient that took both ways would count them twice
@pytest.mark.parametrize("kind", ("layer", "cell"))
def test_calls_that_share_weights(cell, kind):
    module = make_layer(cell, 2, 2) if kind == "layer" else make_cell(cell, 2, 2)
    x = draw(3, 2, 2) if kind == "layer" else draw(2, 2)
    _, tensors = as_function(module.double(), x)

    def loop(x, *weights):
        names = [name for name, _ in module.named_parameters()]
        hx = None
        for _ in range(3):
            result = functional_call(module, dict(zip(names, weights, strict=True)), (x, hx))
            x, hx = result if kind == "layer" else (result[0] if isinstance(result, tuple) else result, result)
        return x

    assert_the_same_for_further_derivatives(loop(*tensors), tensors)
    assert gradgradcheck(loop, tensors)


# torch.nn has no forward mode for what packing does
@pytest.mark.needs_extension
@pytest.mark.parametrize("case", CASES)
def test_forward_mode(cell, case):
    function, tensors = make_case(case, cell)
    assert gradcheck(function, tensors, check_forward_ad=True, check_backward_ad=False)


@pytest.mark.parametrize("case", CASES)
def test_batched_gradients(cell, case):
    function, tensors = make_case(case, cell)
    assert gradcheck(function, tensors, check_batched_grad=True)


def gradients(module, input, hx, wanted, loss):
    """Those of `loss(*outputs)` by the tensors named, None where it does not depend on one."""
    states = () if hx is None else hx if isinstance(hx, tuple) else (hx,)
    leaves = {"input": input.clone(), **{f"state_{k}": s.clone() for k, s in enumerate(states)}}
    given = list(leaves.values())
    leaves.update(module.named_parameters())
    for name, leaf in leaves.items():
        leaf.requires_grad_(name in wanted)
    output, h = module(given[0], None if hx is None else tuple(given[1:]) if isinstance(hx, tuple) else given[1])
    return torch.autograd.grad(
        loss(output, *(h if isinstance(h, tuple) else (h,))), [leaves[n] for n in wanted], allow_unused=True
    )


def assert_same_gradients(layer, input, hx, wanted, loss):
    ours, theirs = (gradients(module, input, hx, wanted, loss) for module in (layer, twin(layer)))
    for name, our, their in zip(wanted, ours, theirs, strict=True):
        torch.testing.assert_close(our, their, msg=lambda m, name=name: f"{name}: {m}")


SUBSETS = [
    subset
    for size in (1, 2, 3)
    for subset in itertools.combinations(
        ("input", "state_0", "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"), size
    )
]


@pytest.mark.parametrize("wanted", SUBSETS, ids="+".join)
def test_every_subset_of_inputs(cell, wanted):
    layer = make_layer(cell, 5, 7)
    assert_same_gradients(layer, draw(4, 3, 5), make_hx(layer, 3), wanted, lambda output, *h: output.square().sum())


def test_cell_state_alone():
    layer = make_layer("lstm", 5, 7)
    assert_same_gradients(layer, draw(4, 3, 5), make_hx(layer, 3), ("state_1",), lambda output, h, c: c.sum())


LOSSES = {
    "output": lambda output, *states: output.square().sum(),
    "one_output": lambda output, *states: output[1, 0, 2],
    "last_output": lambda output, *states: output[-1].sum(),
    "h_n": lambda output, *states: states[0].square().sum(),
    "last_state": lambda output, *states: states[-1].sum(),
    "everything": lambda output, *states: output.sum() + sum(s.square().sum() for s in states),
    "expanded_gradient": lambda output, *states: output.sum(),
    "strided_gradient": lambda output, *states: (output.transpose(0, 2)[::2] * draw(4, 4, 3).transpose(1, 2)).sum(),
    "one_direction": lambda output, *states: output[..., 7:].sum(),
}


@BOTH_WAYS
@pytest.mark.parametrize("loss", LOSSES)
def test_subsets_of_outputs(cell, loss, bidirectional):
    if loss == "one_direction" and not bidirectional:
        pytest.skip("has one direction")
    if loss == "strided_gradient" and bidirectional:
        pytest.skip("its sizes are those of one direction")
    layer = make_layer(cell, 5, 7, bidirectional=bidirectional)
    hx = make_hx(layer, 3)
    wanted = [
        "input",
        *(f"state_{k}" for k in range(len(hx) if cell == "lstm" else 1)),
        *dict(layer.named_parameters()),
    ]
    assert_same_gradients(layer, draw(4, 3, 5), hx, wanted, LOSSES[loss])


@pytest.mark.parametrize("loss", ("output", "h_n", "everything"))
def test_subsets_of_outputs_of_packed_input(cell, loss):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    ours, theirs = (
        torch.autograd.grad(
            LOSSES[loss](output.data, *(h if cell == "lstm" else (h,))),
            list(module.parameters()),
            allow_unused=True,
        )
        for module in (layer, twin(layer))
        for output, h in (module(pack(draw(4, 3, 5), (2, 4, 1))),)
    )
    torch.testing.assert_close(ours, theirs)


def test_backward_twice(cell):
    layer = make_layer(cell, 5, 7, 2)
    input = draw(4, 3, 5).requires_grad_()
    loss = layer(input)[0].square().sum()
    first = torch.autograd.grad(loss, [input, *layer.parameters()], retain_graph=True)
    second = torch.autograd.grad(loss, [input, *layer.parameters()])
    assert all(map(torch.equal, first, second))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_backward_in_eval_mode(cell):
    layer = make_layer(cell, 5, 7, 2, dropout=0.5).eval()
    ours, theirs = (
        torch.autograd.grad(module(draw(4, 3, 5))[0].sum(), list(module.parameters()))
        for module in (layer, twin(layer))
    )
    torch.testing.assert_close(ours, theirs)


# torch.nn's LSTM reads its output in backward, and refuses one that was changed
@pytest.mark.needs_extension
@pytest.mark.parametrize("change", (torch.relu_, torch.exp_, lambda x: x.mul_(2), lambda x: x[0].zero_()))
def test_output_changed_in_place(cell, change):
    layer = make_layer(cell, 5, 7)

    def loss(output, *states):
        change(output)
        return output.square().sum() + sum(s.sum() for s in states)

    wanted = ["input", "weight_hh_l0"]
    theirs = gradients(twin(layer), draw(4, 3, 5), None, wanted, lambda output, *h: loss(output.clone(), *h))
    ours = gradients(layer, draw(4, 3, 5), None, wanted, loss)
    torch.testing.assert_close(ours, theirs)


def test_residual_added_in_place(cell):
    """Where torch.nn's can: batch first, its products read a copy."""
    layer = make_layer(cell, 3, 3, batch_first=True, dtype=torch.float64)
    gradients = []
    for module in (layer, twin(layer)):
        leaf = draw(4, 5, 3, dtype=torch.float64).requires_grad_()
        x = leaf * 1
        x += module(x)[0]
        gradients.append(torch.autograd.grad(x.sin().sum(), (leaf, *module.parameters())))
    for own, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(own, expected)


def test_saved_tensor_changed_in_place_is_caught(cell):
    layer = make_layer(cell, 5, 7)
    input = draw(4, 3, 5)
    loss = layer(input)[0].sum()
    with torch.no_grad():
        layer.weight_hh_l0.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_gradients_accumulate(cell):
    layer = make_layer(cell, 5, 7)
    for _ in range(2):
        layer(draw(4, 3, 5))[0].sum().backward()
    once = torch.autograd.grad(layer(draw(4, 3, 5))[0].sum(), list(layer.parameters()))
    torch.testing.assert_close([p.grad for p in layer.parameters()], [2 * g for g in once])


def test_gradient_penalty(cell):
    """The norm of a gradient, differentiated by the weights."""
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    penalties = []
    for module in (layer, twin(layer)):
        input = draw(4, 3, 5).requires_grad_()
        (d_input,) = torch.autograd.grad(module(input)[0].square().sum(), input, create_graph=True)
        penalties.append(torch.autograd.grad(d_input.square().sum(), list(module.parameters()), allow_unused=True))
    for ours, theirs in zip(*penalties, strict=True):
        # a weight on which the gradient does not depend may have none, or zeros
        zeros = torch.zeros(())
        torch.testing.assert_close(
            *torch.broadcast_tensors(zeros if ours is None else ours, zeros if theirs is None else theirs)
        )


def test_third_derivative():
    layer = make_layer("gru", 2, 2, dtype=torch.float64)
    x = draw(2, 1, 2, dtype=torch.float64).requires_grad_()
    theirs, ours = [], []
    for module, results in ((layer, ours), (twin(layer), theirs)):
        value = module(x)[0].sum()
        for _ in range(3):
            (d_x,) = torch.autograd.grad(value, x, create_graph=True)
            results.append(d_x.detach())
            value = d_x.pow(2).sum()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_no_graph_without_gradients(cell):
    layer = make_layer(cell, 5, 7).requires_grad_(False)
    assert not layer(draw(4, 3, 5))[0].requires_grad
    layer.requires_grad_()
    with torch.no_grad():
        assert not layer(draw(4, 3, 5))[0].requires_grad


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_anomaly_mode_and_hooks(cell):
    layer = make_layer(cell, 5, 7)
    seen = []
    layer.weight_hh_l0.register_hook(lambda gradient: seen.append(gradient.clone()))
    with torch.autograd.detect_anomaly(check_nan=True):
        layer(draw(4, 3, 5))[0].sum().backward()
    torch.testing.assert_close(seen, [layer.weight_hh_l0.grad])


def test_saved_tensor_hooks_and_checkpoint(cell):
    layer = make_layer(cell, 5, 7, 2, dtype=torch.float64)
    parameters = list(layer.parameters())
    plain = torch.autograd.grad(layer(draw(4, 3, 5, dtype=torch.float64))[0].sum(), parameters)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.numpy(), torch.from_numpy):
        hooked = torch.autograd.grad(layer(draw(4, 3, 5, dtype=torch.float64))[0].sum(), parameters)
    output, _ = torch.utils.checkpoint.checkpoint(layer, draw(4, 3, 5, dtype=torch.float64), use_reentrant=False)
    torch.testing.assert_close(hooked, plain)
    torch.testing.assert_close(torch.autograd.grad(output.sum(), parameters), plain)
