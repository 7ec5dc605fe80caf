"""The operators of a layer on CUDA: by the persistent loop where a form of it is chosen, else step by step in Triton.

Contract: reference.rnn_layer, and the operators of ops.py. The inputs of all steps are multiplied before the loop, and
after the way back the gradients of weights and input are one product each, so that they are the same run after run.
"""

import torch
from torch import Tensor

from ..kernels import cell_layer as stepwise
from ..kernels.cell_arguments import check, directions, state_of, unit_rows
from ..kernels.cell_step import CELLS
from ..reserve import reserve_shape
from . import forms, loop
from .time_axis import TimeAxis


def rnn_layer(*args) -> list[Tensor]:
    forward = _choice(*args, train=False).forward
    return stepwise.rnn_layer(*args) if forward is None else _forward(*args, form=forward, train=False)


def rnn_layer_train(*args) -> list[Tensor]:
    forward = _choice(*args, train=True).forward
    return stepwise.rnn_layer_train(*args) if forward is None else _forward(*args, form=forward, train=True)


def rnn_layer_backward(d_outputs, reserve, needs, *args) -> list[Tensor]:
    backward = _choice(*args, train=True).backward
    if backward is None:
        return stepwise.rnn_layer_backward(d_outputs, reserve, needs, *args)
    return _backward(d_outputs, reserve, needs, *args, form=backward)


def _choice(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, train: bool) -> forms.Choice:
    check(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, CELLS[cell].gates)
    if input.dim() == 2 and batch_sizes is None:
        return forms.Choice(None, None, "a single step")
    batch = int(batch_sizes[0]) if batch_sizes is not None else input.size(1)
    ragged = lengths is not None or batch_sizes is not None
    count = 2 if bidirectional else 1
    hidden = weights[1].size(1)
    return forms.choose(cell, input.dtype, hidden, forms.rounded(batch), count, ragged, train, input.device)


def _forward(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, *, form: str, train: bool):
    time, kind = TimeAxis(input, lengths, batch_sizes), CELLS[cell]
    rows, hidden, count = unit_rows(input.flatten(0, -2)), weights[1].size(1), 2 if bidirectional else 1
    fresh = torch.Tensor.new_zeros if time.runs is not None else torch.Tensor.new_empty
    output = fresh(rows, (rows.size(0), count * hidden))
    h_n = rows.new_empty(count, time.batch, hidden)
    c_n = torch.empty_like(h_n) if kind.has_c else None
    reserve = rows.new_empty(reserve_shape(cell, count, rows.size(0), hidden), dtype=torch.float32)
    call = Call(cell, time, h_0, c_0, weights, bidirectional, output, reserve if train else None)
    for d, (weight_ih, _, bias_ih, _) in directions(weights, bidirectional):
        gates = rows @ weight_ih.T if bias_ih is None else torch.addmm(bias_ih, rows, weight_ih.T)
        call.point(d, x_gates=gates, h_n=h_n[d], c_n=None if c_n is None else c_n[d])
        call.loop.direction[d].x_stride = gates.stride(0)
    call.run(form, backward=False)
    states = [h_n] if c_n is None else [h_n, c_n]
    return [output.view(*input.shape[:-1], count * hidden), *states, *([reserve] if train else [])]


def _backward(
    d_outputs, reserve, needs, input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, *, form: str
):
    time, kind = TimeAxis(input, lengths, batch_sizes), CELLS[cell]
    rows, hidden, count = input.flatten(0, -2), weights[1].size(1), 2 if bidirectional else 1
    if time.runs is not None:
        # what lies in the padding, NaN even, is no part of the weights' gradients
        rows = rows.where(time.runs.view(-1, 1), 0)
    d_output, *d_states_n = (None if d is None else d.contiguous() for d in d_outputs)
    d_output = None if d_output is None else d_output.view(rows.size(0), count * hidden)
    fresh = torch.Tensor.new_zeros if time.runs is not None else torch.Tensor.new_empty
    d_gates = fresh(rows, (count, rows.size(0), kind.d_slots, hidden))
    d_states = [torch.empty_like(s, memory_format=torch.contiguous_format) if s is not None and n else None
                for s, n in zip((h_0, c_0), needs[1:3], strict=True)]  # fmt: skip
    call = Call(cell, time, h_0, c_0, weights, bidirectional, d_output, reserve)
    names = [("d_h_n", "d_h_0"), ("d_c_n", "d_c_0")]
    for d in range(count):
        call.point(d, d_gates=d_gates[d])
        for (d_n, d_0), of_n, of_0 in zip(names, d_states_n, d_states, strict=False):
            call.point(d, **{d_n: None if of_n is None else of_n[d], d_0: None if of_0 is None else of_0[d]})
    call.run(form, backward=True)

    d_input, d_weights = None, []
    for d, (weight_ih, _, bias_ih, _) in directions(weights, bidirectional):
        of_input, of_state = stepwise.gates_of(d_gates[d], kind)
        if needs[0]:
            through = of_input @ stepwise.reorder(weight_ih, kind.d_input_gate)
            d_input = through if d_input is None else d_input.add_(through)
        if needs[3]:
            initial = reserve.new_zeros(time.batch, hidden) if h_0 is None else h_0[d].to(reserve.dtype)
            h = time.before(reserve[d, :, 0, :hidden], initial, d == 1).to(input.dtype)
            d_weights += stepwise.weight_gradients(of_input, of_state, rows, h, kind, bias_ih is not None)
    found = [
        d_input if d_input is None else d_input.view(input.shape),
        *d_states,
        *(d_weights or [None] * len(weights)),
    ]
    return [input.new_empty(0) if gradient is None else gradient for gradient in found]


class Call:
    """A loop.Loop being filled in, with the tensors that it points into."""

    def __init__(self, cell, time: TimeAxis, h_0, c_0, weights, bidirectional, output, reserve):
        self.tensors = []
        self.loop = sizes = loop.Loop()
        sizes.cell, sizes.dtype = loop.CELLS.index(cell), loop.DTYPES.index(weights[0].dtype)
        sizes.tf32 = torch.backends.cudnn.allow_tf32
        sizes.directions, sizes.hidden_size = 2 if bidirectional else 1, weights[1].size(1)
        sizes.steps, sizes.batch, sizes.max_sms = time.steps, time.batch, forms.max_sms
        for name, tensor in (
            ("active", time.active), ("by_step", time.by_step), ("by_row", time.by_row), ("hx_row", time.by_row)
        ):  # fmt: skip
            setattr(sizes, name, self._pointer(tensor))
        hidden = sizes.hidden_size
        for d, (_, weight_hh, _, bias_hh) in directions(weights, bidirectional):
            self.point(
                d, weight_hh=weight_hh, bias_hh=bias_hh, h_0=_dense(state_of(h_0, d)), c_0=_dense(state_of(c_0, d)),
                output=None if output is None else output[:, d * hidden :],
                reserve=None if reserve is None else reserve[d],
            )  # fmt: skip
            sizes.direction[d].reverse = d
            sizes.direction[d].output_stride = sizes.directions * hidden

    def point(self, d: int, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self.loop.direction[d], name, self._pointer(tensor))

    def _pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        self.tensors.append(tensor)
        return tensor.data_ptr()

    def run(self, form: str, backward: bool) -> None:
        if not self.loop.batch:
            return
        library, _ = loop.library()
        device = self.tensors[0].device
        if backward:
            # its output is d_output
            for direction in self.loop.direction[: self.loop.directions]:
                direction.d_output, direction.output = direction.output, None
        _, plan = library.plan(self.loop, form, backward, library.limits(device))
        workspace = torch.empty(plan.workspace, dtype=torch.uint8, device=device)
        self.loop.workspace, self.loop.workspace_size = workspace.data_ptr(), plan.workspace
        library.run(self.loop, form, backward, device)


def _dense(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.contiguous()
