"""What moved between two results, beyond their noise."""

import json
import pathlib

from .markdown import table
from .summary import PEERS, group, timed


def entries(result: dict) -> dict[tuple, dict]:
    """Every ratio of a result with its quartiles, by what was measured."""
    found = {
        (PEERS[peer], *group(case), case["shape"]): pairs
        for peer, case, pairs in timed([*result["cases"], *result.get("sweep", [])])
    }
    for program in result.get("programs", []):
        for mode, pairs in program["modes"].items():
            if "ratio" in pairs:
                found[PEERS["torch_nn"], "", mode, "", "", program["name"]] = pairs
    return found


def moved(first: dict, second: dict) -> list[dict]:
    """The entries of both whose middle halves of ratios do not overlap, what fell most before what rose most."""
    then, now = entries(first), entries(second)
    rows = []
    for key in then.keys() & now.keys():
        a, b = then[key], now[key]
        if a["ratio_high"] < b["ratio_low"] or b["ratio_high"] < a["ratio_low"]:
            row = dict(zip(("against", "cell", "mode", "dtype", "device", "what"), key, strict=True))
            rows.append(row | {"before": a["ratio"], "now": b["ratio"], "change": b["ratio"] / a["ratio"]})
    return sorted(rows, key=lambda row: row["change"])


def report(paths: list[pathlib.Path]) -> str:
    """Markdown for two results' files.

    Raises:
        ValueError: a file is not there, or is no result.
    """
    results = [read(path) for path in paths]
    rows = moved(*results)
    both = len(entries(results[0]).keys() & entries(results[1]).keys())
    lines = [f"{len(rows)} of the {both} ratios that both have moved beyond their quartiles."]
    for name in ("processor", "instructions", "threads", "torch"):
        a, b = (result["machine"][name] for result in results)
        if a != b:
            lines.append(f"Not the same {name}: {a}, then {b}.")
    return "\n".join(lines) + ("\n\n" + table(rows) if rows else "") + "\n"


def read(path: pathlib.Path) -> dict:
    try:
        result = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"expected the JSON of a result, got {path} ({error})") from error
    if not (isinstance(result, dict) and {"machine", "cases", "summaries"} <= result.keys()):
        raise ValueError(f"expected the JSON of a result, got {path}, which has no machine, cases and summaries")
    return result
