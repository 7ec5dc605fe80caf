"""What the grid does not show: a call that computes almost nothing, and bfloat16 under autocast."""

import torch

from . import cases, peers, timing


def empty_call(seconds: float) -> dict:
    """A GRU of H 2 over two steps, one row: the cost of a call."""
    theirs, ours = peers.layers("GRU", cases.EMPTY_CALL)
    x = torch.randn(cases.EMPTY_CALL.T, cases.EMPTY_CALL.B, cases.EMPTY_CALL.I)
    return {
        m: vars(timing.pairs(getattr(peers, m)(theirs, x), getattr(peers, m)(ours, x), seconds)) for m in cases.MODES
    }


class Autocast(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.layer(x)


def bfloat16(seconds: float) -> list[dict]:
    """Our layer in float32 against itself under autocast; empty where the processor has no bfloat16 instructions."""
    if "bf16" not in torch.ops.seq2seq_fast.capability():
        return []
    rows = []
    for cell in cases.CELLS:
        for shape in (cases.Shape(20, 8, 256, 256), cases.Shape(20, 32, 512, 512), cases.Shape(10, 64, 1024, 1024)):
            _, ours = peers.layers(cell, shape)
            x = torch.randn(shape.T, shape.B, shape.I)
            engines = {m: getattr(peers, m) for m in cases.MODES}
            ratios = {m: timing.pairs(e(ours, x), e(Autocast(ours), x), seconds).ratio for m, e in engines.items()}
            rows.append({"cell": cell, "shape": str(shape), **ratios})
    return rows
