"""The arguments of a layer of cells: their checks, where each step's rows are, and layouts that the kernels read.

The checks are those of csrc/ops.cpp: a kernel given a wrong shape would read what is not its own.
"""

import torch
from torch import Tensor


def check(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, gates: int) -> None:
    """Raises RuntimeError or ValueError, naming the argument that is wrong."""
    packed, count = batch_sizes is not None, 2 if bidirectional else 1
    single = input.dim() == 2 and not packed
    _expect(input.dim() == 2 if packed else input.dim() in (2, 3), f"input: got {input.dim()} dimensions")
    _expect(not (single and bidirectional), "input: a single step (B, I) has one direction, got bidirectional=True")
    _expect(
        len(weights) in (2 * count, 4 * count),
        f"weights: got {len(weights)} tensors for {count} directions; on CUDA a projection is not among them",
    )
    if weights[0].dtype != input.dtype and not single:
        raise ValueError(f"RNN input dtype ({input.dtype}) does not match weight dtype ({weights[0].dtype})")
    hidden, width = weights[1].size(-1), input.size(-1)
    shapes = ((gates * hidden, width), (gates * hidden, hidden), (gates * hidden,), (gates * hidden,))
    for k, weight in enumerate(weights):
        kind = k % (len(weights) // count)
        _same(("weight_ih", "weight_hh", "bias_ih", "bias_hh")[kind], weight, shapes[kind], input)
    if packed:
        sizes = batch_sizes.tolist()
        _expect(len(sizes) > 0, "batch_sizes: Expected sequence length to be larger than 0 in RNN")
        ordered = all(a >= b for a, b in zip(sizes, [*sizes[1:], 0], strict=True))
        _expect(ordered, "batch_sizes: expected sizes that never increase and are not negative")
        _expect(sum(sizes) == input.size(0), f"batch_sizes: expected to sum to the {input.size(0)} rows of input")
        _expect(lengths is None, "lengths: a packed input carries its own, as batch_sizes; got both")
    else:
        _expect(single or input.size(0) > 0, "input: Expected sequence length to be larger than 0 in RNN")
    batch = sizes[0] if packed else input.size(-2)
    if lengths is not None:
        _expect(not single, "lengths: a single step (B, I) has none")
        _expect(lengths.shape == (batch,) and lengths.dtype == torch.int64, f"lengths: expected ({batch},) of int64")
        if lengths.is_cpu and batch:
            least, most = lengths.aminmax()
            _expect(least >= 0 and most <= input.size(0), f"lengths: expected 0 <= length <= {input.size(0)}")
    _expect(c_0 is None or cell == "lstm", f"c_0: only the LSTM has a cell state, got one for {cell}")
    for name, state in (("h_0", h_0), ("c_0", c_0)):
        if state is not None:
            _same(name, state, (batch, hidden) if single else (count, batch, hidden), input)


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def _same(name: str, tensor: Tensor, shape: tuple[int, ...], input: Tensor) -> None:
    _expect(tensor.shape == shape, f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    _expect(tensor.dtype == input.dtype, f"{name}: expected dtype {input.dtype} like input, got {tensor.dtype}")
    _expect(tensor.device == input.device, f"{name}: expected a tensor on {input.device}, got one on {tensor.device}")


class Steps:
    """The time of a layer: where each step's rows are in the input taken as (rows, I)."""

    def __init__(self, input: Tensor, batch_sizes: Tensor | None):
        self.single = input.dim() == 2 and batch_sizes is None
        if batch_sizes is not None:
            self.active = batch_sizes.tolist()
        else:
            self.active = [input.size(0)] if self.single else [input.size(1)] * input.size(0)
        self.batch = self.active[0]
        self.first = [0]
        for rows in self.active:
            self.first.append(self.first[-1] + rows)
        self.rows = self.first[-1]

    def __getitem__(self, t: int) -> slice:
        return slice(self.first[t], self.first[t + 1])

    def order(self, reverse: bool):
        return reversed(range(len(self.active))) if reverse else range(len(self.active))

    def before(self, states: Tensor, initial: Tensor, reverse: bool) -> Tensor:
        """(rows, H): the state before each step, from `states` after each."""
        pieces = []
        for t, active in enumerate(self.active):
            previous = t + 1 if reverse else t - 1
            known = min(active, self.active[previous]) if 0 <= previous < len(self.active) else 0
            pieces += [states[self.first[previous] : self.first[previous] + known]] if known else []
            pieces += [initial[known:active]]
        return torch.cat(pieces)


def unit_rows(x: Tensor | None) -> Tensor | None:
    """x with elements of a row next to each other."""
    return x if x is None or x.stride(-1) == 1 else x.contiguous()


def state_of(state: Tensor | None, d: int) -> Tensor | None:
    """A direction's part of h_0 or c_0; that of a single step has no dimension for it."""
    return unit_rows(state if state is None or state.dim() == 2 else state[d])


def directions(weights: list[Tensor], bidirectional: bool):
    """weight_ih, weight_hh, bias_ih, bias_hh of each direction, contiguous."""
    count = len(weights) // (2 if bidirectional else 1)
    for d in range(2 if bidirectional else 1):
        group = [w.contiguous() for w in weights[d * count : (d + 1) * count]]
        yield d, group if count == 4 else [*group, None, None]
