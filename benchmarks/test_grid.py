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
    x = torch.randn(shape.T, shape.B, shape.I)
    engine = getattr(peers, mode)
    baseline, run = engine(theirs, x), engine(ours, x)
    exact = engine(copy.deepcopy(theirs).double(), x.double())()

    benchmark.group = f"{cell} {mode}"
    info = benchmark.extra_info
    info.update(cell=cell, mode=mode, shape=str(shape), flops=shape.flops(cell, mode), hidden=shape.H, batch=shape.B)
    mistake = timing.wrong(run(), baseline(), exact)
    if mistake:
        info["wrong"] = mistake
        benchmark.pedantic(lambda: None, rounds=1)
        pytest.fail(f"wrong, so not timed: {mistake}")
    measured = timing.pairs(baseline, run, seconds)
    info.update(torch_nn=vars(measured))

    wanted = config.getoption("--peers").split(",")
    if mode == "inference" and "onnxruntime" in wanted:
        reason = peers.why_no_onnxruntime()
        info["onnxruntime"] = (
            {"skipped": reason} if reason else against_onnxruntime(theirs, run, exact, cell, shape, x, config)
        )
    if "compile" in wanted:
        reason = peers.why_no_compile(shape)
        info["compile"] = (
            {"skipped": reason} if reason else vars(timing.pairs(engine(peers.compiled(theirs), x), run, seconds))
        )
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


def against_onnxruntime(theirs, run, exact, cell, shape, x, config) -> dict:
    peer = peers.onnxruntime(theirs, cell, shape, x, config.getoption("--threads"))
    difference = timing.error(peer(), exact[:1])[0]
    if difference > 1e-3:
        return {"skipped": f"its result differs by {difference:.1e}"}
    return vars(timing.pairs(peer, run, config.getoption("--seconds"), rest=0.02))
