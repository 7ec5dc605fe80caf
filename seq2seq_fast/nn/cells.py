"""GRUCell, LSTMCell and RNNCell: torch.nn's cells, each step one call of the fused loop."""

import torch
from torch import Tensor

from .. import functional, ops
from .graphs import Proxy, Scriptable, fx_node

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class _Cell(Scriptable):
    """Shared by the three cells, which inherit everything but `forward` from torch.nn's, and give it `_fused`."""

    def forward(self, input: Tensor, hx=None):
        if isinstance(input, Proxy):
            return fx_node(self, input, hx)
        if functional.why_not_fused(input) is not None:
            return super().forward(input, hx)
        return self._fused(input, hx)

    def _step(self, cell: str, input: Tensor, states: tuple[Tensor | None, ...]) -> list[Tensor]:
        """The states (B, H) after one step of input (B, I); both without B where the input is unbatched."""
        weights = self._weights()
        if input.dim() == 2:
            return ops.call("rnn_layer", input, *states, weights, None, None, cell, False)
        states = (None if s is None else s.unsqueeze(0) for s in states)
        outputs = ops.call("rnn_layer", input.unsqueeze(0), *states, weights, None, None, cell, False)
        return [output.squeeze(0) for output in outputs]

    def _weights(self) -> list[Tensor]:
        """The weights, read by name: parametrizations replace what a name stands for."""
        parameters = self._parameters
        names = WEIGHTS if self.bias else WEIGHTS[:2]
        return [parameters[name] if name in parameters else getattr(self, name) for name in names]

    def _check_rank(self, input: Tensor, states) -> None:
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise ValueError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for state_name, state in zip(("hx", "cx"), states, strict=False):
            if state is not None and state.dim() != input.dim():
                kind = ValueError if state.dim() not in (1, 2) else RuntimeError
                raise kind(f"{name}: Expected {state_name} to be {input.dim()}D like input, got {state.dim()}D instead")

    def why_not_fused(self, input: Tensor, hx=None) -> str | None:
        """Why this cell gives `input` to torch's own code, in one sentence; None where the fused loop serves it."""
        return functional.why_not_fused(input)


class GRUCell(_Cell, torch.nn.GRUCell):
    """torch.nn.GRUCell, faster. Input (B, I) or (I), hx (B, H) or (H); returns h' of hx's shape."""

    def _fused(self, input: Tensor, hx: Tensor | None) -> Tensor:
        self._check_rank(input, (hx,))
        return self._step("gru", input, (hx, None))[0]


class LSTMCell(_Cell, torch.nn.LSTMCell):
    """torch.nn.LSTMCell, faster. Input (B, I) or (I), hx a tuple (h, c) of (B, H) or (H); returns (h', c')."""

    def _fused(self, input: Tensor, hx: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        states = (None, None) if hx is None else hx
        self._check_rank(input, states)
        h, _, c = self._step("lstm", input, tuple(states))
        return h, c


class RNNCell(_Cell, torch.nn.RNNCell):
    """torch.nn.RNNCell, faster. Input (B, I) or (I), hx (B, H) or (H); returns h' of hx's shape."""

    def _fused(self, input: Tensor, hx: Tensor | None) -> Tensor:
        self._check_rank(input, (hx,))
        return self._step(f"rnn_{self.nonlinearity}", input, (hx, None))[0]
