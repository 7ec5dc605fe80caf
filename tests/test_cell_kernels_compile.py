"""Every entry of the cells' tile table compiles for every target, without spills and within its shared memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from ahead_of_time import SHARED_MEMORY, TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_cells_fit(target):
    script = Path(__file__).with_name("ahead_of_time.py")
    process = subprocess.run([sys.executable, script, target, "cells"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    kernels = [json.loads(line) for line in process.stdout.splitlines()]
    assert {k["kernel"] for k in kernels} == {"cell_step_kernel", "cell_step_backward_kernel"}
    for kernel in kernels:
        assert kernel["spills"] == 0 and kernel["shared"] <= SHARED_MEMORY[target], kernel
        # cuda:100 has no matrix instruction for float64
        if kernel["kernel"] == "cell_step_kernel" and (target != "cuda:100" or "float64" not in kernel["case"]):
            assert kernel["matrix"] > 0, f"no matrix instructions: {kernel}"
