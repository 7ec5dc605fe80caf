"""Every entry of the cells' tile table compiles for every target, without spills and within its shared memory."""

import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install triton")
from ahead_of_time import TARGETS
from compiled_kernels import compiled


@pytest.mark.parametrize("target", TARGETS)
def test_cells_fit(target):
    kernels = compiled(target, "cells")
    assert {k["kernel"] for k in kernels} == {"cell_step_kernel", "cell_step_backward_kernel"}
    for kernel in kernels:
        # cuda:100 has no matrix instruction for float64
        if kernel["kernel"] == "cell_step_kernel" and (target != "cuda:100" or "float64" not in kernel["case"]):
            assert kernel["matrix"] > 0, f"no matrix instructions: {kernel}"
