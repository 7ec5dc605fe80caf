"""GRU, LSTM and RNN: torch.nn's layers with a `forward` of our own."""

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .. import dynamo, functional
from ..cuda import forms
from .graphs import Proxy, Scriptable, fx_node


class _Layer(Scriptable, torch.nn.RNNBase):
    """What the three layers share: the way from torch.nn's `forward` to `functional.rnn` and back."""

    def forward(self, input: Tensor | PackedSequence, hx=None, lengths=None):
        """Runs the layer as torch.nn's does. Shapes as on the torch.nn pages.

        Args:
            input: (T, B, I), with `batch_first` (B, T, I), unbatched (T, I), or a PackedSequence.
            hx: h_0 (L*D, B, H), for the LSTM (h_0, c_0); zeros where None. With `proj_size` h_0 has that in place of H.
            lengths: (B,) integers, 0 <= lengths <= T: the steps of each row that count. Results are those of the
                packed sequence: outputs after a row's end are zero and its last state is the one at its end.

        Raises:
            ValueError, RuntimeError, TypeError: an argument of a wrong rank, size, dtype or type, named in the message.
        """
        if isinstance(input, Proxy):
            return fx_node(self, input, hx) if lengths is None else fx_node(self, input, hx, lengths=lengths)
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        states = self._states(hx)
        if not packed:
            self._check_rank(data, states)
        if lengths is not None:
            lengths = _checked_lengths(lengths, input, self.batch_first)
        if self.why_not_fused(input) is not None:
            return self._through_torch(input, hx, lengths)
        weights = self._weights()
        return self._packed(input, states, weights) if packed else self._padded(input, states, weights, lengths)

    def why_not_fused(self, input: Tensor | PackedSequence, hx=None, *, lengths=None) -> str | None:
        """Why this layer gives `input` to torch's own code, in one sentence; None where the fused loop serves it."""
        data = input.data if isinstance(input, PackedSequence) else input
        why_not = functional.why_not_fused(data)
        if why_not is not None or not data.is_cuda:
            return why_not
        if self.proj_size:
            return f"proj_size={self.proj_size} and input is on {data.device}, where the fused loop has no projection"
        choice = self.form_on_cuda(input, lengths=lengths)
        return f"input is on {data.device}, where cuDNN's loop serves: {choice.why}" if choice.forward is None else None

    def form_on_cuda(self, input: Tensor | PackedSequence, hx=None, *, lengths=None) -> forms.Choice:
        """The form of the persistent loop that takes `input`, which is on CUDA, or none, and why."""
        packed = isinstance(input, PackedSequence)
        data = input.data if packed else input
        batch = 1
        if packed:
            batch = int(input.batch_sizes[0])
        elif data.dim() == 3:
            batch = data.size(0 if self.batch_first else 1)
        return forms.choose(
            self.mode.lower(), data.dtype, self.hidden_size, forms.rounded(batch), 2 if self.bidirectional else 1,
            packed or lengths is not None, torch.is_grad_enabled(), data.device,
        )  # fmt: skip

    def _weights(self) -> list[list[Tensor]]:
        """The weights by layer, read by name: `functional_call` and parametrizations replace what a name stands for."""
        parameters = self._parameters
        by_direction = []
        # comprehensions, which are calls in Python 3.11, take 2,200 of 66,000 instructions more
        for names in self._all_weights:
            weights = []
            for name in names:
                weights.append(parameters[name] if name in parameters else getattr(self, name))
            by_direction.append(weights)
        if not self.bidirectional:
            return by_direction
        return [forward + backward for forward, backward in zip(by_direction[::2], by_direction[1::2], strict=True)]

    def _check_rank(self, input: Tensor, states) -> None:
        dim = input.dim()
        if dim != 3 and dim != 2:
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {dim}D instead")
        for state in states:
            if state is not None and state.dim() != dim:
                kind = "batched 3-D" if dim == 3 else "unbatched 2-D"
                name = "h_0" if state is states[0] else "c_0"
                raise RuntimeError(f"For {kind} input, hx should also be {dim}-D but got a {state.dim()}-D {name}")

    def _padded(self, input: Tensor, states, weights, lengths: Tensor | None):
        batched = input.dim() == 3
        if not batched:
            input = input.unsqueeze(1)
            states = tuple(None if s is None else s.unsqueeze(1) for s in states)
        elif self.batch_first:
            input = input.transpose(0, 1)
        output, *states = self._run(input, states, weights, lengths, None)
        if not batched:
            output = output.squeeze(1)
            states = [s.squeeze(1) for s in states]
        elif self.batch_first:
            output = output.transpose(0, 1)
        return output, self._hx(states)

    def _packed(self, input: PackedSequence, states, weights):
        data, batch_sizes, sorted_indices, unsorted_indices = input
        if sorted_indices is not None:
            for name, state in zip(("h_0", "c_0"), states, strict=False):
                if state is not None and (state.dim() != 3 or state.size(1) != sorted_indices.numel()):
                    raise RuntimeError(
                        f"{name}: Expected hidden size (L*D, {sorted_indices.numel()}, H), got {list(state.shape)}"
                    )
            states = tuple(None if s is None else s.index_select(1, sorted_indices) for s in states)
        output, *states = self._run(data, states, weights, None, batch_sizes)
        if unsorted_indices is not None:
            states = [s.index_select(1, unsorted_indices) for s in states]
        return PackedSequence(output, batch_sizes, sorted_indices, unsorted_indices), self._hx(states)

    def _run(self, input: Tensor, states, weights, lengths: Tensor | None, batch_sizes: Tensor | None):
        return functional.rnn(
            self.mode.lower(),
            input,
            states,
            weights,
            bidirectional=self.bidirectional,
            dropout=self.dropout,
            training=self.training,
            lengths=lengths,
            batch_sizes=batch_sizes,
        )

    def _states(self, hx) -> tuple[Tensor | None, ...]:
        if hx is not None and not isinstance(hx, Tensor):
            raise TypeError(f"hx: expected a tensor h_0, got {type(hx).__name__}")
        return (hx,)

    def _hx(self, states):
        return states[0] if len(states) == 1 else tuple(states)

    def _through_torch(self, input, hx, lengths: Tensor | None):
        """torch's own code, for what the fused loop does not take."""
        if lengths is None:
            return super().forward(input, hx)
        time = 1 if self.batch_first else 0
        for length in lengths.tolist():
            if not 0 <= length <= input.size(time):
                raise RuntimeError(
                    f"lengths: expected 0 <= length <= {input.size(time)}, the steps of input, got {length}"
                )
        # a PackedSequence has no empty rows: run them for one step, and take that step back
        empty = (lengths == 0).to(input.device)
        packed = pack_padded_sequence(input, lengths.clamp(min=1).cpu(), self.batch_first, enforce_sorted=False)
        output, h_n = super().forward(packed, hx)
        output, _ = pad_packed_sequence(output, self.batch_first, total_length=input.size(time))
        mask = empty.unsqueeze(time).unsqueeze(-1)
        states = [
            torch.where(empty.unsqueeze(-1), 0 if h is None else h, n)
            for h, n in zip(self._states(hx), self._states(h_n), strict=True)
        ]
        return output.masked_fill(mask, 0), self._hx(states)


def _checked_lengths(lengths, input: Tensor | PackedSequence, batch_first: bool) -> Tensor:
    if isinstance(input, PackedSequence):
        raise ValueError("lengths: a PackedSequence carries its own lengths; pass one or the other")
    if input.dim() != 3:
        raise ValueError(f"lengths: needs batched 3-D input, got {input.dim()}-D input")
    if not isinstance(lengths, Tensor):
        lengths = torch.tensor(lengths)
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise TypeError(f"lengths: expected integers, got {lengths.dtype}")
    batch = input.size(0 if batch_first else 1)
    if lengths.shape != (batch,):
        raise RuntimeError(f"lengths: expected shape ({batch},), one length a row, got {tuple(lengths.shape)}")
    return lengths.to(torch.int64)


class GRU(_Layer, torch.nn.GRU):
    """torch.nn.GRU, faster: its constructor, parameters, initial values and `state_dict`.

    r, z = sigmoid(W_i x + b_i + W_h h + b_h); n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = (1 - z) n + z h,
    as on the torch.nn.GRU page. `forward` also takes `lengths=`.
    """


class LSTM(_Layer, torch.nn.LSTM):
    """torch.nn.LSTM, faster: its constructor, parameters, initial values and `state_dict`.

    i, f, o = sigmoid(.), g = tanh(.) of W_i x + b_i + W_h h + b_h; c' = f c + i g; h' = o tanh(c'), with `proj_size`
    W_hr (o tanh(c')), as on the torch.nn.LSTM page. `forward` also takes `lengths=`.
    """

    def _states(self, hx) -> tuple[Tensor | None, ...]:
        if hx is None:
            return (None, None)
        if not isinstance(hx, (tuple, list)) or len(hx) != 2:
            raise TypeError(f"hx: expected a tuple (h_0, c_0), got {type(hx).__name__}")
        return tuple(hx)


class RNN(_Layer, torch.nn.RNN):
    """torch.nn.RNN, faster: its constructor, parameters, initial values and `state_dict`.

    h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu, as on the torch.nn.RNN page. `forward` also takes `lengths=`.
    """


dynamo.traces(_Layer)
