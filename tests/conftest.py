"""What every test shares: cells and dtypes, poisoned memory, and the skip for a missing extension."""

import os

import pytest
import torch
from cases import CELLS, LAYERS

from seq2seq_fast import _native

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_extension: needs the fused operators; skipped where they are not built")


def pytest_runtest_setup(item):
    if item.get_closest_marker("needs_extension") and _native.extension is None:
        if os.environ.get("SEQ2SEQ_FAST_REQUIRE_EXTENSION") == "1":
            pytest.fail(f"SEQ2SEQ_FAST_REQUIRE_EXTENSION=1, but {_native.reason}", pytrace=False)
        pytest.skip(_native.reason)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Memory that nothing has written yet reads as NaN, so that an element left unwritten shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def not_built(monkeypatch):
    """An installation without the extension: torch's own code serves every layer."""
    monkeypatch.setattr(_native, "extension", None)
    monkeypatch.setattr(_native, "reason", "the C++ extension is not built: no compiler")


@pytest.fixture(params=LAYERS)
def cell(request):
    return request.param


@pytest.fixture(params=CELLS)
def single(request):
    """The name of a cell class: GRUCell and its siblings, RNNCell with either nonlinearity."""
    return request.param


@pytest.fixture(params=DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request):
    return request.param
