"""These tests run Triton's kernels in its interpreter: TRITON_INTERPRET=1 pytest tests/interpreted.

Triton decides when it is imported whether it compiles or interprets, and the other tests compile.
"""

import os

if os.environ.get("TRITON_INTERPRET") != "1":
    collect_ignore_glob = ["test_*.py"]
