"""GRU: r, z = sigmoid(x + h W^T + b); n = tanh(x_n + r h_n); h' = n + z (h - n). torch.nn.GRU's page; order r z n.

Twin: csrc/cells/gru.h.
"""

import triton
import triton.language as tl  # noqa: F401 - the interpreter looks for it in every function it calls

from .activations import sigmoid, tanh


@triton.jit
def forward(x, hh, h, c):
    r = sigmoid(x[0] + hh[0])
    z = sigmoid(x[1] + hh[1])
    n = tanh(x[2] + r * hh[2])
    return n + z * (h - n), c, (r, z, n, hh[2])


@triton.jit
def backward(save, h, c, h_new, c_new, d_h, d_c):
    """d_h comes in as the gradient of h' and leaves as the part of d_h that goes straight to h."""
    r, z, n, h_n = save
    d_n = d_h * (1 - z) * (1 - n * n)
    d_r = d_n * h_n * r * (1 - r)
    d_z = d_h * (h - n) * z * (1 - z)
    return d_h * z, d_c, (d_n, d_r, d_z, d_n * r)


class Gru:
    gates = 3
    saved = 4  # r z n h_n
    has_c = False
    splits_bias = True  # r multiplies h_n with its bias, so bias_hh of n stays apart
    d_slots = 4  # [n_x r z n_h]: the input's gates are the first three, the state's the last
    d_input_gate = (2, 0, 1)  # which gate of weight_ih each of the first three is
    d_state_slot = 1
    forward = forward
    backward = backward
