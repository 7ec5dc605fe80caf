"""Inputs that want a gradient, and their gradients through two ways to the same."""

import torch


def draw(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def assert_same(ours, theirs, inputs):
    torch.testing.assert_close(ours, theirs)
    d_output = torch.randn_like(theirs)
    for mine, true in zip(
        torch.autograd.grad(ours, inputs, d_output), torch.autograd.grad(theirs, inputs, d_output), strict=True
    ):
        torch.testing.assert_close(mine, true)


def assert_the_same_for_further_derivatives(outputs, inputs):
    """The gradients of the fused backward are those that a derivative of them, and a batch of them, start from."""
    d_output = torch.randn_like(outputs)
    once = torch.autograd.grad(outputs, inputs, d_output, retain_graph=True)
    again = torch.autograd.grad(outputs, inputs, d_output, create_graph=True)
    batched = torch.autograd.grad(outputs, inputs, d_output.unsqueeze(0), retain_graph=True, is_grads_batched=True)
    torch.testing.assert_close(again, once)
    torch.testing.assert_close(tuple(x.squeeze(0) for x in batched), once)
