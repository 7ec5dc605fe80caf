"""A cell's step, as a decoder takes it, against torch's cell."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.func import functional_call

from seq2seq_fast import nn

from .case import Case

CELLS = ("GRU", "LSTM", "RNN")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SIZES = ((1, 512), (64, 512), (256, 1024))  # batch, and width of input and state


def cases(device: str, dtypes=DTYPES, sizes=SIZES) -> Iterator[Case]:
    for dtype in dtypes:
        for cell in CELLS:
            for batch, size in sizes:
                torch.manual_seed(0)
                yield step(cell, dtype, batch, size, device)


def step(cell: str, dtype: torch.dtype, batch: int, size: int, device: str) -> Case:
    make = f"{cell}Cell"
    theirs = getattr(torch.nn, make)(size, size).to(device, dtype)
    ours = getattr(nn, make)(size, size).to(device, dtype)
    ours.load_state_dict(theirs.state_dict())
    states = 2 if cell == "LSTM" else 1
    inputs = [torch.randn(batch, size, device=device, dtype=dtype) for _ in range(1 + states)]

    def with_state(module, x, *hx):
        return module(x, hx if cell == "LSTM" else hx[0])

    runs = (partial(with_state, module) for module in (theirs, ours, in_float64(theirs)))
    return Case(f"{cell} step {batch}x{size}", "torch.nn", inputs, *runs)


def in_float64(module: torch.nn.Module):
    """The module as a function, with its weights as they are in float64."""
    exact = {name: parameter.detach().double() for name, parameter in module.named_parameters()}
    copy = type(module)(module.input_size, module.hidden_size).to(next(iter(exact.values())))
    return lambda *args: functional_call(copy, exact, args)
