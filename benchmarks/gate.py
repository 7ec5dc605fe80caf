"""Whether a few ratios to torch.nn are still what bounds.json asks for: `python -m benchmarks.gate`, in under a minute.

Ratios of pairs from one run, on one thread, and never a time. A case fails when three quarters of its pairs are below
its bound, which is ALLOWANCE of what the machine that wrote the bounds measured: room for noise and other processors.
"""

import argparse
import json
import pathlib
import sys

from tqdm import tqdm

from seq2seq_fast import _native

from . import cases, machine, run
from .markdown import table

BOUNDS = pathlib.Path(__file__).with_name("bounds.json")
ALLOWANCE = 0.6
SHAPES = tuple(s for s in cases.PROGRAMS if s.name in ("history", "pronunciation", "decoding one word"))
SECONDS = 0.5


def measure() -> list[dict]:
    machine.confine(1)
    options = argparse.Namespace(
        cells=cases.CELLS, modes=cases.MODES, shapes=SHAPES, dtypes=("float32",), devices=("cpu",),
        peers=(), threads=1, seconds=SECONDS, deadline=None,
    )  # fmt: skip
    selected = run.select(options)
    with tqdm(total=len(selected), unit="case") as bar:
        return run.grid(selected, options, bar)


def name(case: dict) -> str:
    return f"{case['cell']} {case['mode']} {case['shape']}"


def judge(measured: list[dict], bounds: dict[str, float]) -> list[dict]:
    """A row for each bound, with what is wrong; an empty `fails` is none."""
    found = {name(case): case for case in measured}
    rows = []
    for case, bound in bounds.items():
        pairs = found.get(case, {}).get("torch_nn")
        if pairs is None:
            why = found.get(case, {}).get("wrong", "not measured")
            rows.append({"case": case, "bound": bound, "ratio": "", "fails": why})
        else:
            why = "slower than the bound" if pairs["ratio_high"] < bound else ""
            rows.append({"case": case, "bound": bound, "ratio": pairs["ratio"], "fails": why})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="makes the bounds from what is measured now")
    args = parser.parse_args()
    if _native.extension is None:
        print(f"nothing to measure: {_native.reason}", file=sys.stderr)
        return 1
    measured = measure()
    if args.write:
        bounds = {name(case): round(ALLOWANCE * case["torch_nn"]["ratio"], 2) for case in measured}
        BOUNDS.write_text(json.dumps(bounds, indent=1) + "\n")
    rows = judge(measured, json.loads(BOUNDS.read_text()))
    print(table(rows))
    return 1 if any(row["fails"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
