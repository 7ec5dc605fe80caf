"""`python -m seq2seq_fast`: what is built, and what serves what."""

import subprocess
import sys

import pytest
import torch

import seq2seq_fast
from seq2seq_fast import _native, nn
from seq2seq_fast.cuda import loop


@pytest.fixture(scope="module")
def report():
    return run().stdout


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "seq2seq_fast", *arguments], capture_output=True, text=True, timeout=60
    )


def test_facts(report):
    facts = dict(line.split(maxsplit=1) for line in report.splitlines() if len(line.split(maxsplit=1)) == 2)
    assert facts["seq2seq_fast"] == seq2seq_fast.__version__
    assert facts["torch"] == torch.__version__
    assert int(facts["threads"]) >= 1


def test_says_what_is_built(report):
    (line,) = (line for line in report.splitlines() if line.startswith("built"))
    if _native.extension is None:
        assert _native.reason in line
    else:
        assert line.split(maxsplit=1)[1] == "the C++ extension"
        assert torch.ops.seq2seq_fast.capability() in report


def test_says_whether_the_cuda_loop_is_built(report):
    library, why_not = loop.library()
    (line,) = (line for line in report.splitlines() if line.startswith("CUDA loop"))
    assert line.split(maxsplit=2)[2] == (why_not if library is None else "built, in the forms grid and cluster")


def test_every_layer_and_dtype(report):
    rows = {line.split()[1]: line.split()[2:] for line in report.splitlines() if line.startswith("cpu ")}
    assert set(rows) == set(nn.OURS)
    expected = "torch.nn" if _native.extension is None else "fused"
    assert all(served == [expected] * 4 for served in rows.values())


def test_help_and_bad_arguments():
    assert "usage: python -m seq2seq_fast" in run("--help").stdout
    refused = run("--nonsense")
    assert refused.returncode == 2
    assert "--nonsense" in refused.stderr


def test_import_is_silent():
    code = "import warnings; warnings.simplefilter('error'); import seq2seq_fast"
    # torch warns of its own accord on some versions: it is imported first
    result = subprocess.run([sys.executable, "-c", f"import torch; {code}"], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
