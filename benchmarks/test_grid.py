"""The grid under pytest-benchmark, as run.py starts it. Each case is checked, then timed; its ratio goes into the
benchmark's extra_info.

pytest-benchmark times our call by itself; the ratios come from pairs (timing.py), which noise cannot tilt.
"""

import copy
import time

import numpy
import pytest
import torch

from . import peers, timing


def test_layer(benchmark, options, case):
    if options.deadline and time.monotonic() > options.deadline:
        pytest.skip("the time was up")
    theirs, ours = peers.layers(case)
    x = peers.draw(case)
    engine = peers.ENGINES[case.mode]
    baseline, run = engine(theirs, x), engine(ours, x)
    exact = engine(copy.deepcopy(theirs).double(), x.double())()

    benchmark.group = f"{case.cell} {case.mode}"
    info = benchmark.extra_info
    info.update(cell=case.cell, mode=case.mode, shape=str(case.shape), dtype=case.dtype, device=case.device)
    info["first_call"] = {"baseline": timing.sample(baseline, 1), "ours": timing.sample(run, 1)}
    mine, torchs = run(), baseline()
    info["error"] = {"baseline": timing.relative(torchs, exact), "ours": timing.relative(mine, exact)}
    mistake = timing.wrong(mine, torchs, exact)
    if mistake:
        info["wrong"] = mistake
        benchmark.pedantic(lambda: None, rounds=1)
        pytest.fail(f"wrong, so not timed: {mistake}", pytrace=False)
    info["torch_nn"] = vars(timing.pairs(baseline, run, options.seconds))
    for name in options.peers:
        peer = peers.PEERS[name]
        why_not = peer.why_not(case)
        info[name] = {"skipped": why_not} if why_not else against(
            lambda peer=peer: peer.make(theirs, case, x, options.threads), run, exact, options.seconds, peer.rest
        )  # fmt: skip
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


def against(make, run, exact, seconds: float, rest: float = 0.0) -> dict:
    """Ours against another peer, or why that peer can't be timed: it has to work, and to compute the same."""
    begin = time.perf_counter()
    try:
        peer = make()
        results = [r if torch.is_tensor(r) else torch.tensor(numpy.asarray(r)) for r in peer()]
    except Exception as error:
        return {"skipped": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
    prepared = time.perf_counter() - begin
    difference = max(timing.relative(results, exact[: len(results)]))
    if not difference < max(1e-3, 4 * torch.finfo(results[0].dtype).eps):
        return {"skipped": f"its result differs by {difference:.1e}"}
    return vars(timing.pairs(peer, run, seconds, rest)) | {"first_call": prepared}
