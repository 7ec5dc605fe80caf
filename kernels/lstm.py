"""LSTM: i, f, o = sigmoid, g = tanh of x + h W^T + b; c' = f c + i g; h' = o tanh(c'). torch.nn.LSTM's page; i f g o.

Twin: csrc/cells/lstm.h.
"""

import triton
import triton.language as tl

from .activations import sigmoid, tanh


@triton.jit
def forward(x, hh, h, c):
    i = sigmoid(x[0] + hh[0])
    f = sigmoid(x[1] + hh[1])
    g = tanh(x[2] + hh[2])
    o = sigmoid(x[3] + hh[3])
    c_new = f * c + i * g
    return o * tanh(c_new), c_new, (i, f, g, o)


@triton.jit
def backward(save, h, c, h_new, c_new, d_h, d_c):
    """h, c: the states before the step; c_new: after it. d_h leaves as 0: all of it goes through the gates."""
    i, f, g, o = save
    tanh_c = tanh(c_new)
    d_cell = d_c + d_h * o * (1 - tanh_c * tanh_c)
    d_i = d_cell * g * i * (1 - i)
    d_f = d_cell * c * f * (1 - f)
    d_g = d_cell * i * (1 - g * g)
    d_o = d_h * tanh_c * o * (1 - o)
    return tl.zeros_like(d_h), d_cell * f, (d_i, d_f, d_g, d_o)


class Lstm:
    gates = 4
    saved = 4  # i f g o
    has_c = True
    splits_bias = False
    d_slots = 4
    d_input_gate = (0, 1, 2, 3)
    d_state_slot = 0
    forward = forward
    backward = backward
