"""A layer over many steps against torch.nn's, in each regime of cuDNN: padded and packed, stacked, bidirectional."""

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seq2seq_fast import nn

from .case import Case
from .cells import CELLS, DTYPES

STEPS = 200
# batch, width of input and state, layers, directions
SIZES = (
    (1, 256, 1, 1), (32, 128, 1, 1), (32, 256, 1, 1), (64, 512, 1, 1), (32, 1024, 1, 1), (32, 512, 2, 1),
    (32, 512, 1, 2), (512, 512, 1, 1),
)  # fmt: skip


def cases(device: str, dtypes=DTYPES, sizes=SIZES, steps: int = STEPS) -> Iterator[Case]:
    for dtype in dtypes:
        for cell in CELLS:
            for size in sizes:
                yield layer(cell, dtype, size, steps, device, packed=False)
            yield layer(cell, dtype, sizes[-2], steps, device, packed=True)


def layer(cell: str, dtype: torch.dtype, size: tuple[int, ...], steps: int, device: str, packed: bool) -> Case:
    batch, width, layers, directions = size
    torch.manual_seed(0)
    options = {"num_layers": layers, "bidirectional": directions == 2, "device": device}
    theirs = getattr(torch.nn, cell)(width, width, dtype=dtype, **options)
    ours = getattr(nn, cell)(width, width, dtype=dtype, **options)
    exact = getattr(torch.nn, cell)(width, width, dtype=torch.float64, **options)
    for module in (ours, exact):
        module.load_state_dict(theirs.state_dict())
    lengths = torch.randint(steps // 5, steps + 1, (batch,)).sort(descending=True).values
    input = torch.randn(steps, batch, width, device=device, dtype=dtype)
    runs = [partial(run_packed, module, lengths) if packed else module for module in (theirs, ours, exact)]
    name = f"{cell} {steps}x{batch}x{width} L{layers} D{directions}{' packed, 60 %' if packed else ''}"
    form = ours.form_on_cuda(input, lengths=lengths if packed else None).why
    return Case(name, "torch.nn", [input], *runs, steps=steps * layers, form=form)


def run_packed(module: torch.nn.RNNBase, lengths: torch.Tensor, input: torch.Tensor):
    output, state = module(pack_padded_sequence(input, lengths))
    return (output.data if isinstance(output, PackedSequence) else output), state
