"""What an encoder-decoder is given: whether it fits, said before anything is computed."""

import torch
from torch import Tensor


def check_lengths(name: str, lengths, batch: int, steps: int, *, least: int) -> Tensor:
    """`lengths` as (B,) int64.

    Raises:
        TypeError, RuntimeError, ValueError: they are no integers, not one a row, or out of [least, steps].
    """
    lengths = torch.as_tensor(lengths)
    if lengths.dtype.is_floating_point or lengths.dtype.is_complex or lengths.dtype == torch.bool:
        raise TypeError(f"{name}: expected integers, got {lengths.dtype}")
    if lengths.shape != (batch,):
        raise RuntimeError(f"{name}: expected shape ({batch},), one length a row, got {tuple(lengths.shape)}")
    # what lies on a GPU is not waited for
    if lengths.is_cpu and batch:
        low, high = (int(x) for x in lengths.aminmax())
        if low < least or high > steps:
            row = int(((lengths < least) | (lengths > steps)).nonzero()[0])
            raise ValueError(f"{name}: expected {least} to {steps}, got {int(lengths[row])} for row {row}")
    return lengths.to(torch.int64)


def check_tokens(name: str, tokens: Tensor, count: int) -> None:
    """Raises ValueError where a token is not one of `count`; those on a GPU are not waited for."""
    if not tokens.is_cpu or not tokens.numel():
        return
    low, high = (int(x) for x in tokens.aminmax())
    if low < 0 or high >= count:
        raise ValueError(f"{name}: expected tokens from 0 to {count - 1}, got {low if low < 0 else high}")


def check_ends(target: Tensor, lengths: Tensor | None, eos: int) -> None:
    """Raises ValueError where a row of `target` has no `eos`, or has it beyond the row's length."""
    if not target.is_cpu or not target.numel():
        return
    ends = target == eos
    if lengths is not None:
        ends &= torch.arange(target.size(1)) < lengths.unsqueeze(1)
    there = ends.any(1)
    if not there.all():
        raise ValueError(f"target: expected eos={eos} in every row, row {int((~there).nonzero()[0])} has none")
