"""The loss of a batch of sequences, without its padding."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_lengths


def sequence_loss(
    outputs: Tensor, target: Tensor, lengths: Tensor | None = None, *, pad: int | None = None, reduction: str = "mean"
) -> Tensor:
    """Cross entropy of tokens, squared error of vectors, over the steps that count.

    Args:
        outputs: (B, T, V) logits, or (B, T, F) vectors.
        target: (B, T) int64 tokens, or (B, T, F) vectors.
        lengths: (B,) integers, 0 <= length <= T: the steps of each row that count; all where None.
        pad: a token that does not count.
        reduction: "mean" over what counts, of vectors over their elements too; "sum"; "none", (B, T) or (B, T, F),
            zero where nothing counts.

    Raises:
        RuntimeError, ValueError: a wrong rank, size, dtype or value, named in the message.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction: expected mean, sum or none, got {reduction!r}")
    tokens = not target.is_floating_point()
    expected = outputs.shape[:2] if tokens else outputs.shape
    if outputs.dim() != 3 or target.shape != expected:
        raise RuntimeError(f"target: expected {tuple(expected)} for outputs {tuple(outputs.shape)}, got "
                           f"{tuple(target.shape)}")  # fmt: skip
    counts = None
    if lengths is not None:
        lengths = check_lengths("lengths", lengths, *outputs.shape[:2], least=0).to(outputs.device)
        counts = torch.arange(outputs.size(1), device=outputs.device) < lengths.unsqueeze(1)
    if tokens:
        ignored = -100 if pad is None else pad
        if counts is not None:
            target = target.where(counts, ignored)
        # (B, T, V) as it lies: cross_entropy wants the classes second, and would copy
        loss = F.cross_entropy(outputs.flatten(0, 1), target.flatten(), ignore_index=ignored, reduction=reduction)
        return loss.view(target.shape) if reduction == "none" else loss
    if counts is None:
        return F.mse_loss(outputs, target, reduction=reduction)
    counts = counts.unsqueeze(2)
    # where, and not a product: padding may hold NaN
    loss = F.mse_loss(outputs.where(counts, 0), target.where(counts, 0), reduction="none")
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / (counts.sum() * outputs.size(2))
