"""torch.func: per-sample gradients, ensembles, Jacobians and forward mode."""

import pytest
import torch
from cases import draw, make_cell, make_hx, make_layer, twin
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vjp, vmap
from torch.testing import assert_close

# torch.nn's own layers do not batch, and its LSTM has no forward mode
pytestmark = pytest.mark.needs_extension


def layer_loss(layer, **kwargs):
    def loss(parameters, input, hx=None):
        output, states = functional_call(layer, parameters, (input, hx), kwargs)
        leaves = states if isinstance(states, tuple) else (states,)
        return output.square().sum() + sum(s.sum() for s in leaves)

    return loss


def detached(module):
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def assert_per_sample(loss, parameters, *samples):
    """vmap(grad) gives what a loop over the samples gives."""
    batched = vmap(grad(loss), (None, *(0 for _ in samples)))(parameters, *samples)
    looped = [grad(loss)(parameters, *sample) for sample in zip(*samples, strict=True)]
    for name, gradient in batched.items():
        assert_close(gradient, torch.stack([one[name] for one in looped]), msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("bidirectional", (False, True), ids=("one_way", "both_ways"))
@pytest.mark.parametrize("unbatched", (False, True), ids=("batch_of_one", "unbatched"))
def test_per_sample_gradients(cell, bidirectional, unbatched):
    layer = make_layer(cell, 5, 7, 2, bidirectional=bidirectional)
    samples = draw(6, 4, 5) if unbatched else draw(6, 4, 1, 5)
    assert_per_sample(layer_loss(layer), detached(layer), samples)


def test_per_sample_gradients_with_lengths(cell):
    layer = make_layer(cell, 5, 7)
    assert_per_sample(layer_loss(layer, lengths=[2, 4]), detached(layer), draw(6, 4, 2, 5))


def test_per_sample_gradients_of_a_cell(single):
    cell = make_cell(single, 5, 7)

    def loss(parameters, input):
        states = functional_call(cell, parameters, (input,))
        return sum(s.square().sum() for s in (states if isinstance(states, tuple) else (states,)))

    assert_per_sample(loss, detached(cell), draw(6, 5))
    assert_per_sample(loss, detached(cell), draw(6, 3, 5))


def test_per_sample_gradients_are_torchs(cell):
    layer = make_layer(cell, 5, 7)
    parameters, samples = detached(layer), draw(6, 4, 1, 5)
    ours = vmap(grad(layer_loss(layer)), (None, 0))(parameters, samples)
    for k, sample in enumerate(samples):
        theirs = twin(layer)
        output, states = theirs(sample)
        loss = output.square().sum() + sum(s.sum() for s in (states if cell == "lstm" else (states,)))
        for (name, parameter), d in zip(
            theirs.named_parameters(), torch.autograd.grad(loss, list(theirs.parameters())), strict=True
        ):
            assert parameter.shape == ours[name][k].shape
            assert_close(ours[name][k], d, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("over_input", (False, True), ids=("same_input", "own_input"))
def test_ensemble(cell, over_input):
    layers = [make_layer(cell, 5, 7, 2, bidirectional=True) for _ in range(3)]
    for k, layer in enumerate(layers):
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter += k / 10
    parameters, buffers = stack_module_state(layers)
    inputs = draw(3, 4, 2, 5)

    def call(parameters, buffers, input):
        return functional_call(layers[0], (parameters, buffers), (input,))

    batched = vmap(call, (0, 0, 0 if over_input else None))(parameters, buffers, inputs if over_input else inputs[0])
    for k, layer in enumerate(layers):
        alone = layer(inputs[k if over_input else 0])
        assert_close(torch.utils._pytree.tree_map(lambda x, k=k: x[k], batched), alone)


def test_ensemble_trains(cell):
    layers = [make_layer(cell, 5, 7) for _ in range(3)]
    parameters, buffers = stack_module_state(layers)
    output, _ = vmap(lambda p, b, x: functional_call(layers[0], (p, b), (x,)), (0, 0, None))(
        parameters, buffers, draw(4, 2, 5)
    )
    stacked = torch.autograd.grad(output.square().sum(), list(parameters.values()))
    alone = torch.autograd.grad(layers[0](draw(4, 2, 5))[0].square().sum(), list(layers[0].parameters()))
    for gradient, expected in zip(stacked, alone, strict=True):
        assert_close(gradient, expected.expand(3, *expected.shape))


def test_vmap_over_the_batch_in_inference(cell):
    layer = make_layer(cell, 5, 7, 2)
    input = draw(4, 6, 5)
    with torch.no_grad():
        output, _ = vmap(layer, in_dims=1, out_dims=1)(input)
        assert_close(output, layer(input)[0])


def test_jvp(cell):
    layer = make_layer(cell, 5, 7, 2, bidirectional=True)
    input, tangent = draw(4, 3, 5), draw(4, 3, 5, seed=9)

    def both(module):
        return jvp(lambda x: module(x, make_hx(layer, 3)), (input,), (tangent,))

    theirs = twin(layer).double()
    output, d_output = both(layer)
    hx = torch.utils._pytree.tree_map(torch.Tensor.double, make_hx(layer, 3))
    _, expected = jvp(lambda x: theirs(x, hx), (input.double(),), (tangent.double(),))
    assert_close(output, layer(input, make_hx(layer, 3)))
    assert_close(d_output, torch.utils._pytree.tree_map(torch.Tensor.float, expected))


def test_dual_tensors(cell):
    layer = make_layer(cell, 5, 7)
    input, tangent = draw(4, 3, 5), draw(4, 3, 5, seed=9)
    with torch.autograd.forward_ad.dual_level():
        output, _ = layer(torch.autograd.forward_ad.make_dual(input, tangent))
        d_output = torch.autograd.forward_ad.unpack_dual(output).tangent
    assert_close(d_output, jvp(lambda x: layer(x)[0], (input,), (tangent,))[1])


def test_jacobians_agree(cell):
    layer = make_layer(cell, 2, 3, dtype=torch.float64)
    input = draw(2, 2, 2, dtype=torch.float64)

    def function(x):
        return layer(x)[0]

    expected = torch.autograd.functional.jacobian(function, input)
    assert_close(jacrev(function)(input), expected)
    assert_close(jacfwd(function)(input), expected)
    assert_close(torch.autograd.functional.jacobian(function, input, vectorize=True), expected)


def test_hessian(cell):
    layer = make_layer(cell, 2, 3, dtype=torch.float64)
    input = draw(2, 1, 2, dtype=torch.float64)

    def function(x):
        return layer(x)[0].square().sum()

    assert_close(hessian(function)(input), torch.autograd.functional.hessian(function, input))


def test_vjp(cell):
    layer = make_layer(cell, 5, 7)
    input = draw(4, 3, 5).requires_grad_()
    output, pull_back = vjp(lambda x: layer(x)[0], input)
    (ours,) = pull_back(torch.ones_like(output))
    assert_close(ours, torch.autograd.grad(layer(input)[0].sum(), input)[0])


def test_functional_call(cell):
    layer, other = make_layer(cell, 5, 7, 2), make_layer(cell, 5, 7, 2)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 2
    before = layer(draw(4, 3, 5))
    assert_close(functional_call(layer, dict(other.named_parameters()), (draw(4, 3, 5),)), other(draw(4, 3, 5)))
    assert_close(layer(draw(4, 3, 5)), before, rtol=0, atol=0)


def test_functional_call_reaches_the_given_weights(cell):
    layer = make_layer(cell, 5, 7)
    given = {name: (2 * p.detach()).requires_grad_() for name, p in layer.named_parameters()}
    output, _ = functional_call(layer, given, (draw(4, 3, 5),))
    assert all(d.any() for d in torch.autograd.grad(output.square().sum(), list(given.values())))
