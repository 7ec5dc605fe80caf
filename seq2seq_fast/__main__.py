"""What seq2seq_fast has built, and what serves what on this machine; `bench` measures it."""

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

from . import __version__, _native, nn
from .cuda import loop
from .functional.recurrent import DTYPES


def served_by(name: str, dtype: torch.dtype, device: str) -> str:
    """What runs the layer `name` on an input of that dtype and device."""
    layer = getattr(nn, name)(1, 1, dtype=dtype, device=device)
    why_not = layer.why_not_fused(torch.empty(1, 1, dtype=dtype, device=device))
    return "fused" if why_not is None else "torch.nn"


def triton_version() -> str | None:
    try:
        return version("triton")
    except PackageNotFoundError:
        return None


def cuda_loop() -> str:
    library, why_not = loop.library()
    return why_not if library is None else "built, in the forms " + " and ".join(loop.FORMS)


def report() -> str:
    """Facts, one a line, and a table: layers by dtypes, for the CPU and for CUDA where there is a GPU."""
    built = _native.extension is not None
    has_gpu = torch.cuda.is_available()
    facts = {
        "seq2seq_fast": __version__,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "built": "the C++ extension" if built else _native.reason,
        "CUDA loop": cuda_loop(),
        "instruction set": torch.ops.seq2seq_fast.capability() if built else "torch's own choice",
        "threads": torch.get_num_threads(),
        "triton": triton_version() or "none: the kernels for GPUs need it",
        "GPU": torch.cuda.get_device_name() if has_gpu else "none",
    }
    row = "{:<6}{:<20}{:<10}{:<10}{:<10}{:<10}".format
    table = [row("", "", *(str(dtype).removeprefix("torch.") for dtype in DTYPES))]
    for device in ("cpu", "cuda") if has_gpu else ("cpu",):
        for name in nn.OURS:
            table.append(row(device, name, *(served_by(name, dtype, device) for dtype in DTYPES)))
    return "\n".join(
        [
            *(f"{name:<17}{fact}" for name, fact in facts.items()),
            "",
            *(line.rstrip() for line in table),
            "",
            "fused: this package's loops; torch.nn: torch's own code.",
            "seq2seq_fast.explain(layer, *inputs) says which one call takes, and why.",
        ]
    )


def bench(arguments: list[str]) -> int:
    """The benchmarks, where what they need is installed."""
    try:
        from .benchmarks.__main__ import main
    except ModuleNotFoundError as error:
        print(f"bench needs {error.name}, which is not installed: pip install seq2seq_fast[bench]", file=sys.stderr)
        return 1
    return main(arguments, prog="python -m seq2seq_fast bench")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m seq2seq_fast", description=__doc__)
    commands = parser.add_subparsers(title="commands", metavar="[bench ...]")
    commands.add_parser("bench", help="measures the layers, or a model of yours, on this machine", add_help=False)
    # its own options are the benchmarks' to parse
    if sys.argv[1:2] == ["bench"]:
        return bench(sys.argv[2:])
    parser.parse_args()
    print(report())
    return 0


if __name__ == "__main__":
    sys.exit(main())
