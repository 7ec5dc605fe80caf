"""The grid under pytest-benchmark. Each case is checked, then timed; its ratio goes into the benchmark's extra_info.

pytest-benchmark times our call by itself; the ratios come from pairs (timing.py), which noise cannot tilt.
"""

import copy

import pytest
import torch

from . import cases, peers, timing


def selected(config) -> list:
    shapes = cases.QUICK if config.getoption("--quick") else cases.SHAPES
    return [
        pytest.param(cell, mode, shape, id=f"{cell}-{mode}-{shape}")
        for cell in config.getoption("--cells").split(",")
        for mode in config.getoption("--modes").split(",")
        for shape in shapes
    ]


def pytest_generate_tests(metafunc):
    metafunc.parametrize("cell,mode,shape", selected(metafunc.config))


def test_layer(benchmark, request, cell, mode, shape):
    config = request.config
    threads, seconds = config.getoption("--threads"), config.getoption("--seconds")
    torch.set_num_threads(threads)
    theirs, ours = peers.layers(cell, shape)
    x = peers.draw(shape)
    engine = getattr(peers, mode)
    baseline, run = engine(theirs, x), engine(ours, x)
    exact = engine(copy.deepcopy(theirs).double(), x.double())()

    benchmark.group = f"{cell} {mode}"
    info = benchmark.extra_info
    info.update(cell=cell, mode=mode, shape=str(shape), flops=shape.flops(cell, mode), saturates=shape.saturates)
    mistake = timing.wrong(run(), baseline(), exact)
    if mistake:
        info["wrong"] = mistake
        benchmark.pedantic(lambda: None, rounds=1)
        pytest.fail(f"wrong, so not timed: {mistake}")
    measured = timing.pairs(baseline, run, seconds)
    info.update(torch_nn=vars(measured))

    wanted = config.getoption("--peers").split(",")
    if mode == "inference" and "onnxruntime" in wanted:
        why_not = peers.why_no_onnxruntime()
        info["onnxruntime"] = {"skipped": why_not} if why_not else against(
            lambda: peers.onnxruntime(theirs, cell, shape, x, threads), run, exact, seconds, rest=0.02
        )  # fmt: skip
    if "compile" in wanted:
        why_not = peers.why_no_compile(shape)
        info["compile"] = {"skipped": why_not} if why_not else against(
            lambda: engine(peers.compiled(theirs), x), run, exact, seconds
        )  # fmt: skip
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


def against(make, run, exact, seconds: float, rest: float = 0.0) -> dict:
    """Ours against another peer, or why that peer can't be timed: it has to work, and to compute the same."""
    try:
        peer = make()
        results = peer()
    except Exception as error:
        return {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    scales = [max(1.0, e.abs().max().item()) for e in exact]
    difference = max(e / scale for e, scale in zip(timing.error(results, exact[: len(results)]), scales, strict=False))
    if not difference < 1e-3:
        return {"skipped": f"its result differs by {difference:.1e}"}
    return vars(timing.pairs(peer, run, seconds, rest))
