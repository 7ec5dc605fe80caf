"""Says which path a call takes, and why."""

import torch

from . import nn


def explain(layer: torch.nn.Module, *inputs) -> str:
    """Which path `layer(*inputs)` takes, layer by layer of a model, and why: one line each.

    Args:
        layer: one of this package's layers or cells, or a model that holds some.
        inputs: what the layer is called with. For a model that is not itself such a layer, the model is run once
            without gradients to see what its layers are given.

    Returns:
        Lines such as "GRU: fused (CPU, avx512, float32)" or "LSTM: torch.nn (proj_size=3; ...)".

    Raises:
        TypeError: `layer` is not a torch.nn.Module.
    """
    raise NotImplementedError
