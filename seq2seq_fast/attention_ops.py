"""The operators of attention: schemas, and their shapes for the compiler. Their contract is reference_attention.py."""

import torch

from . import reference_attention
from .ops import call, library, on_cuda

ATTENTION_ARGS = (
    "Tensor query, Tensor key, Tensor value, Tensor[] masks, Tensor? lengths, Tensor? seed, "
    "bool causal, float dropout, float scale, str weights, str empty_rows"
)
ADDITIVE_ARGS = (
    "Tensor query, Tensor key, Tensor score_weight, Tensor value, Tensor[] masks, Tensor? lengths, str empty_rows"
)

for schema in (
    # [output] and, where asked for, the weights
    f"attention({ATTENTION_ARGS}) -> Tensor[]",
    # the same, with lse (B, H, L) appended: the logarithm of a row's sum of exponentials, inf where the row is empty;
    # float32, for float64 inputs float64
    f"attention_train({ATTENTION_ARGS}) -> Tensor[]",
    # d_outputs as attention's outputs; needs: whether query, key, value and each mask want a gradient, empty where not
    f"attention_backward(Tensor?[] d_outputs, Tensor output, Tensor lse, bool[] needs, {ATTENTION_ARGS}) -> Tensor[]",
    f"attention_composite({ATTENTION_ARGS}) -> Tensor[]",
    # [output, weights]
    f"additive_attention({ADDITIVE_ARGS}) -> Tensor[]",
    # with lse (B, L) appended
    f"additive_attention_train({ADDITIVE_ARGS}) -> Tensor[]",
    # needs: of query, key, score_weight, value and each mask
    "additive_attention_backward(Tensor?[] d_outputs, Tensor output, Tensor lse, bool[] needs, "
    f"{ADDITIVE_ARGS}) -> Tensor[]",
    f"additive_attention_composite({ADDITIVE_ARGS}) -> Tensor[]",
):
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))


def attention(*args):
    """The operator attention, by the cheapest way that serves these arguments."""
    return call("attention", *args)


for name in ("attention", "additive_attention"):
    reference = getattr(reference_attention, name)
    library.impl(f"{name}_composite", reference, "CompositeImplicitAutograd")
    # every operation of the reference has a rule for vmap
    for op in (name, f"{name}_composite"):
        library.impl(op, reference, "FuncTorchBatched")


# the first tensor of a backward is the second argument: the output
on_cuda("attention", "kernels.attention_forward", 0)
on_cuda("attention_train", "kernels.attention_forward", 0)
on_cuda("attention_backward", "kernels.attention_backward", 1)
on_cuda("additive_attention", "kernels.additive_attention", 0)
on_cuda("additive_attention_train", "kernels.additive_attention", 0)
on_cuda("additive_attention_backward", "kernels.additive_attention_backward", 1)


def _lse_dtype(query):
    return torch.float64 if query.dtype == torch.float64 else torch.float32


@torch.library.register_fake("seq2seq_fast::attention", lib=library)
def _attention(query, key, value, masks, lengths, seed, causal, dropout, scale, weights, empty_rows):
    batch, heads, queries, _ = query.shape
    outputs = [query.new_empty(batch, heads, queries, value.size(-1))]
    if weights != "none":
        head = (heads,) if weights == "heads" else ()
        outputs.append(query.new_empty(batch, *head, queries, key.size(2)))
    return outputs


@torch.library.register_fake("seq2seq_fast::attention_train", lib=library)
def _(query, *args):
    return [*_attention(query, *args), query.new_empty(query.shape[:-1], dtype=_lse_dtype(query))]


def _gradients(needs, *tensors):
    query = tensors[0]
    return [query.new_empty(x.shape if needed else 0) for x, needed in zip(tensors, needs, strict=True)]


@torch.library.register_fake("seq2seq_fast::attention_backward", lib=library)
def _(d_outputs, output, lse, needs, query, key, value, masks, *args):
    return _gradients(needs, query, key, value, *masks)


@torch.library.register_fake("seq2seq_fast::additive_attention", lib=library)
def _additive_attention(query, key, score_weight, value, masks, lengths, empty_rows):
    batch, queries, _ = query.shape
    return [query.new_empty(batch, queries, value.size(-1)), query.new_empty(batch, queries, key.size(1))]


@torch.library.register_fake("seq2seq_fast::additive_attention_train", lib=library)
def _(query, *args):
    return [*_additive_attention(query, *args), query.new_empty(query.shape[:-1], dtype=_lse_dtype(query))]


@torch.library.register_fake("seq2seq_fast::additive_attention_backward", lib=library)
def _(d_outputs, output, lse, needs, query, key, score_weight, value, masks, *args):
    return _gradients(needs, query, key, score_weight, value, *masks)
