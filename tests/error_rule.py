"""The rule for "equal": as accurate as torch.nn in the same dtype, against the oracle in float64."""

import math

import torch
from torch.nn.utils.rnn import PackedSequence


def run(module: torch.nn.Module, input, hx=None, *, backward: bool = True, **kwargs) -> dict[str, torch.Tensor]:
    """All that a call of a layer or cell gives, by name: outputs and, with `backward`, all gradients.

    Tensors are taken in the module's dtype. The outputs' gradients are random eighths, exact in every dtype.
    """
    dtype = next(module.parameters()).dtype
    leaves = {}

    def leaf(name, tensor):
        leaves[name] = tensor.detach().to(dtype).requires_grad_(backward)
        return leaves[name]

    if isinstance(input, PackedSequence):
        input = PackedSequence(leaf("d_input", input.data), *input[1:])
    else:
        input = leaf("d_input", input)
    if isinstance(hx, tuple):
        hx = (leaf("d_h_0", hx[0]), leaf("d_c_0", hx[1]))
    elif hx is not None:
        hx = leaf("d_h_0", hx)

    returned = torch.utils._pytree.tree_leaves(_tensors(module(input, hx, **kwargs)))
    names = ("output", "h_n", "c_n") if isinstance(module, torch.nn.RNNBase) else ("h", "c")
    results = dict(zip(names, returned, strict=False))
    if backward:
        leaves.update((f"d_{name}", parameter) for name, parameter in module.named_parameters())
        generator = torch.Generator().manual_seed(3)
        eighths = [(torch.randint(-8, 9, result.shape, generator=generator) / 8).to(result) for result in returned]
        gradients = torch.autograd.grad(returned, list(leaves.values()), eighths)
        results.update(zip(leaves, gradients, strict=True))
    return {name: result.detach() for name, result in results.items()}


def _tensors(result):
    """`result` with the data of a PackedSequence in its place."""
    if isinstance(result, PackedSequence):
        return result.data
    return tuple(map(_tensors, result)) if isinstance(result, tuple) else result


def error(result: torch.Tensor, oracle: torch.Tensor) -> float:
    """The largest absolute error; infinite where something is not finite."""
    if not oracle.numel():
        return 0.0
    difference = (result.double() - oracle).abs().max().item()
    return difference if math.isfinite(difference) else math.inf


def assert_as_accurate(ours: dict, theirs: dict, oracle: dict) -> None:
    """At most twice torch.nn's error (a gradient: three times) and a few roundings, in float64 1e-12."""
    assert ours.keys() == theirs.keys() == oracle.keys()
    terms = oracle["output"].numel() / max(1, oracle["output"].size(-1)) if "output" in oracle else 1
    for name, exact in oracle.items():
        assert (ours[name].shape, ours[name].dtype) == (theirs[name].shape, theirs[name].dtype), name
        dtype = ours[name].dtype
        scale = exact.abs().max().item() if exact.numel() else 0.0
        if dtype == torch.float64:
            rounding = 1e-12 * scale
        else:
            rounding = 4 * (torch.finfo(dtype).eps * scale + torch.finfo(dtype).tiny)
        # the gradient of a weight is a sum over all steps and rows, and torch.nn may be lucky in it
        if name.startswith(("d_weight", "d_bias")):
            rounding *= math.sqrt(terms)
        allowed = (3 if name.startswith("d_") else 2) * error(theirs[name], exact) + rounding
        got = error(ours[name], exact)
        assert got <= allowed, f"{name}: error {got:.3g}, allowed {allowed:.3g}, values up to {scale:.3g}"
