"""compute-sanitizer on small layers: no access out of bounds, no race, no barrier that some threads pass by."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seq2seq_fast.cuda import loop

pytestmark = pytest.mark.gpu

HERE = Path(__file__).resolve().parent
SANITIZER = shutil.which("compute-sanitizer", path=f"{os.environ['PATH']}:/usr/local/cuda/bin")


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed; it comes with the CUDA toolkit")
@pytest.mark.parametrize("tool", ("memcheck", "racecheck", "synccheck"))
def test_finds_nothing(tool):
    library, why_not = loop.library()
    if library is None:
        pytest.skip(why_not)
    # the loop's own kernels: torch's would take minutes
    process = subprocess.run(
        [SANITIZER, "--tool", tool, "--error-exitcode", "9", "--kernel-name", "kns=persistent_kernel",
         sys.executable, HERE / "small_layers.py"],
        env=os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE.parents[1]}"}, capture_output=True, text=True,
    )  # fmt: skip
    words = process.stdout + process.stderr
    if "Device not supported" in words:
        pytest.skip("compute-sanitizer does not support this device")
    assert process.returncode == 0, words[-4000:]
