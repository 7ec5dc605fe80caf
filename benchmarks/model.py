"""A model on torch.nn before and after `accelerate`: checked, timed as a whole, and layer by layer."""

import copy
import importlib
import re
import statistics
import time
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from seq2seq_fast import accelerate, explain

from . import timing

UNITS = (torch.nn.RNNBase, torch.nn.RNNCellBase, torch.nn.MultiheadAttention)
ROUNDS = 15


def load(name: str) -> tuple[torch.nn.Module, Any]:
    """What `module:factory` gives: a model, and what it is called with: a tensor, a tuple, or a dict by name.

    Raises:
        ValueError: there is no such factory, or it gives something else.
    """
    module, _, factory = name.partition(":")
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"model: expected module:factory, got {name!r} ({error})") from error
    made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], torch.nn.Module)):
        raise ValueError(f"model: expected {name} to give (model, inputs), got {type(made).__name__}")
    return made


def call(model: torch.nn.Module, inputs: Any) -> list[Tensor]:
    """The floating-point tensors that the model gives."""
    if isinstance(inputs, dict):
        output = model(**inputs)
    else:
        output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def infer(model: torch.nn.Module, inputs: Any) -> list[Tensor]:
    with torch.inference_mode():
        return call(model, inputs)


def train(model: torch.nn.Module, inputs: Any) -> list[Tensor]:
    """The output, and the gradients of its sum for the parameters that it depends on."""
    outputs = call(model, inputs)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(sum(output.sum() for output in outputs), wanted, allow_unused=True)
    return [*outputs, *(gradient for gradient in gradients if gradient is not None)]


def measure(name: str, model: torch.nn.Module, inputs: Any, seconds: float) -> dict:
    """Both modes of a model, and the time of its layers in inference."""
    after = accelerate(copy.deepcopy(model))
    modes = {"inference": infer}
    if any(parameter.requires_grad for parameter in model.parameters()):
        modes["training"] = train
    found = {"name": name, "modes": {}}
    for mode, run in modes.items():
        # without dropout, whose draws in float64 are others
        mistake = wrong(run, model.eval(), after.eval(), inputs)
        if mistake:
            found["modes"][mode] = {"wrong": mistake}
            continue
        for engine in (model, after):
            engine.train(mode == "training")
        measured = timing.pairs(lambda run=run: run(model, inputs), lambda run=run: run(after, inputs), seconds)
        found["modes"][mode] = vars(measured)
    return found | {"layers": layers(model.eval(), after.eval(), inputs)}


def wrong(run, model: torch.nn.Module, after: torch.nn.Module, inputs: Any) -> str | None:
    """What is wrong with the accelerated model, held against the model in float64; where it does not run in float64,
    against the model itself."""

    def double(leaf):
        return leaf.double() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf

    theirs, ours = run(model, inputs), run(after, inputs)
    if not theirs:
        return "the model gives no floating-point tensor to compare"
    try:
        exact = run(copy.deepcopy(model).double(), tree_map(double, inputs))
    except Exception:
        difference = max(timing.relative(ours, [result.double() for result in theirs]))
        allowed = torch.finfo(theirs[0].dtype).eps ** 0.5
        return None if difference <= allowed else f"differs from torch.nn's by {difference:.1e}"
    return timing.wrong(ours, theirs, exact)


def layers(model: torch.nn.Module, after: torch.nn.Module, inputs: Any) -> list[dict]:
    """Seconds of each layer's forwards in one call of the model, before and after: medians, the two in turn."""
    times = [{}, {}]
    for engine in (model, after):
        infer(engine, inputs)
    for _ in range(ROUNDS):
        for engine, seen in zip((model, after), times, strict=True):
            for name, spent in in_one_call(engine, inputs).items():
                seen.setdefault(name, []).append(spent)
    before, now = ({name: statistics.median(spent) for name, spent in seen.items()} for seen in times)
    served = paths(after, inputs)
    return [
        {"name": name or "the model", "kind": type(model.get_submodule(name)).__name__,
         "path": served.get(name, "torch.nn"), "before": before[name], "after": now[name]}
        for name in before
        if name in now
    ]  # fmt: skip


def in_one_call(model: torch.nn.Module, inputs: Any) -> dict[str, float]:
    """Seconds that each layer spends in its forward, by its name."""
    spent, begun = {}, {}

    def begin(name):
        timing.synchronize()
        begun[name] = time.perf_counter()

    def end(name):
        timing.synchronize()
        spent[name] = spent.get(name, 0.0) + time.perf_counter() - begun[name]

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if any(module.children()) and not isinstance(module, UNITS):
                continue
            for register, note in ((module.register_forward_pre_hook, begin), (module.register_forward_hook, end)):
                hooks.callback(register(lambda *_, name=name, note=note: note(name)).remove)
        infer(model, inputs)
    return spent


def paths(model: torch.nn.Module, inputs: Any) -> dict[str, str]:
    """What serves each layer, in explain's words."""
    if isinstance(inputs, dict):
        text = explain(model, **inputs)
    else:
        text = explain(model, *(inputs if isinstance(inputs, tuple) else (inputs,)))
    if isinstance(model, UNITS):
        return {"": text.partition(": ")[2]}
    found = re.findall(r"^(\S+) \(\w+\): (.*)$", text, re.MULTILINE)
    return {name: "; ".join(path for other, path in found if other == name) for name, _ in found}
