"""Says which path a call takes, and why."""

from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from .accelerate import SWAPS
from .nn import Attention


def explain(layer: torch.nn.Module, *inputs, **kwargs) -> str:
    """Which path `layer(*inputs, **kwargs)` takes, layer by layer of a model, and why: one line each.

    Args:
        layer: one of this package's layers or cells, or a model that holds some.
        inputs, kwargs: what it is called with. A model is run once, in eval mode and without gradients, to
            see what its layers are given; its modes and torch's CPU generator are left as they were.

    Returns:
        Lines such as "GRU: fused (cpu, avx512, float32)", "LSTM: torch.nn (proj_size=3; ...)" or, in a model,
        "encoder.rnn (GRU): fused (cpu, avx512, float32)"; a layer that takes several paths has several.

    Raises:
        TypeError: `layer` is not a torch.nn.Module, or a layer's input is not a Tensor or PackedSequence.
        Exception: whatever the model raises when it is run.
    """
    if not isinstance(layer, torch.nn.Module):
        raise TypeError(f"layer: expected a torch.nn.Module, got {type(layer).__name__}")
    if _is_ours(layer):
        return f"{type(layer).__name__}: {_path(layer, inputs, kwargs)}"

    calls = {name: {} for name, module in layer.named_modules() if _is_ours(module)}
    if not calls:
        return f"{type(layer).__name__}: holds no recurrent layers and no attention"
    training = {module: module.training for module in layer.modules()}
    with ExitStack() as restore, torch.no_grad(), torch.random.fork_rng(devices=[]):
        for module, mode in training.items():
            restore.callback(setattr, module, "training", mode)
        for name, seen in calls.items():
            restore.enter_context(_watched(layer.get_submodule(name), seen))
        layer.eval()
        layer(*inputs, **kwargs)
    return "\n".join(
        f"{name} ({type(layer.get_submodule(name)).__name__}): {path}"
        for name, seen in calls.items()
        for path in seen or [_not_called(layer, name)]
    )


@contextmanager
def _watched(module: torch.nn.Module, seen: dict[str, None]):
    """Notes the path of each call in `seen`: a dict and not a set, so that they stay in the order of the calls.

    In the place of `forward` and not in a hook, with which torch.nn.TransformerEncoderLayer would take another path.
    """
    own = vars(module).get("forward")
    forward = module.forward

    def see(*inputs, **kwargs):
        seen[_path(module, inputs, kwargs)] = None
        return forward(*inputs, **kwargs)

    module.forward = see
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


def _not_called(model: torch.nn.Module, name: str) -> str:
    """Why a layer of `model` saw no call."""
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, torch.nn.TransformerEncoderLayer):
        return (
            "not called (without gradients and in eval mode TransformerEncoderLayer calls one operator of torch's, "
            "which computes all of the layer)"
        )
    return "not called"


def _is_ours(module: torch.nn.Module) -> bool:
    """Whether it is of a kind that this package serves."""
    return isinstance(module, (torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention, Attention))


def _path(layer: torch.nn.Module, inputs: tuple, kwargs: dict) -> str:
    """What serves one call of a recurrent layer or of attention."""
    if type(layer) in SWAPS:
        return "torch.nn (call accelerate)"
    if not hasattr(layer, "why_not_fused"):
        return f"torch.nn ({type(layer).__name__} is a subclass, which accelerate leaves alone)"
    name = "input" if isinstance(layer, (torch.nn.RNNBase, torch.nn.RNNCellBase)) else "query"
    input = inputs[0] if inputs else kwargs.get(name)
    if not isinstance(input, (Tensor, PackedSequence)):
        raise TypeError(f"{name}: expected a Tensor or PackedSequence, got {type(input).__name__}")
    why_not = layer.why_not_fused(*inputs, **kwargs)
    if why_not is not None:
        return f"torch.nn ({why_not})"
    data = input.data if isinstance(input, PackedSequence) else input
    if not data.is_cuda:
        instructions = torch.ops.seq2seq_fast.capability()
    elif isinstance(layer, torch.nn.RNNBase):
        instructions = layer.form_on_cuda(*inputs, **kwargs).why
    else:
        instructions = "triton"
    return f"fused ({data.device}, {instructions}, {str(data.dtype).removeprefix('torch.')})"
