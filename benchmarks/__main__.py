"""Measures the layers on this machine: a page with pictures, a Markdown table and JSON, kept in a folder."""

import argparse
import json
import pathlib
import sys

import torch

from seq2seq_fast import _native

from . import cases, compare, machine, markdown, page, peers, run

HERE = pathlib.Path(__file__).resolve().parent
# in an installation, next to the program nothing is to be written
RESULTS = HERE / "results" if (HERE / "results").is_dir() else pathlib.Path("results")
DEFAULT_SHAPES = "programs,grid,sweep"


def some_of(allowed):
    """An argument's type: names from `allowed`, with commas between; an empty one is none."""

    def parse(text: str) -> list[str]:
        chosen = [name for name in text.split(",") if name]
        if wrong := [name for name in chosen if name not in allowed]:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(allowed)}, got {wrong[0]!r}")
        return chosen

    return parse


def some_shapes(text: str) -> list[cases.Shape]:
    chosen = []
    for name in text.split(","):
        try:
            chosen += cases.SETS[name] if name in cases.SETS else [cases.Shape.parse(name)]
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(cases.SETS)}, or {error}") from None
    return list(dict.fromkeys(chosen))


def more_than_none(kind):
    def parse(text: str):
        if not (value := kind(text)) > 0:
            raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
        return value

    parse.__name__ = kind.__name__
    return parse


def parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add = parser.add_argument
    add("--cells", type=some_of(cases.CELLS), default=",".join(cases.CELLS), help="default %(default)s")
    add("--modes", type=some_of(cases.MODES), default=",".join(cases.MODES), help="default %(default)s")
    add(
        "--shapes",
        type=some_shapes,
        default=DEFAULT_SHAPES,
        help=f"sets ({', '.join(cases.SETS)}) or shapes such as 'T10 B32 H128' or 'T10 B32 I64 H128 L2 D2', "
        "with commas between; default %(default)s",
    )
    add("--dtypes", type=some_of(cases.DTYPES), default="float32", help=f"of {', '.join(cases.DTYPES)}; %(default)s")
    add("--devices", type=some_of(("cpu", "cuda")), default="cpu", help="cpu, cuda; default %(default)s")
    add("--peers", type=some_of(peers.PEERS), default=",".join(peers.PEERS), help="besides torch.nn; %(default)s")
    add("--threads", type=more_than_none(int), default=2, help="default %(default)s")
    add("--seconds", type=more_than_none(float), default=1.0, help="for each case and peer; default %(default)s")
    add("--minutes", type=more_than_none(float), help="after which no further case is begun")
    add("--output", type=pathlib.Path, default=RESULTS, help="a folder; default %(default)s")
    add(
        "--model",
        metavar="MODULE:FACTORY",
        help="measures nothing but this model before and after accelerate; the factory gives (model, inputs), inputs "
        "being a tensor, a tuple, or a dict by name",
    )
    add(
        "--compare",
        nargs=2,
        type=pathlib.Path,
        metavar=("BEFORE", "NOW"),
        help="measures nothing, and says what moved beyond the noise between two results (JSON)",
    )
    return parser


def main(arguments: list[str] | None = None, prog: str = "python -m benchmarks") -> int:
    known = parser(prog)
    args = known.parse_args(arguments)
    if args.compare:
        try:
            print(compare.report(args.compare), end="")
        except ValueError as error:
            known.error(f"--compare: {error}")
        return 0
    if "cuda" in args.devices and not torch.cuda.is_available():
        known.error("--devices: expected cpu, as torch finds no GPU here, got cuda")
    if _native.extension is None:
        print(f"nothing to measure: {_native.reason}", file=sys.stderr)
        return 1
    try:
        result = run.measure_model(args.model, args) if args.model else run.measure(args)
    except ValueError as error:
        known.error(str(error))
    keep(result, args.output, file_name(result, args))
    modes = [mode for program in result.get("programs", []) for mode in program["modes"].values()]
    return 1 if any("wrong" in found for found in result["cases"] + result["sweep"] + modes) else 0


def file_name(result: dict, args: argparse.Namespace) -> str:
    """By machine and day; what is no run of all says so, and never passes for one."""
    name = machine.name_of(result["machine"])
    if args.model:
        return f"{name}-{args.model.replace(':', '-')}"
    whole = args.shapes == some_shapes(DEFAULT_SHAPES) and not result["not_reached"]
    return name if whole else f"{name}-part"


def keep(result: dict, folder: pathlib.Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown.markdown(result))
    (folder / f"{name}.html").write_text(page.render(result))
    print(markdown.markdown(result))
    print(f"kept as {folder / name}.html, .md and .json")


if __name__ == "__main__":
    sys.exit(main())
