"""The recurrent operators as ops.py defines them, called directly: arguments, and the comparison with the reference."""

import torch
from error_rule import error

from seq2seq_fast import ops, reference

# gates of each cell
GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}


def arguments(cell, dtype, input_shape, batch, hidden, *, bias=True, state=True, bidirectional=False, lengths=None,
              batch_sizes=None, device="cpu"):  # fmt: skip
    """The operator's arguments, of values that are exact in every dtype."""
    generator = torch.Generator().manual_seed(7)
    directions = 2 if bidirectional else 1

    def random(*shape):
        return (torch.randint(-32, 33, shape, generator=generator) / 64).to(device, dtype)

    single = len(input_shape) == 2 and batch_sizes is None
    state_shape = (batch, hidden) if single else (directions, batch, hidden)
    rows = GATES[cell] * hidden
    shapes = [(rows, input_shape[-1]), (rows, hidden), *([(rows,), (rows,)] if bias else [])]
    weights = [random(*shape) / max(1, hidden) ** 0.5 for _ in range(directions) for shape in shapes]
    return (
        random(*input_shape),
        random(*state_shape) if state else None,
        random(*state_shape) if state and cell == "lstm" else None,
        weights,
        lengths,
        batch_sizes,
        cell,
        bidirectional,
    )


def cast(args, dtype):
    """args with tensors of floats in dtype, leaves of autograd."""

    def leaf(x):
        return x if x is None else x.detach().to(dtype).requires_grad_()

    return *(leaf(x) for x in args[:3]), [leaf(w) for w in args[3]], *args[4:]


def differentiate(args, d_outputs):
    """The reference's outputs and its gradients of input, states and weights, None where there is no argument."""
    outputs = reference.rnn_layer(*args)
    leaves = [*args[:3], *args[3]]
    there = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(outputs, there, d_outputs))
    return [x.detach() for x in outputs], [None if x is None else next(found) for x in leaves]


def check(args, operators):
    """Forward and training at most twice as far off as torch, gradients three times, and a few roundings.

    operators: what has the functions rnn_layer, rnn_layer_train and rnn_layer_backward.
    """
    outputs = operators.rnn_layer(*args)
    generator = torch.Generator().manual_seed(3)
    d_outputs = [(torch.randint(-8, 9, x.shape, generator=generator) / 8).to(x) for x in outputs]
    *trained, reserve = operators.rnn_layer_train(*args)
    assert reserve.shape == ops._reserve_shape(args[0], args[3], *args[6:])
    gradients = operators.rnn_layer_backward(d_outputs, reserve, [True] * 4, *args)
    dtype = outputs[0].dtype
    theirs, d_theirs = differentiate(cast(args, dtype), d_outputs)
    exact, d_exact = differentiate(cast(args, torch.float64), [d.double() for d in d_outputs])

    def compare(ours, theirs, exact, times):
        for k, (got, torchs, wanted) in enumerate(zip(ours, theirs, exact, strict=True)):
            if wanted is None:
                assert got.numel() == 0
                continue
            assert (got.shape, got.dtype) == (torchs.shape, dtype), k
            scale = wanted.abs().max().item() if wanted.numel() else 0.0
            rounding = 1e-12 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
            assert error(got, wanted) <= times * error(torchs, wanted) + rounding * scale, k

    compare(outputs, theirs, exact, 2)
    compare(trained, theirs, exact, 2)
    compare(gradients, d_theirs, d_exact, 3)
