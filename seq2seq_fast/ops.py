"""The operators: schemas, and their shapes for the compiler.

The schemas are defined here and not in C++, so that the package imports where nothing was compiled. The CPU kernels
and the autograd rule are registered by csrc/ops.cpp; CONTRIBUTING.md says why autograd is in C++.
"""

import importlib
import itertools

import torch

from . import _native, reference
from .reserve import reserve_shape

LAYER_ARGS = (
    "Tensor input, Tensor? h_0, Tensor? c_0, Tensor[] weights, Tensor? lengths, Tensor? batch_sizes, "
    "str cell, bool bidirectional"
)

library = torch.library.Library("seq2seq_fast", "DEF")
for schema in (
    # one layer, in as many directions as it has: see reference.rnn_layer, whose contract this is
    f"rnn_layer({LAYER_ARGS}) -> Tensor[]",
    # the same, with the reserve that backward reads appended
    f"rnn_layer_train({LAYER_ARGS}) -> Tensor[]",
    # d_outputs as rnn_layer's outputs; needs: whether input, h_0, c_0, weights want a gradient, empty where not
    f"rnn_layer_backward(Tensor?[] d_outputs, Tensor reserve, bool[4] needs, {LAYER_ARGS}) -> Tensor[]",
    # the reference, for derivatives the fused operators do not give
    f"rnn_layer_composite({LAYER_ARGS}) -> Tensor[]",
    # the instruction set the CPU loop runs on
    "capability() -> str",
    # GFLOP/s of float32 multiply-adds on that many threads
    "measure_peak(int threads) -> float",
):
    library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
library.impl("rnn_layer_composite", reference.rnn_layer, "CompositeImplicitAutograd")
# every operation of the reference has a rule for vmap
for name in ("rnn_layer", "rnn_layer_composite"):
    library.impl(name, reference.rnn_layer, "FuncTorchBatched")


def call(name: str, *args):
    """An operator that the extension also offers as a plain function, which costs less but takes not everything."""
    if _native.extension is not None and not torch.compiler.is_dynamo_compiling():
        outputs = getattr(_native.extension, name)(*args)
        if outputs is not None:
            return outputs
    return getattr(torch.ops.seq2seq_fast, name).default(*args)


def on_cuda(name: str, module: str, place: int):
    """Registers the launcher `name` of `module`, which is imported when it is first needed: it needs triton.

    place: the argument on whose device it runs, since Triton launches on the current one.
    """

    def launch(*args):
        launcher = getattr(importlib.import_module(f".{module}", __package__), name)
        with torch.cuda.device_of(args[place]):
            return launcher(*args)

    library.impl(name, launch, "CUDA")


on_cuda("rnn_layer", "cuda.layer", 0)
on_cuda("rnn_layer_train", "cuda.layer", 0)
on_cuda("rnn_layer_backward", "cuda.layer", 1)

WEIGHT_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")


def _layer_shapes(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional):
    directions = 2 if bidirectional else 1
    given = reference.by_name(weights[: len(weights) // directions])
    names = itertools.cycle(name for name, weight in zip(WEIGHT_NAMES, given, strict=True) if weight is not None)
    for name, tensor in (("h_0", h_0), ("c_0", c_0), *zip(names, weights, strict=False)):
        if tensor is not None and tensor.device != input.device:
            raise RuntimeError(f"{name}: expected a tensor on {input.device} like input, got one on {tensor.device}")
    of_h, of_c = reference.state_sizes(weights, directions)
    output = input.new_empty(*input.shape[:-1], directions * of_h)
    if batch_sizes is None:
        rows = (input.size(0),) if input.dim() == 2 else (directions, input.size(1))
    elif h_0 is not None:
        rows = h_0.shape[:-1]
    else:
        # the batch of a PackedSequence is a value, not a shape
        rows = (directions, torch.library.get_ctx().new_dynamic_size())
    return [output, *(input.new_empty(*rows, size) for size in ((of_h, of_c) if cell == "lstm" else (of_h,)))]


def _reserve_shape(input, weights, cell, bidirectional):
    rows = input.size(0) if input.dim() == 2 else input.size(0) * input.size(1)
    directions = 2 if bidirectional else 1
    _, hidden = reference.state_sizes(weights, directions)
    return reserve_shape(cell, directions, rows, hidden, projected=len(weights) // directions % 2 == 1)


@torch.library.register_fake("seq2seq_fast::rnn_layer", lib=library)
def _(*args):
    return _layer_shapes(*args)


@torch.library.register_fake("seq2seq_fast::rnn_layer_train", lib=library)
def _(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional):
    reserve = input.new_empty(
        _reserve_shape(input, weights, cell, bidirectional),
        dtype=torch.float64 if input.dtype == torch.float64 else torch.float32,
    )
    return [*_layer_shapes(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional), reserve]


@torch.library.register_fake("seq2seq_fast::rnn_layer_backward", lib=library)
def _(d_outputs, reserve, needs, input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional):
    def gradient(tensor, needed):
        return tensor.new_empty(tensor.shape if needed and tensor is not None else 0)

    states = [input.new_empty(0) if s is None else gradient(s, n) for s, n in zip((h_0, c_0), needs[1:3], strict=True)]
    return [gradient(input, needs[0]), *states, *(gradient(w, needs[3]) for w in weights)]
