"""csrc/cuda built for the CPU in place of a GPU, and the package's operators on it: a call's stream is the seed of its
schedule, tensors on the CPU take the CUDA operators of seq2seq_fast.cuda."""

import ctypes
import subprocess
from contextlib import contextmanager
from ctypes import POINTER
from pathlib import Path
from unittest import mock

import torch

from seq2seq_fast.cuda import forms, layer, loop

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent.parent / "csrc"


def build(folder: Path, csrc: Path = CSRC, flags: tuple[str, ...] = ("-O1", "-Wall", "-Werror")) -> Path:
    """The library, from the sources in `csrc`."""
    library = folder / "stand_in.so"
    subprocess.run(
        ["g++", "-std=c++17", "-fPIC", "-shared", "-Wno-unknown-pragmas",
         f"-I{csrc / 'cuda'}", f"-I{HERE}", *flags, HERE / "stand_in.cpp", "-o", library],
        check=True,
    )  # fmt: skip
    return library


class StandIn(loop.Library):
    """The library with a device of that size; `plans` are those of the launches."""

    def __init__(self, path: Path, *, seed=0, sms=132, shared_memory=232448, cluster=16):
        super().__init__(path)
        self.functions.stand_in_limits.argtypes = (POINTER(loop.Limits),)
        self.device, self.seed, self.plans = loop.Limits(sms, shared_memory, cluster, 0), seed, []

    def limits(self, device) -> loop.Limits:
        self.functions.stand_in_limits(self.device)
        return self.device

    def stream(self, device) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.seed)

    def run(self, call, form, backward, device) -> None:
        # what the launch does not write shows
        ctypes.memset(call.workspace, 0xFF, call.workspace_size)
        self.plans.append((form, self.plan(call, form, backward, self.device)[1]))
        super().run(call, form, backward, device)


OPERATORS = ("rnn_layer", "rnn_layer_train", "rnn_layer_backward")


@contextmanager
def in_place_of_the_cpu(path: Path, form: str | None = "grid", *, tf32=False, **device):
    """Layers on the CPU run on the stand-in, in that form or in the one that is chosen."""
    library = StandIn(path, **device)
    registrations = torch.library.Library("seq2seq_fast", "IMPL")
    with (
        mock.patch.object(loop, "library", lambda: (library, None)),
        mock.patch.object(forms, "form", form),
        torch.backends.cudnn.flags(allow_tf32=tf32),
    ):
        forms._choose.cache_clear()
        for name in OPERATORS:
            registrations.impl(name, getattr(layer, name), "CPU", allow_override=True)
        try:
            yield library
        finally:
            registrations._destroy()
            forms._choose.cache_clear()
