"""Every entry of the tile table compiles for every target, without spills and within its shared memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from ahead_of_time import SHARED_MEMORY, TARGETS


@pytest.mark.parametrize("target", TARGETS)
def test_attention_fits(target):
    script = Path(__file__).with_name("ahead_of_time.py")
    process = subprocess.run([sys.executable, script, target], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    kernels = [json.loads(line) for line in process.stdout.splitlines()]
    assert len({k["kernel"] for k in kernels}) == 4
    for kernel in kernels:
        assert kernel["spills"] == 0 and kernel["shared"] <= SHARED_MEMORY[target], kernel
        assert kernel["matrix"] > 0, f"no matrix instructions: {kernel}"
    if target == "cuda:90":
        halves = [k for k in kernels if "float16" in k["case"] and k["kernel"] == "attention_forward_kernel"]
        assert halves and all(k["wgmma"] for k in halves)
