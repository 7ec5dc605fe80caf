"""Swaps torch.nn's recurrent layers and attention for ours inside a model that is already built."""

import torch

from . import nn

SWAPS = {getattr(torch.nn, name): getattr(nn, name) for name in nn.OURS}


def accelerate(model: torch.nn.Module) -> torch.nn.Module:
    """Swaps every torch.nn.GRU, LSTM, RNN, their cells and MultiheadAttention in `model` for ours; returns the model.

    Parameters, buffers, hooks, names and training mode are kept: the layer is the same object with our `forward`, so
    optimizers that hold its parameters and references that others keep to it stay valid. Subclasses with a `forward`
    of their own are left alone.

    Args:
        model: any module; changed in place. A layer by itself is swapped too.

    Raises:
        TypeError: `model` is not a torch.nn.Module.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    for module in model.modules():
        swap = SWAPS.get(type(module))
        if swap is not None:
            module.__class__ = swap
    return model
