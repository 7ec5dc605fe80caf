"""Statistics of a result: by cell, mode and peer, against the machine's peak, where a peer wins, and who sat out."""

import math
import statistics
from collections import Counter
from collections.abc import Iterator

from .cases import Shape
from .timing import NOISY

# as a result names them, and as people do; the order of every table
PEERS = {
    "torch_nn": "torch.nn",
    "compile": "torch.compile",
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "jax": "JAX",
}


def geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def timed(cases: list[dict]) -> Iterator[tuple[str, dict, dict]]:
    """(peer, case, its Pairs as a dict) for all that was timed."""
    for peer in PEERS:
        for case in cases:
            if "ratio" in case.get(peer, {}):
                yield peer, case, case[peer]


def noisy(pairs: dict) -> bool:
    """Whether the middle half of the ratios is wider than a ratio from a quiet machine."""
    return pairs["ratio_high"] > NOISY * pairs["ratio_low"]


def group(case: dict) -> tuple[str, str, str, str]:
    return case["cell"], case["mode"], case.get("dtype", "float32"), case.get("device", "cpu")


def summaries(cases: list[dict]) -> list[dict]:
    """For each peer, cell, mode, dtype and device: the ratios' geometric mean, the best and the worst, and where."""
    ratios = {}
    for peer, case, pairs in timed(cases):
        ratios.setdefault((peer, *group(case)), []).append((pairs["ratio"], case["shape"]))
    rows = []
    for (peer, *rest), found in ratios.items():
        worst, best = min(found), max(found)
        rows.append(
            dict(zip(("peer", "cell", "mode", "dtype", "device"), (peer, *rest), strict=True))
            | {"cases": len(found), "geomean": geomean([ratio for ratio, _ in found])}
            | {"worst": worst[0], "worst_at": worst[1], "best": best[0], "best_at": best[1]}
            | {"peer_wins": sum(ratio < 1 for ratio, _ in found)}
        )
    return rows


def lost(cases: list[dict]) -> list[dict]:
    """Where a peer is faster, most of all first; `certain` where it is in three quarters of the pairs."""
    rows = [
        dict(zip(("cell", "mode", "dtype", "device"), group(case), strict=True))
        | {"peer": peer, "shape": case["shape"], "ratio": pairs["ratio"], "certain": pairs["ratio_high"] < 1}
        for peer, case, pairs in timed(cases)
        if pairs["ratio"] < 1
    ]
    return sorted(rows, key=lambda row: row["ratio"])


def first_calls(cases: list[dict]) -> list[dict]:
    """Seconds of the first call of a layer, with what the engine prepares for it, in a process that has run others."""
    found = {}
    for case in cases:
        for engine, title in (("ours", "ours"), ("baseline", PEERS["torch_nn"])):
            if engine in case.get("first_call", {}):
                found.setdefault(title, []).append(case["first_call"][engine])
        for peer, title in PEERS.items():
            if "first_call" in case.get(peer, {}):
                found.setdefault(title, []).append(case[peer]["first_call"])
    return [
        {"engine": title, "cases": len(times), "median": statistics.median(times), "most": max(times)}
        for title, times in found.items()
    ]


def of_peak(cases: list[dict], peak: float) -> list[dict]:
    """For each cell and mode: which part of the float32 peak the large cases reach, and where it is least."""
    parts = {}
    for case in cases:
        shape = Shape.parse(case["shape"])
        if shape.saturates and "torch_nn" in case and group(case)[2:] == ("float32", "cpu"):
            rate = shape.flops(case["cell"], case["mode"]) / case["torch_nn"]["ours"] / 1e9
            parts.setdefault((case["cell"], case["mode"]), []).append((rate / peak, case["shape"]))
    return [
        {"cell": cell, "mode": mode, "cases": len(found), "mean of peak": geomean([part for part, _ in found])}
        | dict(zip(("least", "least_at"), min(found), strict=True))
        for (cell, mode), found in sorted(parts.items())
    ]


def left_out(cases: list[dict]) -> list[dict]:
    """Why a peer was not timed, and for how many cases."""
    reasons = Counter((p, c[p]["skipped"]) for c in cases for p in PEERS if "skipped" in c.get(p, {}))
    return [{"peer": PEERS[peer], "cases": count, "why": why} for (peer, why), count in reasons.items()]
