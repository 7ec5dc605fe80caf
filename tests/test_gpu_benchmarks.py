"""What `python -m benchmarks.gpu` compares, on the CPU: there the operators are others, the functions the same."""

import pytest
import torch

pytest.importorskip("benchmarks", reason="these are the tests of a checkout, and this is a copy without benchmarks")

from benchmarks.gpu import attention, cells, layers
from benchmarks.gpu.case import problem

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.needs_extension
@pytest.mark.parametrize("mode", ("inference", "training"))
def test_cases_are_right(mode):
    compared = [
        *cells.cases("cpu", DTYPES, [(3, 17)]),
        *layers.cases("cpu", DTYPES, [(3, 17, 1, 2), (3, 17, 2, 1)], steps=9),
        *attention.cases("cpu", DTYPES, [(2, 3, 5, 5, 8)], (2, 2, 1, 9, 8), (2, 1, 1, 5, 16)),
    ]
    found = [(case.name, problem(case, mode)) for case in compared if mode in case.modes]
    # each against one of torch's ways at least: the CPU has not every backend
    assert {name for name, why_not in found if why_not is None} == {name for name, _ in found}
    assert all(why_not is None or why_not.startswith("torch: No ") for _, why_not in found)
