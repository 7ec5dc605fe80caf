"""A result as one HTML file that needs nothing else: `render`."""

import math

from jinja2 import Environment, PackageLoader, StrictUndefined

from .. import markdown, summary
from ..cases import CELLS, MODES, SWEEPS, Shape
from . import plots

# matplotlib's markers of plots.LOOKS, as characters
MARKS = {"ours": "●", "torch_nn": "■", "compile": "▼", "onnxruntime": "▲", "openvino": "◆", "jax": "✚"}
FACTS = {
    "processor": "processor", "instructions": "instructions", "threads": "threads", "processors": "on processors",
    "load": "load before", "gpu": "GPU", "peak_gflops": "float32 peak, GFLOP/s",
    "cache_gbs": "copies in the caches, GB/s", "memory_gbs": "copies in memory, GB/s",
    "torch": "torch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "jax": "JAX", "python": "Python",
    "commit": "commit", "date": "date",
}  # fmt: skip
STRONGEST = 8  # the ratio from which on a cell of the heat map is no stronger


def render(result: dict) -> str:
    """The page for a result, of which only the sections are drawn that the result has."""
    environment = Environment(
        loader=PackageLoader(__package__, "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.tests["noisy"] = summary.noisy
    environment.filters.update(seconds=seconds, ratio=ratio, strength=strength)
    return environment.get_template("page.html").render(
        m=result["machine"],
        peers=summary.PEERS,
        facts=[(FACTS[name], fact(value)) for name, value in result["machine"].items() if fact(value)],
        versions=markdown.versions(result["machine"]),
        cells=[cell for cell in CELLS if any(case["cell"] == cell for case in result["cases"])],
        headlines=headlines(result["cases"]),
        overview=overview(result["summaries"]),
        lost=[row | {"unusual": unusual(row["dtype"], row["device"])} for row in summary.lost(result["cases"])],
        wrong=[case for case in result["cases"] + result.get("sweep", []) if "wrong" in case],
        heat=heat(result["cases"]),
        legend=[2**power for power in range(-3, 4)],
        curves=curves(result),
        engines=engines(result.get("sweep", [])),
        rooflines=rooflines(result),
        of_peak=summary.of_peak(result["cases"], result["machine"]["peak_gflops"]),
        errors=errors(result),
        memory=memory(result.get("fresh", [])),
        empty_call=result.get("empty_call"),
        first_calls=summary.first_calls([*result["cases"], *result.get("sweep", [])]),
        lengths=result.get("lengths", []),
        projection=result.get("projection", []),
        bfloat16=result.get("bfloat16", []),
        programs=result.get("programs", []),
        left_out=summary.left_out(result["cases"]),
        not_reached=result.get("not_reached", 0),
        cases=result["cases"],
    )


def seconds(time: float) -> str:
    """Three digits, with the unit that suits them."""
    unit, size = next((pair for pair in (("s", 1), ("ms", 1e-3), ("µs", 1e-6)) if time >= pair[1]), ("ns", 1e-9))
    digits = max(0, 2 - math.floor(math.log10(time / size)))
    return f"{time / size:.{digits}f} {unit}"


def ratio(value: float) -> str:
    return f"{value:.2f}" if value < 9.95 else f"{value:.1f}" if value < 99.5 else f"{value:.0f}"


def strength(value: float) -> str:
    """The class of a heat map's cell, and its strength in per cent; 1 is the colour of the page."""
    part = min(1, abs(math.log(value)) / math.log(STRONGEST))
    return f'class="heat {"win" if value > 1 else "lose"}" style="--strength: {part:.0%}"'


def fact(value) -> str:
    """A fact about the machine in words; none where there is none."""
    return ", ".join(map(str, value)) if isinstance(value, list) else "" if value in (None, "none") else str(value)


def unusual(dtype: str, device: str) -> str:
    """What is not as in most results."""
    return " ".join(name for name in (dtype, device) if name not in ("float32", "cpu"))


def headlines(cases: list[dict]) -> list[dict]:
    """For each peer: how many cases, in how many it is faster, the mean and the worst."""
    rows = []
    for peer, title in summary.PEERS.items():
        found = [(pairs["ratio"], case) for name, case, pairs in summary.timed(cases) if name == peer]
        if found:
            ratios = [value for value, _ in found]
            worst, case = min(found, key=lambda pair: pair[0])
            rows.append(
                {"title": title, "cases": len(found), "wins": sum(value < 1 for value in ratios),
                 "geomean": summary.geomean(ratios), "worst": worst, "case": case}
            )  # fmt: skip
    return rows


def overview(summaries: list[dict]) -> list[dict]:
    """The summaries with the cells side by side."""
    rows = {}
    for found in summaries:
        where = (found["peer"], found["mode"], unusual(found.get("dtype", "float32"), found.get("device", "cpu")))
        rows.setdefault(where, {})[found["cell"]] = found
    return [
        {"peer": peer, "mode": mode, "unusual": others, "cells": cells} for (peer, mode, others), cells in rows.items()
    ]


def heat(cases: list[dict]) -> list[dict]:
    """A map for each peer, dtype and device: a row a shape, a column for each cell and mode."""
    maps = {}
    for peer, case, pairs in summary.timed(cases):
        cell, mode, dtype, device = summary.group(case)
        rows = maps.setdefault((peer, dtype, device), {})
        rows.setdefault(case["shape"], {})[mode, cell] = pairs
    return [
        {
            "peer": peer,
            "dtype": dtype,
            "device": device,
            "modes": [mode for mode in MODES if any(m == mode for row in rows.values() for m, _ in row)],
            "rows": [(*label.rpartition(": ")[::2], row) for label, row in rows.items()],
        }
        for (peer, dtype, device), rows in maps.items()
    ]


def floor(shape: Shape, cell: str, mode: str, machine: dict) -> float:
    """Seconds that the arithmetic or, in the caches, the bytes must take."""
    return max(
        shape.flops(cell, mode) / machine["peak_gflops"] / 1e9, shape.bytes(cell, mode) / machine["cache_gbs"] / 1e9
    )


def of_the_floor(cases: list[dict]) -> list[dict]:
    """Those that the machine's float32 peak says something about."""
    return [case for case in cases if summary.group(case)[2:] == ("float32", "cpu") and "torch_nn" in case]


def engines(sweep: list[dict]) -> list[tuple[str, str, str]]:
    """The engines that the curves show: their names, marks and titles."""
    names = {"ours": "ours"} | {peer: summary.PEERS[peer] for peer, _, _ in summary.timed(sweep)}
    return [(name, MARKS[name], title) for name, title in names.items()]


def curves(result: dict) -> list[dict]:
    """For each mode and cell a panel for each of T, B and H, all on one scale of time."""
    cases = of_the_floor(result.get("sweep", []))
    if not cases:
        return []
    times = {}
    for case in cases:
        found = {"torch_nn": case["torch_nn"]["baseline"], "ours": case["torch_nn"]["ours"]}
        found |= {peer: case[peer]["baseline"] for peer in summary.PEERS if "baseline" in case.get(peer, {})}
        times[case["cell"], case["mode"], Shape.parse(case["shape"])] = found
    floors = {key: floor(key[2], key[0], key[1], result["machine"]) for key in times}
    limits = plots.span([time for found in times.values() for time in found.values()])
    rows = []
    for mode in MODES:
        for cell in CELLS:
            panels = []
            for size, shapes in SWEEPS.items():
                keys = {getattr(s, size): (cell, mode, s) for s in shapes if (cell, mode, s) in times}
                if len(keys) < 2:
                    continue
                engines = [e for e in plots.LOOKS if any(e in times[key] for key in keys.values())]
                by_engine = {e: {n: times[key][e] for n, key in keys.items() if e in times[key]} for e in engines}
                below = {n: floors[key] for n, key in keys.items()}
                panels.append(plots.curves(f"{cell}, {mode}", size, by_engine, below, limits))
            if panels:
                rows.append({"cell": cell, "mode": mode, "panels": panels})
    return rows


def rooflines(result: dict) -> list[str]:
    machine = result["machine"]
    points = {mode: {} for mode in MODES}
    for case in of_the_floor(result["cases"] + result.get("sweep", [])):
        flops, size = (
            getattr(Shape.parse(case["shape"]), what)(case["cell"], case["mode"]) for what in ("flops", "bytes")
        )
        attained = flops / case["torch_nn"]["ours"] / 1e9
        points[case["mode"]].setdefault(case["cell"], []).append((flops / size, attained))
    everywhere = [point for found in points.values() for some in found.values() for point in some]
    if not everywhere:
        return []
    x, y = zip(*everywhere, strict=True)
    limits = plots.span(x), plots.span([*y, machine["peak_gflops"]])
    roofs = [machine[name] for name in ("cache_gbs", "memory_gbs") if name in machine]
    return [plots.roofline(m, found, machine["peak_gflops"], roofs, limits) for m, found in points.items() if found]


def errors(result: dict) -> list[str]:
    """A panel for the outputs, and one for the largest error among the gradients."""
    parts = {"outputs": {}, "gradients": {}}
    for case in of_the_floor([case for case in result["cases"] + result.get("sweep", []) if "error" in case]):
        theirs, ours = case["error"]["baseline"], case["error"]["ours"]
        for part, which in (("outputs", slice(1)), ("gradients", slice(1, None))):
            # an error of nothing is drawn at a small part of a rounding
            if theirs[which]:
                point = tuple(max(1e-9, *found[which]) for found in (theirs, ours))
                parts[part].setdefault(case["cell"], []).append(point)
    everywhere = [number for found in parts.values() for some in found.values() for point in some for number in point]
    if not everywhere:
        return []
    limits = plots.span(everywhere)
    return [
        plots.errors(part, parts[part], limits, times)
        for part, times in (("outputs", 2), ("gradients", 3))
        if parts[part]
    ]


def memory(fresh: list[dict]) -> list[dict]:
    """The rows with each number as a part of the largest."""
    most = max((row[f"{who} MB"] for row in fresh for who in ("torch.nn", "ours")), default=1)
    return [row | {"bars": [row[f"{who} MB"] / most for who in ("torch.nn", "ours")]} for row in fresh]
