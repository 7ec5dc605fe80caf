"""Every entry of the tile table compiles for every target, without spills and within its shared memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from ahead_of_time import SHARED_MEMORY, TARGETS


def compiled(target: str, family: str) -> list[dict]:
    """What the kernels of a family take, each of which spills nothing and fits shared memory."""
    script = Path(__file__).with_name("ahead_of_time.py")
    process = subprocess.run([sys.executable, script, target, family], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-3000:]
    kernels = [json.loads(line) for line in process.stdout.splitlines()]
    for kernel in kernels:
        assert kernel["spills"] == 0 and kernel["shared"] <= SHARED_MEMORY[target], kernel
    return kernels


@pytest.mark.parametrize("target", TARGETS)
def test_additive_attention_fits(target):
    parts = ("forward", "backward_scores", "backward_queries", "backward_keys", "backward_values")
    assert {k["kernel"] for k in compiled(target, "additive")} == {f"additive_{part}_kernel" for part in parts}


@pytest.mark.parametrize("target", TARGETS)
def test_attention_fits(target):
    kernels = compiled(target, "attention")
    parts = ("forward", "weights", "decode", "combine", "backward_queries", "backward_keys", "backward_mask")
    assert {k["kernel"] for k in kernels} == {f"attention_{part}_kernel" for part in parts}
    for kernel in kernels:
        # what puts the splits together multiplies nothing
        assert kernel["matrix"] > 0 or kernel["kernel"] == "attention_combine_kernel", kernel
    if target == "cuda:90":
        halves = [k for k in kernels if "float16" in k["case"] and k["kernel"] == "attention_forward_kernel"]
        assert halves and all(k["wgmma"] for k in halves)
