"""From pytest-benchmark's JSON to the result that is kept: summaries by cell and mode, and a Markdown table."""

import datetime
import importlib.metadata
import math
import platform
import re
import subprocess
from collections import Counter

import torch
from tabulate import tabulate


def machine(threads: int) -> dict:
    """What was measured on, and with what."""
    model = platform.processor()
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            model = next((line.split(":")[1].strip() for line in cpuinfo if line.startswith("model name")), model)
    except OSError:
        pass
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "processor": model,
        "instructions": torch.ops.seq2seq_fast.capability(),
        "threads": threads,
        "peak_gflops": peak(threads),
        "torch": torch.__version__,
        "onnxruntime": version("onnxruntime"),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now().isoformat(timespec="minutes"),
    }


def name_of(machine: dict) -> str:
    """The processor and the day, for the name of a file."""
    processor = re.sub(r"[^a-z0-9]+", "-", machine["processor"].lower()).strip("-")
    return f"{processor}-{machine['date'][:10]}"


def peak(threads: int) -> float:
    """GFLOP/s of float32 multiply-adds, the best of a few."""
    return round(max(torch.ops.seq2seq_fast.measure_peak(threads) for _ in range(5)), 1)


def version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def summaries(cases: list[dict]) -> list[dict]:
    """For each cell, mode and peer: the geometric mean, the best and the worst of the ratios, and where."""
    rows = []
    for peer in ("torch_nn", "compile", "onnxruntime"):
        for key in sorted({(c["cell"], c["mode"]) for c in cases}):
            ratios = [
                (c[peer]["ratio"], c["shape"])
                for c in cases
                if (c["cell"], c["mode"]) == key and "ratio" in c.get(peer, {})
            ]
            if ratios:
                worst, best = min(ratios), max(ratios)
                mean = geomean([r for r, _ in ratios])
                rows.append(
                    {"peer": peer, "cell": key[0], "mode": key[1], "cases": len(ratios), "geomean": mean,
                     "worst": worst[0], "worst_at": worst[1], "best": best[0], "best_at": best[1]}
                )  # fmt: skip
    return rows


def table(rows: list[dict]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f")


def of_peak(cases: list[dict], peak: float) -> list[dict]:
    """For each cell and mode: which part of the peak the large cases reach, and where it is least."""
    rows = []
    for key in sorted({(c["cell"], c["mode"]) for c in cases}):
        parts = [
            (c["flops"] / c["torch_nn"]["ours"] / 1e9 / peak, c["shape"])
            for c in cases
            if (c["cell"], c["mode"]) == key and c["saturates"] and "torch_nn" in c
        ]
        if parts:
            least = min(parts)
            rows.append(
                {"cell": key[0], "mode": key[1], "cases": len(parts), "mean of peak": geomean([p for p, _ in parts]),
                 "least": least[0], "least_at": least[1]}
            )  # fmt: skip
    return rows


def left_out(cases: list[dict]) -> list[dict]:
    """Why a peer was not timed, and for how many cases."""
    reasons = [(p, c[p]["skipped"]) for c in cases for p in ("onnxruntime", "compile") if "skipped" in c.get(p, {})]
    return [{"peer": p, "cases": count, "why": why} for (p, why), count in Counter(reasons).items()]


def case_row(case: dict, peak: float) -> dict:
    row = {name: case[name] for name in ("cell", "mode", "shape")}
    if "wrong" in case:
        return row | {"ratio": f"WRONG: {case['wrong']}"}
    t = case["torch_nn"]
    row |= {
        "torch.nn us": f"{t['baseline'] * 1e6:.1f}",
        "ours us": f"{t['ours'] * 1e6:.1f}",
        "ratio": f"{t['ratio']:.2f}x",
        "quartiles": f"{t['ratio_low']:.2f} to {t['ratio_high']:.2f}",
        "of peak": f"{case['flops'] / t['ours'] / 1e9 / peak:.0%}",
    }
    for peer in ("compile", "onnxruntime"):
        row[peer] = f"{case[peer]['ratio']:.2f}x" if "ratio" in case.get(peer, {}) else ""
    return row


def markdown(result: dict) -> str:
    m, call = result["machine"], result["empty_call"]
    microseconds = {mode: [call[mode][engine] * 1e6 for engine in ("ours", "baseline")] for mode in call}
    return f"""# {m["processor"]}, {m["threads"]} threads, {m["instructions"]}

torch {m["torch"]}, ONNX Runtime {m["onnxruntime"]}, Python {m["python"]}, commit {m["commit"]}, {m["date"]}.
Measured float32 peak: {m["peak_gflops"]} GFLOP/s.
A ratio is the peer's time over ours, the median of pairs measured in turn.

{table(result["summaries"])}

A call that computes almost nothing (GRU, T 2, B 1, H 2), ours and torch.nn's, in microseconds: inference
{microseconds["inference"][0]:.1f} and {microseconds["inference"][1]:.1f}, forward and backward
{microseconds["training"][0]:.1f} and {microseconds["training"][1]:.1f}.

H of 512 and more, B of 32 and more, as a part of the peak:

{table(of_peak(result["cases"], m["peak_gflops"]))}

Rows of different lengths, against torch.nn with a PackedSequence (padded: packed before and padded after):

{table(result["lengths"])}

bfloat16 under autocast against float32, both ours:

{table(result["bfloat16"])}

A training step in a fresh process: its memory at the peak, and the first call of all (GRU and so on, T 2, B 1, H 2):

{table(result["fresh"])}

Not timed:

{table(left_out(result["cases"]))}

{table([case_row(case, m["peak_gflops"]) for case in result["cases"]])}
"""
