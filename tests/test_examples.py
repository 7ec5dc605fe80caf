"""The programs of examples/: on torch.nn and on ours the same losses, step by step."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "examples"
# the largest difference of two losses
PROGRAMS = {
    "history": 1e-9, "plain_rnn": 1e-4, "subsequence": 1e-4, "squares": 1e-4, "minimal_transformer": 1e-4,
}  # fmt: skip
STEPS = 5

pytestmark = [
    pytest.mark.needs_extension,
    pytest.mark.skipif(not FOLDER.is_dir(), reason="these are the tests of a checkout, and this is a copy without"),
]


@pytest.fixture
def program(request, monkeypatch):
    pytest.importorskip("tqdm")
    pytest.importorskip("tabulate")
    monkeypatch.syspath_prepend(FOLDER)
    return __import__(request.param)


@pytest.mark.parametrize("program", PROGRAMS, indirect=True)
def test_losses_are_equal(program):
    first, *others = program.run(STEPS, seed=0)
    assert len(set(first.losses)) == STEPS
    for racer in others:
        for step, (ours, theirs) in enumerate(zip(racer.losses, first.losses, strict=True)):
            assert abs(ours - theirs) <= PROGRAMS[program.__name__], (racer.name, step)


@pytest.mark.parametrize("program", ["squares"], indirect=True)
@pytest.mark.parametrize("kind", ("none", "values", "wide"))
def test_kinds_of_attention(program, kind):
    first, *others = program.run(STEPS, 0, kind)
    for racer in others:
        assert racer.losses == pytest.approx(first.losses, abs=1e-4)


@pytest.mark.parametrize("kind", ("none", "wide"))
def test_squares_are_drawn(kind, tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "squares.png"
    done = subprocess.run(
        [sys.executable, FOLDER / "squares.py", "--steps", "3", "--attention", kind, "--output", figure],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "seq2seq_fast.seq2seq" in done.stdout
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_bad_option():
    done = subprocess.run([sys.executable, FOLDER / "history.py", "--steps", "0"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "expected a whole number from 1, got '0'" in done.stderr
