"""Puts the figures of the newest committed results into README.md: `python -m benchmarks.readme`."""

import argparse
import json
import pathlib
import re
import textwrap

from tabulate import tabulate

from . import compare, summary
from .cases import CELLS, MODES
from .markdown import empty_call, table

HERE = pathlib.Path(__file__).resolve().parent
README = HERE.parent / "README.md"
WHICH = ("geomean", "worst")
BEGIN, END = "<!-- figures: python -m benchmarks.readme -->", "<!-- end of figures -->"


def kept(*prefixes: str) -> list[pathlib.Path]:
    """The results in results/, by machine and day: of whole runs, or those whose names have a prefix (attention-)."""
    names = sorted((HERE / "results").glob("*.json"))
    dated = [path for path in names if re.fullmatch(r".*-\d{4}-\d\d-\d\d", path.stem)]
    if prefixes:
        return [path for path in dated if path.stem.startswith(prefixes)]
    return [path for path in dated if not path.stem.startswith(("attention-", "gpu-"))]


def newest() -> tuple[dict, dict]:
    """The latest of the whole runs in results/, and of those of attention."""
    layers, attention = map(compare.read, kept()), (json.loads(path.read_text()) for path in kept("attention-"))
    return tuple(max(results, key=lambda result: result["machine"]["date"]) for results in (layers, attention))


def figures(result: dict) -> str:
    """What stands between the marks."""
    m = result["machine"]
    shapes = len({case["shape"] for case in result["cases"]})
    rows = {}
    for found in result["summaries"]:
        if (found.get("dtype", "float32"), found.get("device", "cpu")) == ("float32", "cpu"):
            rows.setdefault((found["peer"], found["cell"]), {})[found["mode"]] = found
    shown = [
        [
            cell if peer == "torch_nn" else f"{cell}, against {summary.PEERS[peer]}",
            *(f"{rows[peer, cell][m][which]:.2f}x" if m in rows[peer, cell] else "" for m in MODES for which in WHICH),
        ]
        for peer in summary.PEERS
        for cell in CELLS
        if (peer, cell) in rows
    ]
    timed = list(summary.timed(result["cases"]))
    counts = [
        f"{title} in {sum(p['ratio'] < 1 for name, _, p in timed if name == peer)} of "
        f"{sum(name == peer for name, _, _ in timed)} cases"
        for peer, title in summary.PEERS.items()
        if any(name == peer for name, _, _ in timed)
    ]
    machine = f"{m['processor']} ({m['instructions']}, {m['threads']} threads, torch {m['torch']})"
    opening = (
        f"Ratio of torch.nn's time to ours, geometric mean and worst case over the {shapes} shapes of `benchmarks/`, "
        f"on an {machine}, where the float32 peak measured {m['peak_gflops']:.0f} GFLOP/s:"
    )
    closing = f"Faster than ours: {', '.join(counts)}. {empty_call(result['empty_call'])}"
    headers = ["", *(title for mode in MODES for title in (mode, "worst"))]
    lines = [
        *(textwrap.fill(opening, 128), "", tabulate(shown, headers, tablefmt="github", disable_numparse=True), ""),
        textwrap.fill(closing, 128),
    ]
    if result.get("programs"):
        lines += ["", "Whole programs, before and after `accelerate(model)`:", "", table(programs(result["programs"]))]
    return "\n".join(lines)


def programs(found: list[dict]) -> list[dict]:
    return [
        {"": p["name"]} | {mode: f"{p['modes'][mode]['ratio']:.2f}x" for mode in MODES if "ratio" in p["modes"][mode]}
        for p in found
    ]


def attention_figures(result: dict) -> str:
    """The ratios over the shapes, for each thing that people ask of attention."""
    cases = {}
    for row in result["cases"]:
        cases.setdefault(row["case"], []).append(row)
    rows = []
    for case, found in cases.items():
        ratios = [[row[f"{mode}, torch/ours"] for row in found] for mode in MODES]
        rows.append([case, *(f"{number:.2f}x" for r in ratios for number in (summary.geomean(r), min(r)))])
    machine = result["machine"]
    opening = (
        f"Attention, against torch's own way to the same, over sequences of 20 to 512 ({machine['processor']}, "
        f"{machine['threads']} threads):"
    )
    headers = ["", *(title for mode in MODES for title in (mode, "worst"))]
    return f"{textwrap.fill(opening, 128)}\n\n{tabulate(rows, headers, tablefmt='github', disable_numparse=True)}"


def updated(text: str, result: dict, attention: dict) -> str:
    """README's text with the figures of the results.

    Raises:
        ValueError: the marks are not there, once and in order.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"README.md: expected the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{figures(result)}\n\n{attention_figures(attention)}\n{END}{after}"


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__).parse_args()
    README.write_text(updated(README.read_text(), *newest()))
