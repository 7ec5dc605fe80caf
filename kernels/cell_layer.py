"""A layer of recurrent cells, step by step. Contract: reference.rnn_layer, and the operators of ops.py.

The reserve is (D, rows, slots, padded H) with the rows of input in their order; slots: h', c', what the cell saves.
"""

import torch
from torch import Tensor

from ..reserve import reserve_shape
from .cell_arguments import Steps, check, directions, state_of, unit_rows
from .cell_step import CELLS, cell_step
from .cell_step_backward import cell_step_backward


def layer(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, train: bool) -> list[Tensor]:
    """[output, h_n], for the LSTM [output, h_n, c_n], and with `train` the reserve."""
    kind = CELLS[cell]
    check(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, kind.gates)
    steps, hidden, count = Steps(input, batch_sizes), weights[1].size(1), 2 if bidirectional else 1
    rows = unit_rows(input.reshape(steps.rows, input.size(-1)))
    lengths = lengths_on(input.device, lengths)
    output = input.new_empty(steps.rows, count * hidden)
    h_n = input.new_empty(count, steps.batch, hidden)
    c_n = torch.empty_like(h_n) if kind.has_c else None
    reserve = None
    if train:
        reserve = input.new_empty(reserve_shape(cell, count, steps.rows, hidden), dtype=sum_dtype(input.dtype))
    for d, (weight_ih, weight_hh, bias_ih, bias_hh) in directions(weights, bidirectional):
        h, c = state_of(h_0, d), state_of(c_0, d)
        x = rows
        if not steps.single:
            # the products of all steps at once
            x = rows @ weight_ih.T if bias_ih is None else torch.addmm(bias_ih, rows, weight_ih.T)
            weight_ih = bias_ih = None
        # the state that a step reads is not the one it writes; the last step writes h_n
        states = [(h_n[d], c_n[d] if kind.has_c else None)]
        states.append(tuple(s if s is None else torch.empty_like(s) for s in states[0]))
        left = len(steps.active)
        for t in steps.order(d == 1):
            left -= 1
            h_new, c_new = states[left % 2]
            cell_step(
                cell, x[steps[t]], h, c, weight_ih, weight_hh, bias_ih, bias_hh,
                output[steps[t], d * hidden : (d + 1) * hidden], h_new, c_new,
                None if reserve is None else reserve[d, steps[t]], lengths=lengths, active=steps.active[t], t=t,
            )  # fmt: skip
            h, c = h_new, c_new
    finals = [s[0] if steps.single else s for s in (h_n, c_n) if s is not None]
    return [output.view(*input.shape[:-1], count * hidden), *finals, *([] if reserve is None else [reserve])]


def rnn_layer(*args) -> list[Tensor]:
    return layer(*args, train=False)


def rnn_layer_train(*args) -> list[Tensor]:
    return layer(*args, train=True)


def rnn_layer_backward(
    d_outputs, reserve, needs, input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional
) -> list[Tensor]:
    """The gradients of input, h_0, c_0 and weights, empty where `needs` does not ask or there is no argument."""
    steps, kind, hidden = Steps(input, batch_sizes), CELLS[cell], weights[1].size(1)
    rows = input.reshape(steps.rows, input.size(-1))
    lengths = lengths_on(input.device, lengths)
    if lengths is not None:
        # what lies in the padding, NaN even, is no part of the weights' gradients
        runs = torch.arange(len(steps.active), device=input.device)[:, None] < lengths
        rows = rows.where(runs.view(-1, 1), 0)
    d_input, d_weights = None, []
    d_states = [
        torch.empty_like(s) if s is not None and n else None for s, n in zip((h_0, c_0), needs[1:3], strict=True)
    ]
    for d, (weight_ih, weight_hh, bias_ih, _) in directions(weights, bidirectional):
        d_gates, h, d_h, d_c = through_time(
            steps, d, d_outputs, reserve[d, :, :, :hidden], (h_0, c_0), weight_hh, lengths, cell
        )
        for d_state, gradient in zip(d_states, (d_h, d_c), strict=True):
            if d_state is not None:
                (d_state if steps.single else d_state[d]).copy_(gradient)
        of_input, of_state = gates_of(d_gates, kind)
        if needs[0]:
            through = of_input @ reorder(weight_ih, kind.d_input_gate)
            d_input = through if d_input is None else d_input.add_(through)
        if needs[3]:
            d_weights += weight_gradients(of_input, of_state, rows, h.to(input.dtype), kind, bias_ih is not None)
    d_input = [d_input.view(input.shape) if needs[0] else None]
    found = [*d_input, *d_states, *(d_weights or [None] * len(weights))]
    return [input.new_empty(0) if gradient is None else gradient for gradient in found]


def through_time(steps: Steps, d: int, d_outputs, saved: Tensor, initial, weight_hh: Tensor, lengths, cell: str):
    """One direction's steps taken back: d_gates (rows, slots, H), h before each step (rows, H), d_h_0 and d_c_0."""
    kind, hidden, dtype = CELLS[cell], saved.size(-1), weight_hh.dtype
    d_output = d_outputs[0]
    if d_output is not None:
        d_output = unit_rows(d_output.reshape(steps.rows, -1)[:, d * hidden : (d + 1) * hidden])

    def state(x):
        return saved.new_zeros(steps.batch, hidden) if x is None else state_of(x, d).to(saved.dtype)

    h = steps.before(saved[:, 0], state(initial[0]), d == 1)
    d_h, c, d_c = state(d_outputs[1]).clone(memory_format=torch.contiguous_format), None, None
    if kind.has_c:
        c = steps.before(saved[:, 1], state(initial[1]), d == 1)
        d_c = state(d_outputs[2]).clone(memory_format=torch.contiguous_format)
    d_gates = weight_hh.new_empty(steps.rows, kind.d_slots, hidden)
    _, of_state = gates_of(d_gates, kind)
    product, product_rows = torch.empty_like(d_h, dtype=dtype), 0
    for t in steps.order(d == 0):
        step = steps[t]
        cell_step_backward(
            cell, None if d_output is None else d_output[step], product, h[step], None if c is None else c[step],
            saved[step], d_h, d_c, d_gates[step], product_rows=product_rows, lengths=lengths, t=t,
        )  # fmt: skip
        product_rows = steps.active[t]
        torch.mm(of_state[step], weight_hh, out=product[:product_rows])
    d_h[:product_rows] += product[:product_rows]
    return d_gates, h, d_h, d_c


def gates_of(d_gates: Tensor, kind) -> tuple[Tensor, Tensor]:
    """The slots that go through weight_ih, in the order of d_input_gate, and those that go through weight_hh."""
    flat, hidden = d_gates.flatten(1), d_gates.size(-1)
    return flat[:, : kind.gates * hidden], flat[:, kind.d_state_slot * hidden :]


def weight_gradients(of_input: Tensor, of_state: Tensor, rows: Tensor, h: Tensor, kind, bias: bool) -> list[Tensor]:
    """Of weight_ih, weight_hh and, with bias, bias_ih, bias_hh, from the rows of input and the state before each."""
    back = [kind.d_input_gate.index(gate) for gate in range(kind.gates)]
    weights = [reorder(of_input.T @ rows, back), of_state.T @ h]
    return weights + ([reorder(bias_gradient(of_input), back), bias_gradient(of_state)] if bias else [])


def reorder(weight: Tensor, gates) -> Tensor:
    """The gates' blocks of rows in that order."""
    if list(gates) == sorted(gates):
        return weight
    blocks = weight.chunk(len(gates))
    return torch.cat([blocks[gate] for gate in gates])


def bias_gradient(d_gates: Tensor) -> Tensor:
    return d_gates.sum(0, dtype=sum_dtype(d_gates.dtype)).to(d_gates.dtype)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What sums are taken in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def lengths_on(device: torch.device, lengths: Tensor | None) -> Tensor | None:
    return lengths if lengths is None else lengths.to(device).contiguous()
