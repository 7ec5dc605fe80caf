"""csrc/cuda built for the CPU, and a layer of torch.nn's shape that runs on it.

A call's stream is the seed of its schedule. The layer does what the caller of the loop does on a GPU: the input's
product before, the gradients of weights and input after.
"""

import ctypes
import subprocess
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p
from pathlib import Path

import torch
from torch.nn.utils.rnn import PackedSequence

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent.parent / "csrc"
CELLS = {"GRU": 0, "LSTM": 1, "RNN_TANH": 2, "RNN_RELU": 3}
GATES = {"GRU": 3, "LSTM": 4, "RNN_TANH": 1, "RNN_RELU": 1}
SAVED = {"GRU": 4, "LSTM": 4, "RNN_TANH": 0, "RNN_RELU": 0}
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
FORMS = {"grid": 0, "cluster": 1}
STATUS = (
    "ok", "bad_argument", "no_workspace", "not_supported", "too_large", "too_many_blocks", "launch_failed",
)  # fmt: skip


def structure(**fields):
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


Direction = structure(
    **dict.fromkeys(("x_gates", "weight_hh", "bias_hh", "h_0", "c_0", "output", "h_n", "c_n", "reserve"), c_void_p),
    **dict.fromkeys(("d_output", "d_h_n", "d_c_n", "d_gates", "d_h_0", "d_c_0"), c_void_p),
    **dict.fromkeys(("x_stride", "output_stride"), c_int64),
    **dict.fromkeys(("reverse", "unused"), c_int32),
)
Loop = structure(
    **dict.fromkeys(("cell", "dtype", "tf32", "directions"), c_int32),
    **dict.fromkeys(("hidden_size", "steps", "batch"), c_int64),
    **dict.fromkeys(("active", "by_step", "by_row", "hx_row"), c_void_p),
    direction=Direction * 2,
    workspace=c_void_p,
    workspace_size=c_int64,
    max_sms=c_int32,
    unused=c_int32,
)
Limits = structure(**dict.fromkeys(("sms", "shared_memory", "cluster", "unused"), c_int32))
Plan = structure(**dict.fromkeys(("groups", "blocks", "units", "shared_memory"), c_int32), workspace=c_int64)


def build(folder: Path, csrc: Path = CSRC, flags: tuple[str, ...] = ("-O1", "-Wall", "-Werror")) -> ctypes.CDLL:
    """The library, from the sources in `csrc`."""
    library = folder / "stand_in.so"
    subprocess.run(
        ["g++", "-std=c++17", "-fPIC", "-shared", "-Wno-unknown-pragmas",
         f"-I{csrc / 'cuda'}", f"-I{HERE}", *flags, HERE / "stand_in.cpp", "-o", library],
        check=True,
    )  # fmt: skip
    found = ctypes.CDLL(str(library))
    found.loop_plan.argtypes = (POINTER(Loop), c_int32, c_int32, POINTER(Limits), POINTER(Plan))
    found.loop_forward.argtypes = found.loop_backward.argtypes = (POINTER(Loop), c_int32, c_void_p)
    found.loop_error.restype = c_char_p
    found.stand_in_limits.argtypes = (POINTER(Limits),)
    return found


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def unless_zero(tensor):
    """What may be left out, is."""
    return pointer(tensor) if tensor.any() else None


class Launch:
    """How a layer is run: the library, the form, the seed and the device."""

    def __init__(self, library, form="grid", *, seed=0, sms=132, shared_memory=232448, cluster=16, tf32=False):
        self.library, self.form, self.seed, self.tf32 = library, FORMS[form], seed, tf32
        self.limits = Limits(sms, shared_memory, cluster, 0)
        self.plans = []

    def run(self, loop, backward: bool):
        self.library.stand_in_limits(self.limits)
        plan = Plan()
        status = self.library.loop_plan(loop, self.form, backward, self.limits, plan)
        assert STATUS[status] == "ok", STATUS[status]
        self.plans.append(plan)
        workspace = torch.full((plan.workspace,), 0xFF, dtype=torch.uint8)
        loop.workspace, loop.workspace_size = workspace.data_ptr(), plan.workspace
        call = self.library.loop_backward if backward else self.library.loop_forward
        status = call(loop, self.form, self.seed)
        assert STATUS[status] == "ok", self.library.loop_error(status).decode()


class Rows:
    """Which rows of the input run at which step: by lengths of (T, B) or (B, T), or as in a PackedSequence."""

    def __init__(self, active, by_step, by_row=None, hx_row=None):
        self.active, self.by_step, self.by_row, self.hx_row = active, by_step, by_row, hx_row

    @classmethod
    def packed(cls, batch_sizes):
        return cls(batch_sizes, batch_sizes.cumsum(0) - batch_sizes)

    @classmethod
    def padded(cls, steps, batch, lengths, batch_first):
        order = lengths.argsort(descending=True, stable=True)
        time = torch.arange(steps)
        active = (time[:, None] < lengths).sum(1)
        if batch_first:
            return cls(active, time, order * steps, order)
        return cls(active, time * batch, order, order)

    def before(self, states, initial, reverse):
        """The state before each row of `states`: that of the step before it, or the initial one."""
        found = torch.zeros_like(states)
        batch = initial.size(0)
        by_row = torch.arange(batch) if self.by_row is None else self.by_row
        hx_row = torch.arange(batch) if self.hx_row is None else self.hx_row
        last = initial.to(states.dtype).clone()
        times = range(len(self.active))
        for t in reversed(times) if reverse else times:
            rows, state = by_row[: self.active[t]] + self.by_step[t], hx_row[: self.active[t]]
            found[rows] = last[state]
            last[state] = states[rows]
        return found


class Recurrence(torch.autograd.Function):
    @staticmethod
    def loop(rows, mode, launch, h_0, weights):
        loop = Loop()
        loop.cell, loop.dtype, loop.tf32 = CELLS[mode], DTYPES[h_0.dtype], launch.tf32
        loop.directions, loop.batch, loop.hidden_size = h_0.shape
        loop.steps = len(rows.active)
        for name in ("active", "by_step", "by_row", "hx_row"):
            setattr(loop, name, pointer(getattr(rows, name)))
        for d, direction in enumerate(loop.direction[: loop.directions]):
            direction.weight_hh, direction.bias_hh = pointer(weights[d][1]), pointer(weights[d][3])
            direction.h_0, direction.reverse = unless_zero(h_0[d]), d
            direction.output_stride = loop.directions * loop.hidden_size
        return loop

    @staticmethod
    def forward(ctx, rows, mode, launch, train, input, h_0, c_0, *weights):
        directions, _, hidden = h_0.shape
        weights = [weights[i : i + 4] for i in range(0, len(weights), 4)]
        loop = Recurrence.loop(rows, mode, launch, h_0, weights)
        lstm, slots = mode == "LSTM", 1 + (mode == "LSTM") + SAVED[mode]
        padded = (hidden + 15) // 16 * 16
        poison = float("nan") if rows.by_row is None else 0.0
        output = input.new_full((input.size(0), directions * hidden), poison)
        h_n, c_n = torch.full_like(h_0, float("nan")), torch.full_like(c_0, float("nan"))
        reserve = input.new_full((directions, input.size(0), slots, padded), float("nan"), dtype=torch.float32)
        kept = []
        for d, direction in enumerate(loop.direction[:directions]):
            weight_ih, _, bias_ih, _ = weights[d]
            kept.append(torch.nn.functional.linear(input, weight_ih, bias_ih))
            direction.x_gates, direction.x_stride = pointer(kept[-1]), kept[-1].stride(0)
            direction.output = pointer(output[:, d * hidden :])
            direction.h_n = pointer(h_n[d])
            if train:
                direction.reserve = pointer(reserve[d])
            if lstm:
                direction.c_0, direction.c_n = unless_zero(c_0[d]), pointer(c_n[d])
        launch.run(loop, backward=False)
        ctx.save_for_backward(input, h_0, c_0, reserve, *(w for ws in weights for w in ws))
        ctx.rows, ctx.mode, ctx.launch = rows, mode, launch
        return output, h_n, c_n

    @staticmethod
    def backward(ctx, d_output, d_h_n, d_c_n):
        input, h_0, c_0, reserve, *weights = ctx.saved_tensors
        rows, mode, launch = ctx.rows, ctx.mode, ctx.launch
        weights = [weights[i : i + 4] for i in range(0, len(weights), 4)]
        directions, _, hidden = h_0.shape
        gates, lstm, slots = GATES[mode], mode == "LSTM", 4 if mode == "GRU" else GATES[mode]
        loop = Recurrence.loop(rows, mode, launch, h_0, weights)
        d_output, d_h_n, d_c_n = d_output.contiguous(), d_h_n.contiguous(), d_c_n.contiguous()
        poison = float("nan") if rows.by_row is None else 0.0
        d_gates = input.new_full((directions, input.size(0), slots, hidden), poison)
        d_h_0, d_c_0 = torch.full_like(h_0, float("nan")), torch.full_like(c_0, float("nan"))
        for d, direction in enumerate(loop.direction[:directions]):
            direction.reserve = pointer(reserve[d])
            direction.d_output = pointer(d_output[:, d * hidden :]) if d_output.any() else None
            direction.d_h_n, direction.d_gates = unless_zero(d_h_n[d]), pointer(d_gates[d])
            direction.d_h_0 = pointer(d_h_0[d])
            if lstm:
                direction.c_0, direction.d_c_n = unless_zero(c_0[d]), unless_zero(d_c_n[d])
                direction.d_c_0 = pointer(d_c_0[d])
        launch.run(loop, backward=True)
        d_input, d_weights = torch.zeros_like(input), []
        for d, (weight_ih, _, bias_ih, _) in enumerate(weights):
            # [n_x r z n_h] of GRU: the input's gates, and the state's
            of_input = d_gates[d, :, [1, 2, 0] if mode == "GRU" else slice(None)].flatten(1)
            of_state = d_gates[d, :, slots - gates :].flatten(1)
            h = rows.before(reserve[d, :, 0, :hidden], h_0[d], d == 1).to(input.dtype)
            d_input += of_input @ weight_ih
            d_weights += [of_input.T @ input, of_state.T @ h]
            d_weights += [g if bias_ih is None else g.sum(0) for g in (of_input, of_state)]
        if weights[0][2] is None:
            d_weights = [d_weights[i] if i % 4 < 2 else None for i in range(len(d_weights))]
        return None, None, None, None, d_input, d_h_0, d_c_0 if lstm else torch.zeros_like(c_0), *d_weights


class Layer(torch.nn.RNNBase):
    """The settings and weights of `layer`, one of torch.nn's with one layer, run by `launch`."""

    def __init__(self, layer: torch.nn.RNNBase, launch: Launch):
        super().__init__(
            layer.mode, layer.input_size, layer.hidden_size, bias=layer.bias, batch_first=layer.batch_first,
            bidirectional=layer.bidirectional,
        )  # fmt: skip
        self.load_state_dict(layer.state_dict())
        self.to(next(layer.parameters()).dtype)
        self.launch = launch

    def forward(self, input, hx=None, *, lengths=None):
        data = input
        if isinstance(input, PackedSequence):
            assert input.sorted_indices is None
            data, rows, batch = input.data, Rows.packed(input.batch_sizes), int(input.batch_sizes[0])
        else:
            batch, steps = input.shape[:2] if self.batch_first else input.shape[1::-1]
            if lengths is None:
                lengths = torch.full((batch,), steps)
            rows = Rows.padded(steps, batch, lengths, self.batch_first)
        h_0, c_0 = hx if self.mode == "LSTM" and hx is not None else (hx, None)
        if h_0 is None:
            h_0 = data.new_zeros(2 if self.bidirectional else 1, batch, self.hidden_size)
        c_0 = torch.zeros_like(h_0) if c_0 is None else c_0
        weights = [getattr(self, name) for names in self._all_weights for name in names]
        if not self.bias:
            weights = [w for i in range(0, len(weights), 2) for w in (*weights[i : i + 2], None, None)]
        flat = data if isinstance(input, PackedSequence) else data.flatten(0, 1)
        output, h_n, c_n = Recurrence.apply(
            rows, self.mode, self.launch, torch.is_grad_enabled(), flat, h_0, c_0, *weights
        )
        if isinstance(input, PackedSequence):
            output = PackedSequence(output, *input[1:])
        else:
            output = output.view(*input.shape[:2], -1)
        return output, (h_n, c_n) if self.mode == "LSTM" else h_n
