"""`python -m benchmarks`: runs the grid, prints the table, and keeps it as JSON and Markdown."""

import argparse
import json
import pathlib
import sys
import tempfile

import pytest
import torch

import seq2seq_fast

from . import cases, extras, fresh, report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small fixed part of the grid, about five minutes")
    parser.add_argument("--cells", default=",".join(cases.CELLS), help="default %(default)s")
    parser.add_argument("--modes", default=",".join(cases.MODES), help="default %(default)s")
    parser.add_argument("--peers", default="compile,onnxruntime", help="besides torch.nn; default %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case and peer; default %(default)s")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).parent / "results")
    args = parser.parse_args()
    for name, allowed in (("cells", cases.CELLS), ("modes", cases.MODES), ("peers", ("compile", "onnxruntime", ""))):
        for value in getattr(args, name).split(","):
            if value not in allowed:
                parser.error(f"--{name}: expected some of {', '.join(allowed)}, got {value!r}")
    if args.threads < 1:
        parser.error(f"--threads: expected at least 1, got {args.threads}")
    if not args.seconds > 0:
        parser.error(f"--seconds: expected more than 0, got {args.seconds}")
    return args


def main() -> int:
    args = arguments()
    if seq2seq_fast._native.extension is None:
        print(f"nothing to measure: {seq2seq_fast._native.reason}", file=sys.stderr)
        return 1
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    machine = report.machine(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder) / "raw.json"
        passed_on = [f"--{name}={getattr(args, name)}" for name in ("cells", "modes", "peers", "threads", "seconds")]
        status = pytest.main(
            [str(pathlib.Path(__file__).parent), "-q", "-p", "no:cacheprovider", f"--benchmark-json={raw}", *passed_on]
            + (["--quick"] if args.quick else [])
            + ["--benchmark-columns=median", "--benchmark-sort=name"]
        )
        measured = [b["extra_info"] for b in json.loads(raw.read_text())["benchmarks"]]
    selected = args.cells.split(",")
    result = {
        # a neighbour on the machine takes from a peak and never adds to it: the best of those before and after
        "machine": machine | {"peak_gflops": max(machine["peak_gflops"], report.peak(args.threads))},
        "summaries": report.summaries(measured),
        "empty_call": extras.empty_call(args.seconds),
        "lengths": extras.lengths(selected, args.seconds),
        "bfloat16": extras.bfloat16(selected, args.seconds),
        "fresh": fresh.table(selected),
        "cases": measured,
    }
    name = report.name_of(result["machine"]) + ("-quick" if args.quick else "")
    (args.output / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (args.output / f"{name}.md").write_text(report.markdown(result))
    print(report.markdown(result))
    print(f"kept as {args.output / name}.json and .md")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
