"""RNN: h' = tanh(x + h W^T + b), or relu. torch.nn.RNN's page. Twin: csrc/cells/rnn.h."""

import triton
import triton.language as tl

from .activations import tanh


@triton.jit
def tanh_forward(x, hh, h, c):
    return tanh(x[0] + hh[0]), c, ()


@triton.jit
def tanh_backward(save, h, c, h_new, c_new, d_h, d_c):
    """h_new: the state after the step."""
    return tl.zeros_like(d_h), d_c, (d_h * (1 - h_new * h_new),)


@triton.jit
def relu_forward(x, hh, h, c):
    y = x[0] + hh[0]
    return tl.where(y < 0, 0.0, y), c, ()


@triton.jit
def relu_backward(save, h, c, h_new, c_new, d_h, d_c):
    return tl.zeros_like(d_h), d_c, (tl.where(h_new > 0, d_h, 0.0),)


class RnnTanh:
    gates = 1
    saved = 0
    has_c = False
    splits_bias = False
    d_slots = 1
    d_input_gate = (0,)
    d_state_slot = 0
    forward = tanh_forward
    backward = tanh_backward


class RnnRelu(RnnTanh):
    forward = relu_forward
    backward = relu_backward
