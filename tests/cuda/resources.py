"""What the kernels of csrc/cuda take, compiled for GPUs that are not there; resources.csv holds it for nvcc 13.0.

`python tests/cuda/resources.py > tests/cuda/resources.csv` writes it anew, in about three minutes on one core.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CSRC = HERE.parent.parent / "csrc" / "cuda"
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")
DTYPES = ("bfloat16", "float16", "float32")
COLUMNS = ("target", "dtype", "cell", "form", "pass", "registers", "stack", "spilled")


def nvcc() -> str | None:
    return shutil.which("nvcc", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")


def release() -> str:
    return re.search(r"release ([\d.]+)", subprocess.run([nvcc(), "--version"], capture_output=True, text=True).stdout)[
        1
    ]


def compiled(dtype: str, architecture: str) -> list[dict]:
    """Registers of each kernel of one dtype, bytes of its stack, and of them those that registers spilled into."""
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
        form = re.search(r"\d(Grid|Cluster)Exchange", report)[1]
        stack, spilled = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores", report).groups()
        registers = re.search(r"Used (\d+) registers", report)[1]
        names = (architecture, dtype, cell.lower(), form.lower(), direction.lower())
        found.append(dict(zip(COLUMNS, (*names, int(registers), int(stack), int(spilled)), strict=True)))
    return found


def table() -> list[dict]:
    with open(HERE / "resources.csv") as file:
        return [
            {name: int(value) if value.isdigit() else value for name, value in row.items()}
            for row in csv.DictReader(file)
        ]


if __name__ == "__main__":
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for architecture in ARCHITECTURES:
        for dtype in DTYPES:
            writer.writerows(compiled(dtype, architecture))
