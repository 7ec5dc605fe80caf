"""What the grid does not show: a call that computes almost nothing, lengths, a projection, bfloat16."""

import copy

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from seq2seq_fast import nn

from . import cases, peers, timing

VARIED = (cases.Shape(20, 32, 256, 256), cases.Shape(50, 8, 64, 64, D=2))
# with proj_size: small, and as in speech recognition
PROJECTED = (
    (cases.Shape(50, 8, 64, 64), 32),
    (cases.Shape(100, 1, 80, 256), 128),
    (cases.Shape(50, 32, 80, 256), 128),
    (cases.Shape(20, 32, 512, 1024), 256),
)
HALVED = (cases.Shape(20, 8, 256, 256), cases.Shape(20, 32, 512, 512), cases.Shape(10, 64, 1024, 1024))


class Packed(torch.nn.Module):
    """A layer on the data of a PackedSequence."""

    def __init__(self, layer, packed: PackedSequence):
        super().__init__()
        self.layer, self.packed = layer, packed

    def forward(self, data: Tensor):
        return (self.layer(PackedSequence(data, *self.packed[1:]))[0].data,)


class PackedAndPadded(torch.nn.Module):
    """How torch.nn takes a padded batch: packed before the layer, padded after it."""

    def __init__(self, layer, lengths: Tensor):
        super().__init__()
        self.layer, self.lengths = layer, lengths

    def forward(self, x: Tensor):
        packed = pack_padded_sequence(x, self.lengths, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], total_length=x.size(0))


class WithLengths(PackedAndPadded):
    """How our layers do."""

    def forward(self, x: Tensor):
        return self.layer(x, lengths=self.lengths)


class Autocast(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x)


def drawn(cell: str, shape: cases.Shape) -> tuple[torch.nn.Module, torch.nn.Module, Tensor]:
    case = cases.Case(cell, "training", shape)
    return *peers.layers(case), peers.draw(case)


def checked(theirs, ours, x: Tensor, seconds: float, mode: str, baseline=None) -> float | str:
    """The ratio of `baseline`, by default `theirs`, to `ours`; or what is wrong with ours, held against `theirs`."""
    engine = peers.ENGINES[mode]
    exact = engine(copy.deepcopy(baseline or theirs).double(), x.double())()
    mistake = timing.wrong(engine(ours, x)(), engine(theirs, x)(), exact)
    if mistake:
        return f"WRONG: {mistake}"
    return timing.pairs(engine(baseline or theirs, x), engine(ours, x), seconds).ratio


def empty_call(seconds: float) -> dict:
    """A GRU of H 2 over two steps, one row: the cost of a call."""
    theirs, ours, x = drawn("GRU", cases.EMPTY_CALL)
    return {m: vars(timing.pairs(run(theirs, x), run(ours, x), seconds)) for m, run in peers.ENGINES.items()}


def lengths(selected: list[str], seconds: float) -> list[dict]:
    """Rows of different lengths: a PackedSequence in both, and a padded batch the way each takes it."""
    rows = []
    for cell in selected:
        for shape in VARIED:
            theirs, ours, x = drawn(cell, shape)
            lengths = torch.randint(1, shape.T + 1, (shape.B,))
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            forms = {
                "PackedSequence": (Packed(theirs, packed), Packed(ours, packed), packed.data),
                "padded": (PackedAndPadded(theirs, lengths), WithLengths(ours, lengths), x),
            }
            for form, engines in forms.items():
                ratios = {m: checked(*engines, seconds, m) for m in cases.MODES}
                rows.append({"cell": cell, "shape": str(shape), "input": form, **ratios})
    return rows


def projection(selected: list[str], seconds: float) -> list[dict]:
    """An LSTM with `proj_size`, which torch.nn runs operation by operation."""
    rows = []
    for shape, proj_size in PROJECTED if "LSTM" in selected else ():
        torch.manual_seed(0)
        theirs, ours = (module.LSTM(shape.I, shape.H, proj_size=proj_size) for module in (torch.nn, nn))
        ours.load_state_dict(theirs.state_dict())
        x = peers.draw(cases.Case("LSTM", "training", shape))
        ratios = {m: checked(theirs, ours, x, seconds, m) for m in cases.MODES}
        rows.append({"shape": str(shape), "proj_size": str(proj_size), **ratios})
    return rows


def bfloat16(selected: list[str], seconds: float) -> list[dict]:
    """Our layer in float32 against itself under autocast; empty where the processor has no bfloat16 instructions."""
    if "bf16" not in torch.ops.seq2seq_fast.capability():
        return []
    rows = []
    for cell in selected:
        for shape in HALVED:
            theirs, ours, x = drawn(cell, shape)
            ratios = {m: checked(Autocast(theirs), Autocast(ours), x, seconds, m, baseline=ours) for m in cases.MODES}
            rows.append({"cell": cell, "shape": str(shape), **ratios})
    return rows
