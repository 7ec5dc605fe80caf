"""Imports and includes run one way, and files stay small."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# from the bottom up; a module imports from lower floors only, those of one floor do not know each other
FLOORS = (
    {"_build", "_C", "reserve"},
    {"_native", "dynamo", "reference", "reference_attention", "kernels"},
    {"reference_search", "cuda"},
    {"ops"},
    {"attention_ops", "search_ops"},
    {"functional"},
    {"nn"},
    {"accelerate"},
    {"explain", "seq2seq"},
    {"__init__"},
    {"benchmarks"},
    {"__main__"},
)
FLOOR = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
PYTHON = sorted((ROOT / "seq2seq_fast").rglob("*.py"))
CSRC = sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp", ".cu"))
SOURCES = [
    path
    for folder in ("seq2seq_fast", "kernels", "csrc", "tests", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".h", ".cpp", ".cu")
]

pytestmark = pytest.mark.skipif(not CSRC, reason="these are the tests of a checkout, and this is a copy without csrc")


def module_of(path: Path) -> str:
    """`path`'s module: its name in the package, or the sub-package it is in."""
    parts = path.relative_to(ROOT / "seq2seq_fast").with_suffix("").parts
    return parts[0]


def imported(path: Path) -> set[str]:
    """The package's modules, or "__init__" for itself, that a file imports."""
    package = ("seq2seq_fast", *path.relative_to(ROOT / "seq2seq_fast").parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            absolute = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            absolute = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in absolute:
            if name[0] == "seq2seq_fast":
                found.add(name[1] if len(name) > 1 and name[1] in FLOOR else "__init__")
    return found


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_imports_run_one_way(path):
    module = module_of(path)
    for other in imported(path) - {module}:
        # __main__ is run, not imported: it may take what the package offers
        assert FLOOR[other] < FLOOR[module], f"{module} imports {other}, which is not below it"


def test_every_module_has_a_floor():
    assert {module_of(path) for path in PYTHON} <= set(FLOOR)


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_imports_nothing_above_it(path):
    names = {
        alias.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    } | {
        node.module
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }
    tops = {name.split(".")[0] for name in names}
    assert not tops & {"benchmarks", "examples", "tests", "numpy", "pytest", "hypothesis"}


def includes(path: Path) -> list[str]:
    """What a C++ file includes: a file of ours as its path under csrc, anything else as it is written."""
    found = []
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.MULTILINE):
        for folder in (path.parent, ROOT / "csrc"):
            if (folder / name).is_file():
                name = (folder / name).resolve().relative_to(ROOT / "csrc").as_posix()
                break
        found.append(name)
    return found


@pytest.mark.parametrize("path", CSRC, ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_run_one_way(path):
    place = path.relative_to(ROOT / "csrc")
    folder = place.parts[0] if len(place.parts) > 1 else place.name
    allowed = {
        "recurrence.h": (),
        "attention.h": ("recurrence.h",),
        "search.h": ("recurrence.h", "attention.h"),
        "linear.h": ("recurrence.h",),
        "cells": ("cells/",),
        "cpu": ("cells/", "cpu/", "recurrence.h", "attention.h", "search.h", "linear.h"),
    }
    ours = [name for name in includes(path) if (ROOT / "csrc" / name).is_file()]
    if folder in allowed:
        assert [name for name in ours if not name.startswith(allowed[folder])] == []


@pytest.mark.parametrize("path", CSRC, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_edge_knows_torch(path):
    """The files right under csrc have tensors in them; the cells and the loop build without torch or Python."""
    place = path.relative_to(ROOT / "csrc")
    if len(place.parts) == 1 and place.name not in ("recurrence.h", "attention.h", "search.h", "linear.h"):
        return
    assert [n for n in includes(path) if re.match(r"(ATen|c10|torch)/|Python\.h", n)] == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_small(path):
    assert len(path.read_text().splitlines()) <= 600
