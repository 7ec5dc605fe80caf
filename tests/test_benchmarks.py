"""The benchmarks' own logic: statistics on made-up times, and a wrong engine that is found out."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

pytest.importorskip("pytest_benchmark")
pytest.importorskip("benchmarks", reason="these are the tests of a checkout, and this is a copy without benchmarks")

from benchmarks import cases, extras, fresh, peers, summary, test_grid, timing

ROOT = Path(cases.__file__).resolve().parent.parent


def test_the_ratio_is_the_median_of_the_pairs():
    result = timing.summary([(2.0, 1.0), (40.0, 10.0), (6.0, 2.0), (9.0, 3.0), (1.0, 1.0)])
    assert result.ratio == 3.0
    assert (result.baseline, result.ours, result.pairs) == (6.0, 2.0, 5)
    assert result.ratio_low < result.ratio < result.ratio_high


def test_both_are_called_in_turn():
    calls = []
    timing.pairs(lambda: calls.append("a"), lambda: calls.append("b"), seconds=0.0)
    assert calls.count("a") > timing.FEWEST_PAIRS
    assert calls.count("b") > timing.FEWEST_PAIRS


def test_a_wrong_result_is_named():
    exact = [torch.ones(3, dtype=torch.float64)]
    right, off = [torch.ones(3)], [torch.tensor([1.0, 1.1, 1.0])]
    assert timing.wrong(right, right, exact) is None
    assert "result 0" in timing.wrong(off, right, exact)
    assert "result 0" in timing.wrong([torch.full((3,), torch.nan)], right, exact)


def test_a_wrong_engine_is_never_timed(monkeypatch):
    monkeypatch.setattr(timing, "pairs", lambda *_: pytest.fail("timed"))
    theirs, ours, x = extras.drawn("GRU", cases.EMPTY_CALL)
    with torch.no_grad():
        ours.bias_ih_l0 += 0.1
    assert "WRONG" in extras.checked(theirs, ours, x, 0.0, "inference")


@pytest.mark.parametrize("spoilt", [False, True])
def test_the_suite_times_what_is_right_and_reports_what_is_wrong(spoilt):
    code = f"""
import json
from argparse import Namespace
from tqdm import tqdm
from benchmarks import cases, run, timing
if {spoilt}:
    timing.wrong = lambda *_: "made up"
options = Namespace(peers=[], threads=1, seconds=0.0, deadline=None)
with tqdm(disable=True) as bar:
    print(json.dumps(run.grid([cases.Case("GRU", "training", cases.EMPTY_CALL)], options, bar)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    (case,) = json.loads(done.stdout.splitlines()[-1])
    assert (case["cell"], case["mode"], case["shape"]) == ("GRU", "training", str(cases.EMPTY_CALL))
    assert len(case["error"]["ours"]) == 1 + 5
    assert case.get("wrong") == ("made up" if spoilt else None)
    assert ("torch_nn" in case) != spoilt


@pytest.mark.parametrize("mode", cases.MODES)
def test_the_ways_to_take_lengths_agree(mode, monkeypatch):
    monkeypatch.setattr(extras, "VARIED", (cases.Shape(5, 4, 3, 6, D=2),))
    monkeypatch.setattr(timing, "pairs", lambda *_: timing.summary([(2.0, 1.0)] * 5))
    rows = extras.lengths(["LSTM"], seconds=0.0)
    assert [row["input"] for row in rows] == ["PackedSequence", "padded"]
    assert [row[mode] for row in rows] == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("mode", cases.MODES)
def test_a_projection_is_measured_where_the_lstm_is(mode, monkeypatch):
    monkeypatch.setattr(extras, "PROJECTED", ((cases.Shape(5, 4, 3, 6), 2),))
    monkeypatch.setattr(timing, "pairs", lambda *_: timing.summary([(2.0, 1.0)] * 5))
    (row,) = extras.projection(["GRU", "LSTM"], seconds=0.0)
    assert (row["proj_size"], row[mode]) == ("2", 2.0)
    assert extras.projection(["GRU"], seconds=0.0) == []


def test_a_peer_that_fails_or_differs_is_left_out():
    def broken():
        raise RuntimeError("no compiler")

    exact = [torch.ones(2, dtype=torch.float64)]
    assert test_grid.against(broken, None, exact, 0.0) == {"skipped": "RuntimeError: no compiler"}
    other = test_grid.against(lambda: lambda: [torch.zeros(2)], None, exact, 0.0)
    assert "differs" in other["skipped"]


@pytest.mark.skipif(not fresh.RESET_PEAK.exists(), reason="memory is counted by Linux")
def test_memory_of_a_step_holds_what_it_gives():
    shape = cases.Shape(100, 64, 64, 128)
    measured = fresh.in_a_process("ours", "GRU", shape)
    assert measured["first_call"] > 0
    assert measured["bytes"] > 4 * shape.T * shape.B * (shape.H + shape.I)


def test_the_first_step_has_no_state_to_multiply_with():
    assert cases.Shape(1, 2, 5, 7).flops("GRU", "inference") == 2 * 2 * 3 * 7 * 5
    assert cases.Shape(2, 2, 5, 7).flops("GRU", "inference") == 2 * 2 * 3 * 7 * (5 + 5 + 7)
    stacked = cases.Shape(1, 1, 3, 4, L=2, D=2)
    assert stacked.flops("RNN", "training") == 3 * 2 * 2 * 4 * (3 + 8)


def test_the_first_step_reads_no_weight_hh():
    ends, biases, weight_ih, weight_hh = 2 * (5 + 7), 2 * 3 * 7, 3 * 7 * 5, 3 * 7 * 7
    shape = cases.Shape(1, 2, 5, 7)
    assert shape.bytes("GRU", "inference") == 4 * (ends + weight_ih + biases)
    assert shape.bytes("GRU", "training") == 4 * (2 * (ends + weight_ih + biases) + weight_hh)
    assert cases.Shape(2, 2, 5, 7).bytes("GRU", "inference") == 4 * (2 * ends + weight_ih + weight_hh + biases)


def test_only_the_large_are_held_against_the_peak():
    def case(shape, seconds):
        return {"cell": "GRU", "mode": "inference", "shape": str(shape), "torch_nn": {"ours": seconds}}

    small, large = cases.Shape(10, 8, 64, 64), cases.Shape(50, 32, 512, 512)
    at_half = large.flops("GRU", "inference") / 100e9
    (row,) = summary.of_peak([case(small, 1.0), case(large, at_half)], peak=200.0)
    assert row["cases"] == 1
    assert row["least"] == pytest.approx(0.5)


def test_geomean_and_worst_by_cell_and_mode():
    shape = str(cases.EMPTY_CALL)
    made_up = [
        {"cell": "GRU", "mode": "inference", "shape": name, "torch_nn": {"ratio": ratio}}
        for name, ratio in ((shape, 8.0), ("other", 2.0))
    ]
    (row,) = summary.summaries(made_up)
    assert row["geomean"] == pytest.approx(4.0)
    assert (row["worst"], row["worst_at"]) == (2.0, "other")
    assert (row["best"], row["best_at"]) == (8.0, shape)


@pytest.mark.parametrize("cell", cases.CELLS)
@pytest.mark.parametrize("mode", cases.MODES)
def test_every_case_is_one_shape_once(cell, mode):
    assert len({(s.T, s.B, s.I, s.H, s.L, s.D) for s in cases.SHAPES}) == len(cases.SHAPES)
    assert set(cases.QUICK) <= set(cases.SHAPES)
    assert set(cases.COMPILED) <= set(cases.SHAPES)
    assert all(shape.flops(cell, mode) > 0 for shape in cases.SHAPES)


@pytest.mark.parametrize("shape", cases.SHAPES + cases.SETS["sweep"], ids=str)
def test_a_shape_is_read_back_from_its_label(shape):
    assert cases.Shape.parse(str(shape)) == shape


@pytest.mark.parametrize("label", ["", "T10", "T10 B3", "T10 B3 H0", "T10 B3 H4 X5", "T10 B3 H4 L", "squares"])
def test_a_label_that_is_no_shape_is_refused(label):
    with pytest.raises(ValueError, match="expected a shape such as"):
        cases.Shape.parse(label)


@pytest.mark.parametrize("mode", cases.MODES)
@pytest.mark.parametrize("cell", cases.CELLS)
@pytest.mark.parametrize("name", [name for name in peers.PEERS if name != "compile"])
def test_the_peers_compute_the_same(name, cell, mode):
    case = cases.Case(cell, mode, cases.Shape(5, 3, 4, 6, 2, 2))
    if reason := peers.PEERS[name].why_not(case):
        pytest.skip(reason)
    theirs, _ = peers.layers(case)
    x = peers.draw(case)
    results = peers.PEERS[name].make(theirs, case, x, 1)()
    expected = peers.ENGINES[mode](theirs, x)()
    assert len(results) == len(expected)
    for result, right in zip(results, expected, strict=True):
        torch.testing.assert_close(torch.tensor(numpy.asarray(result)), right.detach(), rtol=1e-4, atol=1e-5)
