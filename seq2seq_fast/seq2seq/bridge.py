"""From an encoder's last state to a decoder's first: (L*D, B, H) to (L, B, H'). For the LSTM, each state by itself."""

import torch
from torch import Tensor


class SumDirections(torch.nn.Module):
    """The two directions of each layer added: (L*2, B, H) to (L, B, H)."""

    def forward(self, state: Tensor) -> Tensor:
        return _directions(state).sum(1)


class ConcatDirections(torch.nn.Module):
    """The two directions of each layer side by side: (L*2, B, H) to (L, B, 2H)."""

    def forward(self, state: Tensor) -> Tensor:
        return _directions(state).transpose(1, 2).flatten(2)


class Projection(torch.nn.Module):
    """tanh(W s + b) of each layer's directions side by side: (L*D, B, H) to (L, B, H').

    Args:
        in_features: D * H.
        out_features: H'.
        directions: D, 1 or 2.
    """

    def __init__(self, in_features: int, out_features: int, directions: int = 2):
        super().__init__()
        if directions not in (1, 2):
            raise ValueError(f"directions: expected 1 or 2, got {directions}")
        self.linear = torch.nn.Linear(in_features, out_features)
        self.directions = directions

    def forward(self, state: Tensor) -> Tensor:
        if self.directions == 2:
            state = _directions(state).transpose(1, 2).flatten(2)
        return self.linear(state).tanh()


def _directions(state: Tensor) -> Tensor:
    """(L*2, B, H) as (L, 2, B, H)."""
    if state.size(0) % 2:
        raise RuntimeError(f"state: expected two directions a layer, (L*2, B, H), got {tuple(state.shape)}")
    return state.unflatten(0, (-1, 2))
