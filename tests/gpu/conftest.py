"""The operators on CUDA. `make gpu` runs these; without a GPU they are skipped."""

import os

import pytest
import torch

# torch's products are deterministic, as the other tests have them, only with a workspace of fixed size
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_runtest_setup(item):
    if not torch.cuda.is_available():
        pytest.skip("torch.cuda.is_available() is False: there is no GPU, or this torch is built without CUDA")
