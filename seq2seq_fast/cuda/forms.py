"""Which form of the loop serves a layer: what fits the device, and of that the one a small model of its cost prefers.

The model's constants are estimates for an H200 until they are measured on one.
"""

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import torch

from . import loop

# "grid", "cluster" or "torch" takes that one wherever it fits; None lets the model choose
form: str | None = None
# leaves the other multiprocessors to others; 0: all may be taken
max_sms: int = 0

GATES = {"gru": 3, "lstm": 4, "rnn_tanh": 1, "rnn_relu": 1}
CLOCKS_PER_US = 1700
HAND_ON_US = {"grid": 0.9, "cluster": 0.35}  # from a block's last store to the others' first read
POINTWISE_US = 0.25  # the cell's maths of one turn, with the barriers around it
MMA_CLOCKS = 16  # a tensor core's m16n8k16, and the reads that feed it, at two warps a scheduler
L2_BYTES_PER_US = 5.5e6
PEER_BYTES_PER_US = 32 * CLOCKS_PER_US  # of one multiprocessor's stores to the others of its cluster
CUDNN_US = {"standard": 6.0, "persistent": 2.0}  # a step's launches
GEMM_FLOP_PER_US = {2: 400e6, 4: 200e6}  # by bytes of an element


class Layer(NamedTuple):
    """What the choice depends on."""

    cell: str
    dtype: torch.dtype
    hidden_size: int
    batch: int  # rounded
    directions: int
    ragged: bool
    train: bool
    device: torch.device


class Choice(NamedTuple):
    """The forms of the way forward and of the way back, and why; or no forms, and why."""

    forward: str | None
    backward: str | None
    why: str


def rounded(batch: int) -> int:
    """The power of two that a choice is made for: by comparisons, which leave a batch of any size to the compiler."""
    power = 1
    while power < batch:
        power *= 2
    return power


def choose(*layer) -> Choice:
    """The forms for a layer, given as the fields of Layer, and how they split it; or why torch's own loop is better.

    Raises:
        ValueError: `form` is none of those there are.
    """
    if form not in (None, "torch", *loop.FORMS):
        raise ValueError(f"form: expected None, 'torch', 'grid' or 'cluster', got {form!r}")
    return _choose(Layer(*layer), form, max_sms)


# Dynamo takes the result for a constant: what torch.compiler.assume_constant_result does, without importing Dynamo
choose._dynamo_marked_constant = True


@lru_cache(maxsize=4096)
def _choose(layer: Layer, form: str | None, max_sms: int) -> Choice:
    library, reason = loop.library()
    if library is None:
        return Choice(None, None, reason)
    if form == "torch":
        return Choice(None, None, "the form asked for is torch's")
    if layer.dtype not in loop.DTYPES:
        return Choice(None, None, f"the persistent kernels take no {layer.dtype}")
    limits = library.limits(layer.device)
    if limits is None:
        return Choice(None, None, "the persistent kernels need a GPU of sm_80 or later")
    chosen = {}
    for backward in (False, True) if layer.train else (False,):
        found = {
            name: (microseconds(plan, name, layer, backward), plan)
            for name in ([form] if form else loop.FORMS)
            for status, plan in [library.plan(sizes_of(layer, max_sms), name, backward, limits)]
            if status == "ok"
        }
        if not found:
            return Choice(None, None, f"weight_hh of hidden_size={layer.hidden_size} does not stay on this GPU's chip")
        best = min(found, key=lambda name: found[name][0])
        chosen[backward] = best, *found[best]
    ours, torchs = (sum(times) for times in ([us for _, us, _ in chosen.values()], [cudnn(layer)] * len(chosen)))
    if form is None and ours > torchs:
        return Choice(None, None, f"a step is estimated at {ours:.1f} us here and {torchs:.1f} us in torch's own loop")
    name, _, plan = chosen[False]
    why = f"{name}, {plan.groups * layer.directions} x {plan.blocks} blocks of {plan.units} units"
    return Choice(name, chosen[True][0] if layer.train else None, why)


def sizes_of(layer: Layer, max_sms: int) -> loop.Loop:
    sizes = loop.Loop()
    sizes.cell, sizes.dtype = loop.CELLS.index(layer.cell), loop.DTYPES.index(layer.dtype)
    sizes.hidden_size, sizes.batch, sizes.steps = layer.hidden_size, layer.batch, 1
    sizes.directions, sizes.max_sms = layer.directions, max_sms
    return sizes


def microseconds(plan: loop.Plan, form: str, layer: Layer, backward: bool) -> float:
    """The estimate of one step: handing the state on, then for every turn of rows the product and the cell's maths."""
    if not plan.blocks:
        return 0.0
    size = layer.dtype.itemsize
    rows, parts = ceil(layer.batch / plan.groups), 64 // plan.units
    tiles = ceil(rows / 16)
    width = layer.hidden_size * (GATES[layer.cell] if backward else 1)  # of the state that is handed on
    columns = 1 if backward else GATES[layer.cell]
    products = ceil(width * size / 64 / parts) * 2 * columns * tiles * (3 if size == 4 else 1)
    turns = ceil(tiles / (1 if plan.units == 64 else 2))
    if form == "grid":
        moved = plan.groups * plan.blocks * layer.directions * rows * width * size / L2_BYTES_PER_US
    else:
        moved = rows * width * size * (plan.blocks - 1) / plan.blocks / PEER_BYTES_PER_US
    return HAND_ON_US[form] + moved + products * MMA_CLOCKS / CLOCKS_PER_US + turns * POINTWISE_US


def cudnn(layer: Layer) -> float:
    """The estimate of one step of torch's own loop: cuDNN keeps weights on the chip for small layers alone, and for an
    LSTM in float16."""
    small = layer.hidden_size <= (128 if layer.train else 192)
    half = layer.cell == "lstm" and layer.dtype == torch.float16 and layer.directions == 1
    fits = layer.hidden_size % 128 == 0 and layer.hidden_size <= 1024 and layer.batch % 8 == 0 and layer.batch <= 128
    persistent = not layer.ragged and (small or (half and fits))
    flop = 2 * layer.batch * GATES[layer.cell] * layer.hidden_size**2 * layer.directions
    return CUDNN_US["persistent" if persistent else "standard"] + flop / GEMM_FLOP_PER_US[layer.dtype.itemsize]
