"""A decoder's layers, attention and output over all steps as one call and one node of autograd: csrc/decoder.h."""

import torch
from torch import Tensor
from torch.nn.modules import module as torch_module

from .. import _native, nn

PLAIN = (torch.nn.Linear, torch.nn.Embedding, nn.GRU, nn.LSTM, nn.RNN, nn.Attention)
NO_ATTENTION = (None,) * 7


def projects(method):
    """Marks the `project` that the one call does as well; a subclass's own has no such mark."""
    method.in_one_call = True
    return method


def in_one_call(decoder, inputs: Tensor, hx, context: Tensor | None, starts: list[int], masks: list[Tensor] | None):
    """What `decoder` says after each of `inputs`, in runs of steps.

    Args:
        inputs, hx, context: as for `Decoder.forward`.
        starts: the steps that runs start at; the input of all but the first is what was said a step before.
        masks: (T, B, H) of each gap between two layers, from `draws`; None: as the layers draw them.

    Returns:
        (B, T, V) or (B, T, F); None where only the modules can serve, one after the other: they are of other
        classes, or have hooks, or are being traced, or what they are given does not fit.
    """
    if _native.extension is None or torch.compiler.is_dynamo_compiling() or torch.is_autocast_enabled("cpu"):
        return None
    rnn, output, embedding = decoder.rnn, decoder.output, decoder.embedding
    attention = decoder._modules.get("attention")
    modules = [rnn, output]
    if embedding is not None:
        modules.append(embedding)
    if attention is not None:
        modules += [attention, attention.linear_query]
        if attention.linear_out is not None:
            modules.append(attention.linear_out)
    if not hasattr(decoder.project, "in_one_call") or _any_global_hooks() or not all(map(_is_plain, modules)):
        return None
    if masks is None and rnn.dropout and rnn.training and rnn.num_layers > 1:
        return None
    padding_idx = -1
    if embedding is not None:
        if type(embedding) is not torch.nn.Embedding or not _only_looks_up(embedding):
            return None
        padding_idx = -1 if embedding.padding_idx is None else embedding.padding_idx
    of_attention, lengths, mask, score, empty_rows = NO_ATTENTION, None, None, "dot", "zeros"
    if attention is not None:
        if not _serves(attention):
            return None
        query, joined = attention.linear_query, attention.linear_out
        of_attention = (
            attention.keys, attention.values, query.weight, query.bias, attention.score_weight,
            None if joined is None else joined.weight, None if joined is None else joined.bias,
        )  # fmt: skip
        lengths, mask, score, empty_rows = attention.lengths, attention.mask, attention.score, attention.empty_rows
    states = hx if isinstance(hx, tuple) else (hx, None)
    if len(states) != 2 or not isinstance(states[0], Tensor) or states[0].shape[:-2] != (rnn.num_layers,):
        return None
    cell, weights, weight_out, bias_out, rows = decoder.parameters_of_search()
    results = _native.extension.decoder(
        inputs, rows, context, *states, weight_out, bias_out, *of_attention, weights, masks or [], lengths, mask,
        starts, padding_idx, cell, score, empty_rows,
    )  # fmt: skip
    if results is None:
        return None
    if attention is not None:
        alphas = results[1]
        attention.alphas = alphas.squeeze(1) if attention.num_heads == 1 and alphas.dim() == 4 else alphas
    return results[0]


def _is_plain(module: torch.nn.Module) -> bool:
    """Whether to call it is to run the `forward` of its class, on weights that are its own."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return type(module) in PLAIN and not hooks and "forward" not in vars(module)


def _any_global_hooks() -> bool:
    return bool(
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or torch_module._global_backward_hooks
        or torch_module._global_backward_pre_hooks
    )


def _only_looks_up(embedding: torch.nn.Embedding) -> bool:
    return embedding.max_norm is None and not embedding.scale_grad_by_freq and not embedding.sparse


def _serves(attention: nn.Attention) -> bool:
    """Whether the operators know its score by name, and it draws nothing."""
    return (
        attention.keys is not None
        and (attention.mask is None or attention.mask.dim() == 2)
        and attention.score not in ("boxcar", "epanechnikov")
        and not (attention.dropout and attention.training)
    )
