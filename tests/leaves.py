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
