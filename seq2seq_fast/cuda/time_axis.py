"""The time and batch of a layer on a GPU: which rows run at which step, as csrc/cuda/loop.h takes it."""

import torch
from torch import Tensor


class TimeAxis:
    """Of padded input (T, B, I), with lengths or without, or of a PackedSequence's data; tensors on input's device.

    Lengths on the GPU stay there: nothing here waits for it.
    """

    def __init__(self, input: Tensor, lengths: Tensor | None, batch_sizes: Tensor | None):
        self.by_row = self.runs = None
        self.sizes = batch_sizes
        if batch_sizes is not None:
            self.steps, self.batch = batch_sizes.numel(), int(batch_sizes[0])
            self.first = batch_sizes.cumsum(0) - batch_sizes
            self.active, self.by_step = batch_sizes.to(input.device), self.first.to(input.device)
            return
        self.steps, self.batch = input.shape[:2]
        time = torch.arange(self.steps, device=input.device)
        self.by_step = time * self.batch
        if lengths is None:
            self.active = torch.full_like(time, self.batch)
        else:
            lengths = lengths.to(input.device)
            self.by_row = lengths.argsort(descending=True, stable=True)
            self.runs = time[:, None] < lengths
            self.active = self.runs.sum(1)

    def before(self, states: Tensor, initial: Tensor, reverse: bool) -> Tensor:
        """(rows, H): the state before each row's step, from `states` (rows, H) after it; zeros in the padding."""
        if self.sizes is not None:
            return torch.cat([states, initial])[self._rows_before(reverse).to(states.device)]
        states = states.view(self.steps, self.batch, -1)
        found = torch.cat([states[1:], initial[None]]) if reverse else torch.cat([initial[None], states[:-1]])
        if self.runs is not None:
            if reverse:
                goes_on = torch.cat([self.runs[1:], torch.zeros_like(self.runs[:1])])
                found = found.where(goes_on[..., None], initial)
            found = found.where(self.runs[..., None], 0)
        return found.flatten(0, 1)

    def _rows_before(self, reverse: bool) -> Tensor:
        """For each row of a PackedSequence that of the step before it, or the number of rows plus that of its state."""
        time = torch.arange(self.steps).repeat_interleave(self.sizes)
        row = torch.arange(len(time)) - self.first[time]
        step = time + (1 if reverse else -1)
        inside = step.clamp(0, self.steps - 1)
        known = (step == inside) & (row < self.sizes[inside])
        return torch.where(known, self.first[inside] + row, len(time) + row)
