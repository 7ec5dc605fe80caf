"""`python -m benchmarks.gpu`: ours against torch's own on this GPU; prints the table and keeps it in results/."""

import datetime
import itertools
import json
import pathlib
import re
import subprocess
import sys

import torch
from tabulate import tabulate

from . import attention, cells, layers
from .case import measure


def main() -> None:
    if not torch.cuda.is_available():
        sys.exit("benchmarks.gpu: torch.cuda.is_available() is False: there is no GPU, or this torch has no CUDA")
    import triton

    rows = []
    for case in itertools.chain(layers.cases("cuda"), cells.cases("cuda"), attention.cases("cuda")):
        for mode in case.modes:
            rows.append(measure(case, mode))
            print(rows[-1], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
    }
    gpu = re.sub(r"[^a-z0-9]+", "-", machine["gpu"].lower()).strip("-")
    path = pathlib.Path(__file__).parent.parent / "results" / f"gpu-{gpu}-{machine['date'][:10]}.json"
    path.write_text(json.dumps({"machine": machine, "results": rows}, indent=1) + "\n")
    print(tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github"))
    print(path)


main()
