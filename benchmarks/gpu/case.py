"""A comparison on a GPU: checked against float64 first, then timed with CUDA events, in pairs that alternate."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .. import timing

PAIRS = 21
SAMPLE = 5e-3  # seconds a sample lasts at least
MODES = ("inference", "training")


@dataclass(frozen=True)
class Case:
    """Two functions of `inputs` that give the same tensors, and in float64 the `exact` ones.

    moved: the bytes that have to come from memory or go there, where that is what limits a call; else None.
    steps: of a recurrent layer, which wait for each other; else None.
    form: what serves a recurrent layer, in words; else None.
    """

    name: str
    against: str
    inputs: list[Tensor]
    theirs: Callable
    ours: Callable
    exact: Callable
    moved: int | None = None
    steps: int | None = None
    form: str | None = None
    modes: tuple[str, ...] = MODES


def results(run: Callable, inputs: list[Tensor], mode: str) -> list[Tensor]:
    """The outputs of a call, and in training the gradients of the inputs."""
    if mode == "inference":
        with torch.no_grad():
            return tree_leaves(run(*inputs))
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = tree_leaves(run(*leaves))
    eighths = [torch.arange(x.numel(), device=x.device).view(x.shape).remainder(17).sub(8) / 8 for x in outputs]
    gradients = torch.autograd.grad(outputs, leaves, [e.to(x) for e, x in zip(eighths, outputs, strict=True)])
    return [*(x.detach() for x in outputs), *gradients]


def problem(case: Case, mode: str) -> str | None:
    """Why the case is not to be timed: torch does not run it, or ours gives something else."""
    try:
        wanted = results(case.theirs, case.inputs, mode)
    except RuntimeError as error:
        return f"torch: {str(error).splitlines()[0]}"
    exact = results(case.exact, [x.double() for x in case.inputs], mode)
    return timing.wrong(results(case.ours, case.inputs, mode), wanted, exact)


def measure(case: Case, mode: str) -> dict:
    """A row of the table."""
    row = {
        "case": case.name,
        "dtype": str(case.inputs[0].dtype).removeprefix("torch."),
        "mode": mode,
        "against": case.against,
    }
    begin = time.perf_counter()
    results(case.ours, case.inputs, mode)
    torch.cuda.synchronize()
    row["first call ms"] = (time.perf_counter() - begin) * 1e3
    why_not = problem(case, mode)
    if why_not is not None:
        return row | {"not run": why_not}
    found = pairs(*(lambda run=run: results(run, case.inputs, mode) for run in (case.theirs, case.ours)))
    row |= {"torch us": found.baseline * 1e6, "ours us": found.ours * 1e6, "ratio": found.ratio}
    if case.moved and mode == "inference":
        row["ours GB/s"] = case.moved / found.ours / 1e9
    if case.steps:
        row |= {"ours us/step": found.ours * 1e6 / case.steps, "form": case.form}
    return row


def seconds(run: Callable, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


def pairs(theirs: Callable, ours: Callable) -> timing.Pairs:
    """Warmed by calls, which compile; then in turn, as often as a sample needs."""
    seconds(theirs, 3), seconds(ours, 3)
    repeats = [max(1, round(SAMPLE / seconds(run, 3))) for run in (theirs, ours)]
    times = [tuple(map(seconds, (theirs, ours), repeats)) for _ in range(PAIRS)]
    return timing.summary(times)
