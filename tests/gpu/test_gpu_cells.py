"""The recurrent operators on CUDA against the reference in float64, as accurate as torch there."""

import pytest
import torch
from cell_operators import GATES, arguments, check

from seq2seq_fast import ops  # noqa: F401 - registers them

pytestmark = pytest.mark.gpu

operators = torch.ops.seq2seq_fast


@pytest.mark.parametrize("cell", GATES)
@pytest.mark.parametrize(
    "batch, width, hidden", [(1, 1, 1), (5, 40, 17), (1, 40, 63), (64, 512, 512), (130, 257, 1000)]
)
def test_single_step(cell, dtype, batch, width, hidden):
    check(arguments(cell, dtype, (batch, width), batch, hidden, device="cuda"), operators)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias, state", [(True, True), (False, False)])
@pytest.mark.parametrize("cell", GATES)
def test_layer(cell, dtype, bias, state, bidirectional):
    options = {"bias": bias, "state": state, "bidirectional": bidirectional, "device": "cuda"}
    check(arguments(cell, dtype, (7, 20, 63), 20, 113, **options), operators)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_lengths(cell, dtype, bidirectional):
    lengths = torch.tensor([2, 4, 1, 3, 0], device="cuda")
    options = {"lengths": lengths, "bidirectional": bidirectional, "device": "cuda"}
    check(arguments(cell, dtype, (4, 5, 40), 5, 63, **options), operators)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_packed(cell, dtype, bidirectional):
    options = {"batch_sizes": torch.tensor([4, 2, 2, 1]), "bidirectional": bidirectional, "device": "cuda"}
    check(arguments(cell, dtype, (9, 40), 4, 63, **options), operators)
