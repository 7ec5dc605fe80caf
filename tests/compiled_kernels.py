"""What the Triton kernels take on each target, from ahead_of_time.py: a family's targets are compiled side by side."""

import json
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path

from ahead_of_time import SHARED_MEMORY, TARGETS

processes = ThreadPoolExecutor(os.cpu_count())


@lru_cache
def started(family: str) -> dict[str, Future]:
    command = [sys.executable, Path(__file__).with_name("ahead_of_time.py")]
    # a copy: pytest writes to the environment at every test, and exec may read what that has just freed
    run = partial(subprocess.run, env=dict(os.environ), capture_output=True, text=True)
    return {target: processes.submit(run, [*command, target, family]) for target in TARGETS}


def compiled(target: str, family: str) -> list[dict]:
    """What the kernels of a family take, each of which spills nothing and fits shared memory."""
    process = started(family)[target].result()
    assert process.returncode == 0, process.stderr[-3000:]
    kernels = [json.loads(line) for line in process.stdout.splitlines()]
    for kernel in kernels:
        assert kernel["spills"] == 0 and kernel["shared"] <= SHARED_MEMORY[target], kernel
    return kernels
