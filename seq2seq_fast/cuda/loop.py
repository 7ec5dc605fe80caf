"""csrc/cuda/loop.h through ctypes: its structures and its library, which knows nothing of torch."""

import ctypes
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

import torch

from .. import _native

CELLS = ("gru", "lstm", "rnn_tanh", "rnn_relu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FORMS = ("grid", "cluster")
STATUSES = (
    "ok", "bad_argument", "no_workspace", "not_supported", "too_large", "too_many_blocks", "launch_failed",
)  # fmt: skip


def _structure(name: str, **fields) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


Direction = _structure(
    "Direction",
    **dict.fromkeys(("x_gates", "weight_hh", "bias_hh", "h_0", "c_0", "output", "h_n", "c_n", "reserve"), c_void_p),
    **dict.fromkeys(("d_output", "d_h_n", "d_c_n", "d_gates", "d_h_0", "d_c_0"), c_void_p),
    **dict.fromkeys(("x_stride", "output_stride"), c_int64),
    **dict.fromkeys(("reverse", "unused"), c_int32),
)
Loop = _structure(
    "Loop",
    **dict.fromkeys(("cell", "dtype", "tf32", "directions"), c_int32),
    **dict.fromkeys(("hidden_size", "steps", "batch"), c_int64),
    **dict.fromkeys(("active", "by_step", "by_row", "hx_row"), c_void_p),
    direction=Direction * 2,
    workspace=c_void_p,
    workspace_size=c_int64,
    max_sms=c_int32,
    unused=c_int32,
)
Limits = _structure("Limits", **dict.fromkeys(("sms", "shared_memory", "cluster", "unused"), c_int32))
Plan = _structure(
    "Plan", **dict.fromkeys(("groups", "blocks", "units", "shared_memory"), c_int32), workspace=c_int64
)  # fmt: skip


class Library:
    """The compiled loop.

    Raises:
        OSError: `path` does not load.
    """

    def __init__(self, path: Path):
        self.functions = functions = ctypes.CDLL(str(path))
        functions.loop_limits.argtypes = (c_int32, POINTER(Limits))
        functions.loop_plan.argtypes = (POINTER(Loop), c_int32, c_int32, POINTER(Limits), POINTER(Plan))
        functions.loop_forward.argtypes = functions.loop_backward.argtypes = (POINTER(Loop), c_int32, c_void_p)
        functions.loop_error.argtypes, functions.loop_error.restype = (c_int32,), c_char_p

    def limits(self, device: torch.device) -> Limits | None:
        """What `device` allows; None where it runs no form."""
        limits = Limits()
        status = self.functions.loop_limits(device.index, limits)
        return limits if STATUSES[status] == "ok" else None

    def plan(self, loop: Loop, form: str, backward: bool, limits: Limits) -> tuple[str, Plan]:
        """The status and the plan; reads the sizes of `loop` alone."""
        plan = Plan()
        status = self.functions.loop_plan(loop, FORMS.index(form), backward, limits, plan)
        return STATUSES[status], plan

    def stream(self, device: torch.device) -> int:
        return torch.cuda.current_stream(device).cuda_stream

    def run(self, loop: Loop, form: str, backward: bool, device: torch.device) -> None:
        """Launches on the current device's current stream, and returns at once.

        Raises:
            RuntimeError: the launch was refused; the message says what was asked, and what CUDA said.
        """
        call = self.functions.loop_backward if backward else self.functions.loop_forward
        status = call(loop, FORMS.index(form), self.stream(device))
        if STATUSES[status] != "ok":
            raise RuntimeError(
                f"the {form} form of the recurrent loop, {'backward' if backward else 'forward'}: "
                f"{CELLS[loop.cell]}, {DTYPES[loop.dtype]}, hidden_size={loop.hidden_size}, {loop.steps} steps of "
                f"{loop.batch} rows, {loop.directions} directions: {self.functions.loop_error(status).decode()}"
            )


@lru_cache(maxsize=1)
def library() -> tuple[Library | None, str | None]:
    """The library and None, or None and why there is none, in one sentence."""
    path = Path(__file__).with_name("_loop.so")
    if not path.exists():
        why = getattr(_native.build, "CUDA_REASON", None) or "these sources were never installed"
        return None, f"the CUDA kernels are not built: {why}"
    if not torch.cuda.is_available():
        return None, "torch sees no GPU"
    try:
        return Library(path), None
    except OSError as error:
        return None, f"the CUDA kernels do not load ({error}): reinstall seq2seq_fast"
