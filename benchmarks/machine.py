"""The machine: what it is, what it can do at best, and the processors a run is confined to."""

import datetime
import importlib.metadata
import os
import pathlib
import platform
import re
import shutil
import subprocess

import torch

from . import timing

# the copy of the smaller stays in the caches, that of the larger does not
COPIES = {"cache": (2**18, 2**20, 2**22), "memory": (2**28,)}
DISTRIBUTIONS = ("onnxruntime", "openvino", "jax")


def confine(threads: int) -> list[int]:
    """Keeps this process and all it starts on `threads` processors, on as many cores as there are, and gives their
    numbers; none where the system has no way to. A mask and no binding of each thread: every engine's pool is held by
    it, and each may place its threads inside.

    Raises:
        ValueError: there are fewer processors.
    """
    if not hasattr(os, "sched_setaffinity"):
        torch.set_num_threads(threads)
        return []
    allowed = sorted(os.sched_getaffinity(0))
    if threads > len(allowed):
        raise ValueError(f"threads: expected at most {len(allowed)}, which is what this process may use, got {threads}")
    chosen = sorted(sorted(allowed, key=rank_in_core)[:threads])
    os.sched_setaffinity(0, chosen)
    torch.set_num_threads(threads)
    return chosen


def rank_in_core(processor: int) -> int:
    """0 for the first processor of a core, 1 for its sibling."""
    siblings = pathlib.Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    if not siblings.exists():
        return 0
    numbers = []
    for part in siblings.read_text().strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers.index(processor)


def describe(threads: int, processors: list[int]) -> dict:
    """What was measured on, and with what."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model,
        "instructions": torch.ops.seq2seq_fast.capability(),
        "threads": threads,
        "processors": processors,
        "load": round(os.getloadavg()[0], 2),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        **limits(threads),
        "torch": torch.__version__,
        **{name: version(name) for name in DISTRIBUTIONS},
        "python": platform.python_version(),
        "commit": commit(),
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
    }


def commit() -> str:
    """Of the checkout that this is; none for an installation, which may lie in somebody else's."""
    root = pathlib.Path(__file__).resolve().parent.parent
    if not (root / ".git").exists() or shutil.which("git") is None:
        return "none"
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=root, capture_output=True, text=True)
    return done.stdout.strip() or "none"


def name_of(machine: dict) -> str:
    """The processor and the day, for the name of a file."""
    processor = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    return f"{processor}-{machine['date'][:10]}"


def limits(threads: int) -> dict:
    """The best of a few tries: GFLOP/s of float32 multiply-adds, GB/s read and written by a copy in the caches and in
    memory."""
    return {
        "peak_gflops": round(max(torch.ops.seq2seq_fast.measure_peak(threads) for _ in range(5)), 1),
        **{f"{place}_gbs": round(max(map(copy_rate, sizes)), 1) for place, sizes in COPIES.items()},
    }


def copy_rate(size: int) -> float:
    source, target = torch.ones(size // 4), torch.empty(size // 4)
    target.copy_(source)
    return max(2 * size / timing.sample(lambda: target.copy_(source), max(1, 2**26 // size)) / 1e9 for _ in range(5))


def better(first: dict, second: dict) -> dict:
    """`first`, with the better limits of the two: a neighbour takes from a peak and never adds to it."""
    return first | {name: max(first[name], second[name]) for name in ("peak_gflops", "cache_gbs", "memory_gbs")}


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"
