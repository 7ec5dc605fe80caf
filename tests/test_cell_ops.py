"""The recurrent operators are registered for CUDA, and Triton waits for the first call."""

import subprocess
import sys

PROGRAM = """
import sys, torch
from seq2seq_fast import cell_ops
for name in ("rnn_layer", "rnn_layer_train", "rnn_layer_backward"):
    assert torch._C._dispatch_has_kernel_for_dispatch_key(f"seq2seq_fast::{name}", "CUDA"), name
assert not any(name.startswith("seq2seq_fast.kernels") for name in sys.modules)
"""


def test_registered_without_the_kernels():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
