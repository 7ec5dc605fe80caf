"""Compiles kernels for GPUs that are not there: `make kernels` prints what each takes.

The production launchers run on CPU tensors under a driver that only names its target, and a launch only compiles. Run
in a process of its own for each target: a compiler that crashes takes its process with it.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from tabulate import tabulate
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.jit import JITFunction

TARGETS = {
    "cuda:80": GPUTarget("cuda", 80, 32),
    "cuda:90": GPUTarget("cuda", 90, 32),
    "cuda:100": GPUTarget("cuda", 100, 32),
    "hip:gfx942": GPUTarget("hip", "gfx942", 64),
}
# bytes a program may have, which the compiler does not hold it to
SHARED_MEMORY = {"cuda:80": 166912, "cuda:90": 232448, "cuda:100": 232448, "hip:gfx942": 65536}


class NamedTarget(DriverBase):
    """A driver of no device."""

    def __init__(self, target):
        self.target = target
        self.utils = None

    @staticmethod
    def is_active():
        return True

    def map_python_to_cpp_type(self, ty):
        return ty

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_benchmarker(self):
        raise RuntimeError("a driver of no device measures nothing")


def resources(kernel, backend: str) -> dict:
    """Registers, spills, shared memory and matrix instructions of a compiled kernel."""
    found = {"shared": kernel.metadata.shared}
    if backend == "hip":
        text = kernel.asm["amdgcn"]
        found["registers"] = int(re.search(r"\.vgpr_count:\s+(\d+)", text).group(1))
        found["spills"] = int(re.search(r"\.vgpr_spill_count:\s+(\d+)", text).group(1))
        found["matrix"] = len(re.findall(r"v_mfma", text))
        return found
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found["registers"], found["spills"] = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    found["matrix"] = len(re.findall(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync", kernel.asm["ptx"]))
    found["wgmma"] = len(re.findall(r"wgmma\.mma_async", kernel.asm["ptx"]))
    return found


def compile_launches(target: str, launches):
    """Yields (label, name, resources) for every kernel that `launches`, pairs of a label and a function, launch."""
    driver.set_active(NamedTarget(TARGETS[target]))
    compiled = []
    run = JITFunction.run

    def only_compile(self, *args, grid, warmup, **kwargs):
        compiled.append((self.fn.__name__, run(self, *args, grid=grid, warmup=True, **kwargs)))

    JITFunction.run = only_compile
    for label, launch in launches:
        launch()
        while compiled:
            name, kernel = compiled.pop(0)
            yield label, name, resources(kernel, TARGETS[target].backend)


def attention_launches():
    """Every entry of the tile table, through every kernel of attention."""
    from seq2seq_fast.kernels import attention_backward, attention_forward, tiles

    for dtype, widest in tiles.WIDEST.items():
        for width in (w for w in (64, 128, 256) if w <= widest):
            for queries, keys in ((64, 128), (1, 2048)):
                query, key, value = (torch.empty(2, 4, n, width, dtype=dtype) for n in (queries, keys, keys))
                masks = [
                    torch.ones(2, 1, queries, keys, dtype=torch.bool),
                    torch.empty(1, 4, queries, keys, dtype=dtype),
                ]
                rest = (torch.ones(2, dtype=torch.int64), torch.ones(1, dtype=torch.int64), True, 0.1, 0.125)

                def launch(query=query, key=key, value=value, masks=masks, rest=rest):
                    arguments = (query, key, value, masks, *rest, "heads", "zeros")
                    output, weights, lse = attention_forward.attention_train(*arguments)
                    needs = [True, True, True, False, True]
                    attention_backward.attention_backward([output, weights], output, lse, needs, *arguments)

                yield f"{str(dtype).removeprefix('torch.')} {width} {queries}", launch


def additive_launches():
    """Every entry of the tile table, through every kernel of additive attention."""
    from seq2seq_fast.kernels import additive_attention, additive_attention_backward

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for queries in (1, 8):
            query, key, value = (torch.empty(2, n, 64, dtype=dtype) for n in (queries, 128, 128))
            masks = [torch.ones(2, 1, 128, dtype=torch.bool), torch.empty(1, queries, 128, dtype=dtype)]
            arguments = (query, key, query[0, 0], value, masks, torch.ones(2, dtype=torch.int64), "uniform")

            def launch(arguments=arguments):
                output, weights, lse = additive_attention.additive_attention_train(*arguments)
                needs = [True, True, True, True, False, True]
                additive_attention_backward.additive_attention_backward(
                    [output, weights], output, lse, needs, *arguments
                )

            yield f"additive {str(dtype).removeprefix('torch.')} {queries}", launch


def cell_launches():
    """Every entry of the tile table, through both kernels of each cell: a step of odd sizes, a layer of even ones.

    Odd sizes cost registers, for addresses that vectors do not share, and a step more than one of a layer.
    """
    from seq2seq_fast.kernels import cell_layer
    from seq2seq_fast.kernels.cell_step import CELLS

    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for cell, kind in CELLS.items():
            for batch in (16, 64):
                for input_shape, size in (((batch,), 63), ((2, batch), 64)):
                    rows = kind.gates * size
                    weights = [torch.zeros(rows, *width, dtype=dtype) for width in ((size,), (size,), (), ())]
                    input = torch.zeros(*input_shape, size, dtype=dtype)
                    state = torch.zeros(batch, size, dtype=dtype) if len(input_shape) == 1 else input[:1]
                    lengths = None if len(input_shape) == 1 else torch.ones(batch, dtype=torch.int64)
                    args = (input, state, state if kind.has_c else None, weights, lengths, None, cell, False)

                    def launch(args=args):
                        *outputs, reserve = cell_layer.rnn_layer_train(*args)
                        cell_layer.rnn_layer_backward(outputs, reserve, [True] * 4, *args)

                    yield f"{cell} {str(dtype).removeprefix('torch.')} {batch} {size}", launch


LAUNCHES = {"attention": attention_launches, "additive": additive_launches, "cells": cell_launches}


def table(targets) -> str:
    """What each kernel takes on each target, each target in a process of its own."""
    rows = []
    for family in LAUNCHES:
        for target in targets:
            process = subprocess.run([sys.executable, __file__, target, family], capture_output=True, text=True)
            if process.returncode:
                raise RuntimeError(f"{family} {target}: {process.stderr[-2000:]}")
            rows += map(json.loads, process.stdout.splitlines())
    return tabulate(rows, headers="keys", tablefmt="github")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(table(TARGETS))
    else:
        launches = LAUNCHES[sys.argv[2] if len(sys.argv) > 2 else "attention"]
        for label, name, found in compile_launches(sys.argv[1], launches()):
            print(json.dumps({"target": sys.argv[1], "case": label, "kernel": name, **found}), flush=True)
