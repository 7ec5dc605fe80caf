"""JAX: the cell's equations in `jax.lax.scan`, compiled by `jax.jit`. Its threads are XLA's, as many as the process has
processors."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..cases import Case


def steps() -> dict[str, Callable]:
    """(input's part of the gates, state's part of the gates, states) to states, by cell; the first is the output."""
    import jax.numpy as jnp
    from jax.nn import sigmoid

    def rnn(gates_x, gates_h, states):
        return (jnp.tanh(gates_x + gates_h),)

    def gru(gates_x, gates_h, states):
        (h,) = states
        (r_x, z_x, n_x), (r_h, z_h, n_h) = (jnp.split(gates, 3, axis=-1) for gates in (gates_x, gates_h))
        r, z = sigmoid(r_x + r_h), sigmoid(z_x + z_h)
        n = jnp.tanh(n_x + r * n_h)
        return ((1 - z) * n + z * h,)

    def lstm(gates_x, gates_h, states):
        _, c = states
        i, f, g, o = jnp.split(gates_x + gates_h, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * jnp.tanh(g)
        return sigmoid(o) * jnp.tanh(c), c

    return {"GRU": gru, "LSTM": lstm, "RNN": rnn}


def jax(layer: torch.nn.Module, case: Case, x: Tensor, threads: int) -> Callable[[], list]:
    import jax
    import jax.numpy as jnp

    step, shape = steps()[case.cell], case.shape
    parameters = [jnp.asarray(p.detach().numpy()) for p in layer.parameters()]
    states = (jnp.zeros((shape.B, shape.H)),) * (2 if case.cell == "LSTM" else 1)

    def one_way(x, weights, reverse):
        weight_ih, weight_hh, bias_ih, bias_hh = weights

        def advance(states, gates_x):
            states = step(gates_x, states[0] @ weight_hh.T + bias_hh, states)
            return states, states[0]

        return jax.lax.scan(advance, states, x @ weight_ih.T + bias_ih, reverse=reverse)[1]

    def forward(x, parameters):
        weights = iter(zip(*[iter(parameters)] * 4, strict=True))
        for _ in range(shape.L):
            x = jnp.concatenate([one_way(x, next(weights), d == 1) for d in range(shape.D)], axis=-1)
        return x

    def forward_backward(x, parameters):
        def loss(x, parameters):
            output = forward(x, parameters)
            return output.sum(), output

        (_, output), (d_x, d_parameters) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(x, parameters)
        return output, d_x, *d_parameters

    run = jax.jit(forward_backward if case.mode == "training" else lambda x, p: (forward(x, p),))
    x = jnp.asarray(x.numpy())
    return lambda: jax.block_until_ready(run(x, parameters))
