"""The oracle: one recurrent layer as a plain loop over its equations.

Nothing here is fused and no backward is written by hand, so autograd differentiates it any number of times, in
either mode, and `torch.func` transforms it. Tests run it in float64; the operators fall back to it where they are
asked for a derivative of a derivative. The equations are those of the torch.nn.RNN, LSTM and GRU pages.

T steps, B batch, I input, H hidden, D directions; S is the size of h, which is H but where an LSTM has a projection,
weight_hr (S, H); `x W^T + b` is `torch.nn.functional.linear(x, W, b)`.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear


def gru_step(gates_x: Tensor, h: Tensor, c: None, weight_hh: Tensor, bias_hh: Tensor | None):
    """r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z); n = tanh(x_n + r h_n); h' = (1 - z) n + z h."""
    x_r, x_z, x_n = gates_x.chunk(3, -1)
    h_r, h_z, h_n = linear(h, weight_hh, bias_hh).chunk(3, -1)
    r = torch.sigmoid(x_r + h_r)
    z = torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return n + z * (h - n), None


def lstm_step(gates_x: Tensor, h: Tensor, c: Tensor, weight_hh: Tensor, bias_hh: Tensor | None):
    """i, f, o = sigmoid(.), g = tanh(.); c' = f c + i g; h' = o tanh(c')."""
    i, f, g, o = (gates_x + linear(h, weight_hh, bias_hh)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def rnn_tanh_step(gates_x: Tensor, h: Tensor, c: None, weight_hh: Tensor, bias_hh: Tensor | None):
    """h' = tanh(x + h)."""
    return torch.tanh(gates_x + linear(h, weight_hh, bias_hh)), None


def rnn_relu_step(gates_x: Tensor, h: Tensor, c: None, weight_hh: Tensor, bias_hh: Tensor | None):
    """h' = relu(x + h)."""
    return torch.relu(gates_x + linear(h, weight_hh, bias_hh)), None


STEPS = {"gru": gru_step, "lstm": lstm_step, "rnn_tanh": rnn_tanh_step, "rnn_relu": rnn_relu_step}


def by_name(weights: list[Tensor]):
    """weight_ih, weight_hh, bias_ih, bias_hh, weight_hr of one direction; None for those that are not there."""
    weight_ih, weight_hh, *others = weights
    weight_hr = others.pop() if len(others) % 2 else None
    return weight_ih, weight_hh, *(others or (None, None)), weight_hr


def state_sizes(weights: list[Tensor], directions: int) -> tuple[int, int]:
    """S and H: how wide h is, and how wide c."""
    _, weight_hh, _, _, weight_hr = by_name(weights[: len(weights) // directions])
    return weight_hh.size(-1), (weight_hh if weight_hr is None else weight_hr).size(-1)


def direction(
    steps: list[Tensor], h: Tensor, c: Tensor | None, weights: list[Tensor], active, cell: str, reverse: bool
):
    """One direction over a list of steps, each (B_t, I); `active(t)` is the mask (B,) of rows that run at step t, or
    None where all of `h` does, or the number of leading rows that do. Returns the outputs by step, h and c."""
    weight_ih, weight_hh, bias_ih, bias_hh, weight_hr = by_name(weights)

    def step(gates_x, h, c):
        h, c = STEPS[cell](gates_x, h, c, weight_hh, bias_hh)
        return h if weight_hr is None else linear(h, weight_hr), c

    outputs = [None] * len(steps)
    for t in reversed(range(len(steps))) if reverse else range(len(steps)):
        gates_x = linear(steps[t], weight_ih, bias_ih)
        rows = active(t)
        if isinstance(rows, int):
            h_t, c_t = step(gates_x, h[:rows], None if c is None else c[:rows])
            outputs[t] = h_t
            h = torch.cat([h_t, h[rows:]])
            c = None if c is None else torch.cat([c_t, c[rows:]])
            continue
        h_t, c_t = step(gates_x, h, c)
        if rows is None:
            outputs[t], h, c = h_t, h_t, c_t
        else:
            mask = rows.unsqueeze(-1)
            outputs[t] = torch.where(mask, h_t, 0)
            h = torch.where(mask, h_t, h)
            c = None if c is None else torch.where(mask, c_t, c)
    return outputs, h, c


def rnn_layer(
    input: Tensor,
    h_0: Tensor | None,
    c_0: Tensor | None,
    weights: list[Tensor],
    lengths: Tensor | None,
    batch_sizes: Tensor | None,
    cell: str,
    bidirectional: bool,
) -> list[Tensor]:
    """One layer, one or two directions: the contract of the operator `seq2seq_fast::rnn_layer`.

    Args:
        input: (T, B, I); or (sum(batch_sizes), I), the data of a PackedSequence; or (B, I), a single step.
        h_0, c_0: (D, B, S) and (D, B, H), for a single step without D; zeros where None. `c_0` is for the LSTM alone.
        weights: for each direction weight_ih (G*H, I), weight_hh (G*H, S), with bias bias_ih, bias_hh (G*H) and, with
            a projection, weight_hr (S, H).
        lengths: (B,) int64, how many steps of each row count; steps after them give zeros. None: all T.
        batch_sizes: (T,) int64 on the CPU, as in a PackedSequence.
        cell: "gru", "lstm", "rnn_tanh" or "rnn_relu".

    Returns:
        [output, h_n], for the LSTM [output, h_n, c_n]; output (T, B, D*S), (sum(batch_sizes), D*S) or (B, S).
    """
    single_step = input.dim() == 2 and batch_sizes is None
    if batch_sizes is not None:
        sizes = batch_sizes.tolist()
        steps, batch, active = list(input.split(sizes)), sizes[0], sizes.__getitem__
    elif single_step:
        steps, batch = [input], input.size(0)
    else:
        steps, batch = list(input.unbind(0)), input.size(1)
    if batch_sizes is None:
        active = (lambda t: None) if lengths is None else (lambda t: t < lengths)

    directions = 2 if bidirectional else 1
    per_direction = len(weights) // directions
    outputs, h_n, c_n = [], [], []
    for d in range(directions):
        h, c = (
            steps[0].new_zeros(batch, size) if state is None else state if single_step else state[d]
            for state, size in zip((h_0, c_0), state_sizes(weights, directions), strict=True)
        )
        w = weights[d * per_direction : (d + 1) * per_direction]
        output, h, c = direction(steps, h, c if cell == "lstm" else None, w, active, cell, reverse=d == 1)
        outputs.append(output)
        h_n.append(h)
        c_n.append(c)
    if single_step:
        states = [h_n, c_n] if cell == "lstm" else [h_n]
        return [outputs[0][0], *(s[0] for s in states)]
    by_step = [torch.cat(o, -1) for o in zip(*outputs, strict=True)]
    output = torch.stack(by_step) if batch_sizes is None else torch.cat(by_step)
    return [output, torch.stack(h_n)] + ([torch.stack(c_n)] if cell == "lstm" else [])
