"""Sigmoid and tanh from tl.exp, which every target and the interpreter have. Twin: csrc/cells/activations.h."""

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)"""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """(1 - e) / (1 + e) with e = e^-2|x|; near zero, where 1 - e would cancel, Cephes' tanhf for float."""
    size = tl.abs(x)
    e = tl.exp(-2 * size)
    result = (1 - e) / (1 + e)
    if x.dtype == tl.float32:
        z = x * x
        p = z * -5.70498872745e-3 + 2.06390887954e-2
        p = p * z - 5.37397155531e-2
        p = p * z + 1.33314422036e-1
        p = p * z - 3.33332819422e-1
        result = tl.where(size < 0.625, p * z * size + size, result)
    return tl.where(x < 0, -result, result)
