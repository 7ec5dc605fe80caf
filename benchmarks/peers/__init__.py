"""The engines that are compared: each as its own documentation says, from the same weights."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from seq2seq_fast import nn

from ..cases import COMPILED, SETS, Case
from .jax_scan import jax
from .runtimes import onnxruntime, openvino


def layers(case: Case) -> tuple[torch.nn.Module, torch.nn.Module]:
    """torch.nn's layer and ours, with the same weights."""
    torch.manual_seed(0)
    shape = case.shape
    theirs, ours = (
        getattr(module, case.cell)(shape.I, shape.H, shape.L, bidirectional=shape.D == 2).to(
            case.device, getattr(torch, case.dtype)
        )
        for module in (torch.nn, nn)
    )
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def draw(case: Case) -> Tensor:
    return torch.randn(case.shape.T, case.shape.B, case.shape.I).to(case.device, getattr(torch, case.dtype))


def inference(layer: torch.nn.Module, x: Tensor) -> Callable[[], list[Tensor]]:
    def run():
        with torch.inference_mode():
            return [layer(x)[0]]

    return run


def training(layer: torch.nn.Module, x: Tensor) -> Callable[[], list[Tensor]]:
    """The gradients of the output's sum, for every parameter and for the input."""
    x = x.detach().requires_grad_()
    wanted = (x, *layer.parameters())

    def run():
        output = layer(x)[0]
        return [output, *torch.autograd.grad(output.sum(), wanted)]

    return run


ENGINES = {"inference": inference, "training": training}


def why_no_compile(case: Case) -> str | None:
    by_name = {shape for shapes in SETS.values() for shape in shapes}
    if case.shape in COMPILED or case.shape not in by_name:
        return None
    return "not one of the few shapes that are compiled: it takes long"


def compiled(layer: torch.nn.Module, case: Case, x: Tensor, threads: int) -> Callable[[], list[Tensor]]:
    torch._dynamo.config.allow_rnn = True
    torch._dynamo.reset()
    return ENGINES[case.mode](torch.compile(layer), x)


def why_not(case: Case, modes: tuple[str, ...], *needed: str) -> str | None:
    """Why a peer from outside torch sits a case out."""
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        return f"{' and '.join(missing)} not installed: pip install seq2seq_fast[bench]"
    if case.mode not in modes:
        return f"{' and '.join(modes)} only"
    if (case.dtype, case.device) != ("float32", "cpu"):
        return "measured in float32 on the CPU only"
    return None


@dataclass(frozen=True)
class Peer:
    """An engine besides torch.nn."""

    why_not: Callable[[Case], str | None]
    # (torch.nn's layer, the case, its input, threads): a call that gives what ENGINES[case.mode] does
    make: Callable[[torch.nn.Module, Case, Tensor, int], Callable[[], list]]
    # seconds before each turn, for threads that spin on for work after their own
    rest: float = 0.0


PEERS = {
    "compile": Peer(why_no_compile, compiled),
    "onnxruntime": Peer(lambda case: why_not(case, ("inference",), "onnx", "onnxruntime"), onnxruntime, rest=0.02),
    "openvino": Peer(lambda case: why_not(case, ("inference",), "onnx", "openvino"), openvino, rest=0.02),
    "jax": Peer(lambda case: why_not(case, ("inference", "training"), "jax"), jax),
}
