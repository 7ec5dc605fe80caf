"""These tests run Triton's kernels in its interpreter: TRITON_INTERPRET=1 pytest tests/interpreted.

Triton decides when it is imported whether it compiles or interprets, and the other tests compile.
"""

import os
from importlib.util import find_spec

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]


class Skipped(pytest.Module):
    def collect(self):
        pytest.skip("triton is not installed: pip install triton")


def pytest_pycollect_makemodule(module_path, parent):
    # before the module is imported, which itself needs triton
    return Skipped.from_parent(parent, path=module_path) if find_spec("triton") is None else None
