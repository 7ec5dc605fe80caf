"""Runs the grid and what stands beside it, and gives the result that is kept."""

import json
import pathlib
import tempfile
import time
from argparse import Namespace
from os import devnull

import pytest
import torch
from tqdm import tqdm

from . import cases, extras, fresh, machine, model, programs, summary


class Grid:
    """pytest's plugin: which cases there are, what was asked for, and a bar in the place of pytest's own words."""

    def __init__(self, selected: list[cases.Case], options: Namespace, bar: tqdm):
        self.selected, self.asked_for, self.bar = selected, options, bar

    def pytest_generate_tests(self, metafunc):
        metafunc.parametrize("case", self.selected, ids=str)

    @pytest.fixture
    def options(self) -> Namespace:
        return self.asked_for

    def pytest_runtest_logstart(self, location):
        self.bar.set_postfix_str(location[2].partition("[")[2].rstrip("]"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report):
        return "", "", ""

    def pytest_runtest_logfinish(self):
        self.bar.update()


def select(options: Namespace) -> list[cases.Case]:
    return [
        cases.Case(cell, mode, shape, dtype, device)
        for device in options.devices
        for dtype in options.dtypes
        for cell in options.cells
        for mode in options.modes
        for shape in options.shapes
    ]


def measure(options: Namespace) -> dict:
    """The result of a run; `options` has what __main__ lists.

    Raises:
        ValueError: more threads are asked for than there are processors.
    """
    processors = machine.confine(options.threads)
    before = machine.describe(options.threads, processors)
    options.deadline = time.monotonic() + 60 * options.minutes if options.minutes else None
    selected = select(options)
    beside = {
        "empty_call": lambda: extras.empty_call(options.seconds),
        "lengths": lambda: extras.lengths(options.cells, options.seconds),
        "projection": lambda: extras.projection(options.cells, options.seconds),
        "bfloat16": lambda: extras.bfloat16(options.cells, options.seconds),
        "fresh": lambda: fresh.table(options.cells),
        "programs": lambda: whole_programs(options.seconds),
    }
    with tqdm(total=len(selected) + len(beside), unit="case", smoothing=0.1) as bar:
        measured = grid(selected, options, bar)
        result = {}
        for name, table in beside.items():
            bar.set_postfix_str(name)
            if not options.deadline or time.monotonic() < options.deadline:
                result[name] = table()
            bar.update()
    sweep = {str(shape) for shape in cases.SETS["sweep"]}
    return {
        "machine": machine.better(before, machine.limits(options.threads)),
        "summaries": summary.summaries([c for c in measured if c["shape"] not in sweep]),
        "not_reached": len(selected) - len(measured),
        **result,
        "cases": [c for c in measured if c["shape"] not in sweep],
        "sweep": [c for c in measured if c["shape"] in sweep],
    }


def measure_model(name: str, options: Namespace) -> dict:
    """The result of a run of nothing but the model that `module:factory` names.

    Raises:
        ValueError: there is no such model, or more threads are asked for than there are processors.
    """
    processors = machine.confine(options.threads)
    torch.manual_seed(0)
    found = model.measure(name, *model.load(name), options.seconds)
    return {
        "machine": machine.describe(options.threads, processors),
        "summaries": [],
        "cases": [],
        "sweep": [],
        "programs": [found],
    }


def whole_programs(seconds: float) -> list[dict]:
    found = []
    for program in programs.PROGRAMS:
        torch.manual_seed(0)
        found.append(model.measure(program.__name__.replace("_", " "), *program(), seconds))
    return found


def grid(selected: list[cases.Case], options: Namespace, bar: tqdm) -> list[dict]:
    """What was measured of each case that was reached."""
    with tempfile.TemporaryDirectory() as folder:
        raw = pathlib.Path(folder) / "raw.json"
        # -c: the settings of whatever project lies around are not ours
        pytest.main(
            [
                *(str(pathlib.Path(__file__).with_name("test_grid.py")), "-c", devnull, "-p", "no:cacheprovider"),
                *("-qq", "--no-header", "--no-summary", "--benchmark-quiet", f"--benchmark-json={raw}"),
            ],
            plugins=[Grid(selected, options, bar)],
        )
        text = raw.read_text() if raw.exists() else ""
    return [benchmark["extra_info"] for benchmark in json.loads(text)["benchmarks"]] if text else []
