"""A result as Markdown."""

from tabulate import tabulate

from .cases import Shape
from .summary import PEERS, first_calls, left_out, lost, noisy, of_peak


def table(rows: list[dict]) -> str:
    return tabulate(rows, headers="keys", tablefmt="github", floatfmt=".2f")


def case_row(case: dict, peak: float) -> dict:
    row = {name: case[name] for name in ("cell", "mode", "shape")}
    for name, usual in (("dtype", "float32"), ("device", "cpu")):
        row[name] = "" if case.get(name, usual) == usual else case[name]
    if "wrong" in case:
        return row | {"ratio": f"WRONG: {case['wrong']}"}
    t = case["torch_nn"]
    part = Shape.parse(case["shape"]).flops(case["cell"], case["mode"]) / t["ours"] / 1e9 / peak
    row |= {
        "torch.nn us": f"{t['baseline'] * 1e6:.1f}",
        "ours us": f"{t['ours'] * 1e6:.1f}",
        "ratio": f"{t['ratio']:.2f}x{' noisy' if noisy(t) else ''}",
        "quartiles": f"{t['ratio_low']:.2f} to {t['ratio_high']:.2f}",
        "of peak": "" if row["dtype"] or row["device"] else f"{part:.0%}",
    }
    for peer in list(PEERS)[1:]:
        row[PEERS[peer]] = f"{case[peer]['ratio']:.2f}x" if "ratio" in case.get(peer, {}) else ""
    return row


def without_empty(rows: list[dict]) -> list[dict]:
    """The rows without the columns that say nothing."""
    columns = [name for name in (rows[0] if rows else ()) if any(row.get(name, "") != "" for row in rows)]
    return [{name: row.get(name, "") for name in columns} for row in rows]


def programs(found: list[dict]) -> list[dict]:
    return [
        {"program": p["name"], "mode": mode}
        | (
            {"ratio": f"WRONG: {t['wrong']}"}
            if "wrong" in t
            else {
                "before us": t["baseline"] * 1e6,
                "after us": t["ours"] * 1e6,
                "ratio": f"{t['ratio']:.2f}x{' noisy' if noisy(t) else ''}",
            }
        )
        for p in found
        for mode, t in p["modes"].items()
    ]


def layers(program: dict) -> list[dict]:
    return [
        {"layer": layer["name"], "kind": layer["kind"], "served by": layer["path"], "before us": layer["before"] * 1e6,
         "after us": layer["after"] * 1e6, "ratio": layer["before"] / layer["after"]}
        for layer in program["layers"]
    ]  # fmt: skip


def sections(result: dict) -> list[tuple[str, list[dict]]]:
    """(what the table shows, its rows), for the tables that hold something."""
    m, cases = result["machine"], [*result["cases"], *result.get("sweep", [])]
    wins = [
        {"peer": PEERS[row["peer"]], "cell": row["cell"], "mode": row["mode"], "shape": row["shape"],
         "ratio": row["ratio"], "": "" if row["certain"] else "within the noise"}
        for row in lost(result["cases"])
    ]  # fmt: skip
    summaries = [row | {"peer": PEERS[row["peer"]]} for row in result["summaries"]]
    found = [
        ("By peer, cell and mode:", summaries),
        ("Where a peer is faster:", wins),
        ("Whole programs, before and after `accelerate(model)`:", programs(result.get("programs", []))),
        *((f"{p['name']}, layer by layer: forward, in inference:", layers(p)) for p in result.get("programs", [])),
        ("H of 512 and more, B of 32 and more, as a part of the peak:", of_peak(result["cases"], m["peak_gflops"])),
        (
            "Rows of different lengths, against torch.nn with a PackedSequence (padded: packed before, padded after):",
            result.get("lengths", []),
        ),
        ("An LSTM with `proj_size`, against torch.nn:", result.get("projection", [])),
        ("bfloat16 under autocast against float32, both ours:", result.get("bfloat16", [])),
        (
            "A training step in a fresh process: its memory at the peak, and the first call of all "
            "(GRU and so on, T 2, B 1, H 2):",
            result.get("fresh", []),
        ),
        (
            "The first call of a layer in milliseconds, with what the engine prepares for it:",
            [row | {key: row[key] * 1e3 for key in ("median", "most")} for row in first_calls(cases)],
        ),
        ("Not timed:", left_out(cases)),
        ("All cases:", without_empty([case_row(case, m["peak_gflops"]) for case in cases])),
    ]
    return [(title, rows) for title, rows in found if rows]


def versions(machine: dict) -> str:
    """What was measured, but for the names that this machine has not."""
    titles = {"torch": "torch", **PEERS, "python": "Python", "commit": "commit"}
    return ", ".join(
        f"{title} {machine[name]}" for name, title in titles.items() if machine.get(name, "none") != "none"
    )


def markdown(result: dict) -> str:
    m = result["machine"]
    bandwidth = f", copies at {m['cache_gbs']} GB/s in the caches and {m['memory_gbs']} in memory"
    lines = [
        f"# {m['processor']}, {m['threads']} threads, {m['instructions']}",
        "",
        f"{versions(m)}, {m['date']}.",
        f"Measured float32 peak: {m['peak_gflops']} GFLOP/s{bandwidth if 'cache_gbs' in m else ''}.",
        "A ratio is the peer's time over ours, the median of pairs measured in turn.",
    ]
    if "empty_call" in result:
        lines += ["", empty_call(result["empty_call"])]
    if result.get("not_reached"):
        lines += ["", f"{result['not_reached']} cases were not reached in the time given."]
    for title, rows in sections(result):
        lines += ["", title, "", table(rows)]
    return "\n".join(lines) + "\n"


def empty_call(call: dict) -> str:
    inference, training = ([f"{call[mode][who] * 1e6:.1f}" for who in ("ours", "baseline")] for mode in call)
    return (
        "A call that computes almost nothing (GRU, T 2, B 1, H 2), ours and torch.nn's, in microseconds: "
        f"inference {inference[0]} and {inference[1]}, forward and backward {training[0]} and {training[1]}."
    )
