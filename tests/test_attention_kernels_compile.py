"""Every entry of the tile table compiles for every target, without spills and within its shared memory."""

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from ahead_of_time import TARGETS
from compiled_kernels import compiled


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
