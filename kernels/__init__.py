"""The Triton kernels, and the functions that launch them: one module an operator."""
