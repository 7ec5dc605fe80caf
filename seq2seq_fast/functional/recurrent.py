"""Stacks of recurrent layers, shaped like the functions under torch.nn's (`torch.gru`, `torch.lstm`, `torch.rnn_tanh`).

`why_not_fused` says whether the fused operators serve a tensor, and why not.
"""

import importlib.util

import torch
from torch import Tensor
from torch.compiler import is_exporting
from torch.jit import is_tracing
from torch.nn.functional import dropout as drop

from .. import _native, ops

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HAS_TRITON = importlib.util.find_spec("triton") is not None


def why_not_fused(input: Tensor) -> str | None:
    """Why the fused operators do not serve `input`, in one sentence; None where they do."""
    if _native.extension is None:
        return _native.reason
    # asked in this order, since the last takes 2 us (a Sapphire Rapids)
    if (is_tracing() or is_exporting()) and torch.onnx.is_in_onnx_export():
        return "the model is exported to ONNX, which has an operator for torch's own layer"
    if not (input.is_cpu or input.is_cuda):
        return f"input is on {input.device}; the fused kernels run on the CPU and on CUDA"
    if input.is_cuda and not HAS_TRITON:
        return f"input is on {input.device}, and triton is not installed: pip install triton"
    if input.dtype not in DTYPES:
        return f"input has dtype {input.dtype}; the fused kernels take float32, float64, bfloat16 and float16"
    if input.layout is not torch.strided:
        return f"input has layout {input.layout}; the fused kernels take dense tensors"
    return None


def rnn(
    cell: str,
    input: Tensor,
    hx: tuple[Tensor | None, ...],
    weights: list[list[Tensor]],
    *,
    bidirectional: bool = False,
    dropout: float = 0.0,
    training: bool = False,
    lengths: Tensor | None = None,
    batch_sizes: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A stack of recurrent layers. Equivalent to: `torch.gru(input, hx, weights, ...)` and its siblings, time first.

    Args:
        cell: "gru", "lstm", "rnn_tanh" or "rnn_relu".
        input: (T, B, I), or (sum(batch_sizes), I), the data of a PackedSequence; any strides.
        hx: (h_0,), for the LSTM (h_0, c_0), each (L*D, B, H); zeros where None.
        weights: a list for each layer: for each direction weight_ih (G*H, I), weight_hh (G*H, H), with bias
            bias_ih (G*H), bias_hh (G*H) and, for an LSTM with a projection, weight_hr (P, H): h is (B, P) then, and
            weight_hh (G*H, P).
        dropout: the probability of dropping an output between two layers, while `training`.
        lengths: (B,) int64, 0 <= lengths <= T: how many steps of each row count; outputs after them are zero, and the
            last state is the one at the row's own end.
        batch_sizes: (T,) int64 on the CPU: `input` is the data of a PackedSequence.

    Returns:
        output (T, B, D*H) or (sum(batch_sizes), D*H); h_n (L*D, B, H); for the LSTM also c_n.
        With a projection P stands for H in all but c_n.

    Raises:
        RuntimeError, ValueError: an argument of a wrong size or dtype, as torch.nn raises them.
    """
    h_0 = hx[0]
    c_0 = hx[1] if cell == "lstm" else None
    if len(weights) == 1:
        return tuple(ops.call("rnn_layer", input, h_0, c_0, weights[0], lengths, batch_sizes, cell, bidirectional))
    directions = 2 if bidirectional else 1
    states = []
    for layer, layer_weights in enumerate(weights):
        rows = slice(layer * directions, (layer + 1) * directions)
        input, *state = ops.call(
            "rnn_layer",
            input,
            None if h_0 is None else h_0[rows],
            None if c_0 is None else c_0[rows],
            layer_weights,
            lengths,
            batch_sizes,
            cell,
            bidirectional,
        )
        states.append(state)
        if dropout and training and layer < len(weights) - 1:
            input = drop(input, dropout, True)
    return (input, *(torch.cat(s) for s in zip(*states, strict=True)))
