"""The benchmarks' own logic: statistics on made-up times, and a wrong engine that is found out."""

import pytest
import torch

pytest.importorskip("pytest_benchmark")

from benchmarks import cases, peers, report, timing


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


def test_geomean_and_worst_by_cell_and_mode():
    shape = str(cases.EMPTY_CALL)
    made_up = [
        {"cell": "GRU", "mode": "inference", "shape": name, "torch_nn": {"ratio": ratio}}
        for name, ratio in ((shape, 8.0), ("other", 2.0))
    ]
    (row,) = report.summaries(made_up)
    assert row["geomean"] == pytest.approx(4.0)
    assert (row["worst"], row["worst_at"]) == (2.0, "other")


@pytest.mark.parametrize("cell", cases.CELLS)
@pytest.mark.parametrize("mode", cases.MODES)
def test_every_case_is_one_shape_once(cell, mode):
    assert len({(s.T, s.B, s.I, s.H, s.L, s.D) for s in cases.SHAPES}) == len(cases.SHAPES)
    assert set(cases.QUICK) <= set(cases.SHAPES)
    assert all(shape.flops(cell, mode) > 0 for shape in cases.SHAPES)


@pytest.mark.parametrize("cell", cases.CELLS)
def test_the_peers_compute_the_same(cell):
    if reason := peers.why_no_onnxruntime():
        pytest.skip(reason)
    shape = cases.Shape(5, 3, 4, 6, 2, 2)
    theirs, ours = peers.layers(cell, shape)
    x = torch.randn(shape.T, shape.B, shape.I)
    exact = peers.inference(theirs, x)()
    assert timing.error(peers.onnxruntime(theirs, cell, shape, x, threads=1)(), exact)[0] < 1e-5
    assert timing.error(peers.inference(ours, x)(), exact)[0] < 1e-5
