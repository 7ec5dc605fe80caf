"""What the kernels of csrc/cuda take, compiled for GPUs that are not there.

`python tests/cuda/resources.py` prints it for all, about two minutes; arguments are the architectures to compile for.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tabulate import tabulate

CSRC = Path(__file__).resolve().parent.parent.parent / "csrc" / "cuda"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
DTYPES = ("bfloat16", "float16", "float32")


def nvcc() -> str | None:
    return shutil.which("nvcc", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")


def kernels(dtype: str, architecture: str) -> list[dict]:
    """Registers and bytes of stack of each kernel of one dtype; a spill has a place on the stack."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [nvcc(), "-std=c++17", "--expt-relaxed-constexpr", "-diag-suppress=1675", f"-arch={architecture}",
             "--resource-usage", "-cubin", "-o", Path(folder) / "kernels.cubin", CSRC / f"{dtype}.cu"],
            capture_output=True, text=True,
        )  # fmt: skip
    if process.returncode:
        raise RuntimeError(process.stderr[-4000:])
    found = []
    for report in process.stderr.split("Compiling entry function")[1:]:
        direction, cell = re.search(r"\d(Forward|Backward)I.*?\d(Gru|Lstm|RnnTanh|RnnRelu)E", report).groups()
        form = re.search(r"\d(Grid|Cluster)Exchange", report).group(1)
        stack = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report)
        registers = re.search(r"Used (\d+) registers", report).group(1)
        found.append(
            {
                "target": architecture, "dtype": dtype, "cell": cell, "form": form.lower(), "pass": direction.lower(),
                "registers": int(registers), "stack": int(stack.group(1)), "spilled": int(stack.group(2)),
            }
        )  # fmt: skip
    return found


if __name__ == "__main__":
    rows = [k for arch in sys.argv[1:] or ARCHITECTURES for dtype in DTYPES for k in kernels(dtype, arch)]
    print(tabulate(rows, headers="keys", tablefmt="github"))
