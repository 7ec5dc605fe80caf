"""Draws the page of a result again: `python -m benchmarks.page RESULT.json` writes RESULT.html beside it."""

import argparse
import pathlib

from .. import compare
from . import render

parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
parser.add_argument("result", type=pathlib.Path)
path = parser.parse_args().result
try:
    path.with_suffix(".html").write_text(render(compare.read(path)))
except ValueError as error:
    parser.error(str(error))
