"""What only a fresh process shows: the memory of a training step, and what the first call costs.

`python -m benchmarks.fresh ENGINE CELL THREADS T B I H L D` prints both for one engine as JSON. Memory is that of the
whole process, so that what an engine keeps aside counts too.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time

import torch

from . import cases, peers

ENGINES = ("torch.nn", "ours")
SHAPES = (cases.Shape(50, 32, 256, 256), cases.Shape(50, 64, 128, 128, 2, 2), cases.Shape(20, 128, 1024, 1024))
STEPS = 3
# the folder that the module's name is found from
SEARCHED = pathlib.Path(__file__).parents[__spec__.name.count(".")]
RESET_PEAK = pathlib.Path("/proc/self/clear_refs")


def kilobytes(field: str) -> int:
    return int(re.search(rf"^{field}:\s*(\d+) kB", pathlib.Path("/proc/self/status").read_text(), re.MULTILINE)[1])


def step(engine: str, cell: str, shape: cases.Shape):
    """A training step of that engine, ready to be called."""
    case = cases.Case(cell, "training", shape)
    return peers.training(peers.layers(case)[ENGINES.index(engine)], peers.draw(case))


def measure(engine: str, cell: str, shape: cases.Shape) -> dict:
    """Seconds of the first training step of the process, and the bytes that later, larger steps add at their peak."""
    small = step(engine, cell, cases.EMPTY_CALL)
    begin = time.perf_counter()
    small()
    first_call = time.perf_counter() - begin
    large = step(engine, cell, shape)
    RESET_PEAK.write_text("5")
    before = kilobytes("VmRSS")
    for _ in range(STEPS):
        large()
    return {"first_call": first_call, "bytes": (kilobytes("VmHWM") - before) * 1024}


def table(selected: list[str]) -> list[dict]:
    """For each cell and shape, both engines; empty where Linux is not what counts the memory."""
    if not RESET_PEAK.exists():
        return []
    return [row(cell, shape) for cell in selected for shape in SHAPES]


def row(cell: str, shape: cases.Shape) -> dict:
    theirs, ours = (in_a_process(engine, cell, shape) for engine in ENGINES)
    return {
        "cell": cell,
        "shape": str(shape),
        "torch.nn MB": theirs["bytes"] / 1e6,
        "ours MB": ours["bytes"] / 1e6,
        "torch.nn first call ms": theirs["first_call"] * 1e3,
        "ours first call ms": ours["first_call"] * 1e3,
    }


def in_a_process(engine: str, cell: str, shape: cases.Shape) -> dict:
    sizes = [shape.T, shape.B, shape.I, shape.H, shape.L, shape.D]
    command = [sys.executable, "-m", __spec__.name, engine, cell, str(torch.get_num_threads()), *map(str, sizes)]
    done = subprocess.run(command, cwd=SEARCHED, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fresh", description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("cell", choices=cases.CELLS)
    parser.add_argument("threads", type=int)
    parser.add_argument("sizes", type=int, nargs=6, metavar=("T", "B", "I", "H", "L", "D"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(json.dumps(measure(args.engine, args.cell, cases.Shape(*args.sizes))))
