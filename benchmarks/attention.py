"""Attention against torch's own: `python -m benchmarks.attention` prints the table and keeps it in results/.

Each case is checked against torch before it is timed, in pairs that alternate.
"""

import argparse
import json
import math
import pathlib
from functools import partial

import torch
from tabulate import tabulate
from torch.nn import functional as F

from seq2seq_fast import nn
from seq2seq_fast.functional import scaled_dot_product_attention

from . import machine, timing

# batch, heads, queries, keys, width
SHAPES = ((32, 8, 20, 20, 32), (16, 8, 64, 64, 64), (8, 8, 128, 128, 64), (4, 8, 512, 512, 64))
# of a decoder: batch, keys, width
QUERIES = ((16, 2, 2), (32, 10, 64), (64, 20, 256), (32, 50, 128))


def with_weights(query, key, value, average=False):
    """How torch.nn.MultiheadAttention gets weights: everything of (B, H, L, S) in memory."""
    weights = (query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)).softmax(-1)
    return weights @ value, weights.mean(1) if average else weights


class Eager(torch.nn.Module):
    """Attention as seq2seq tutorials write it."""

    def __init__(self, width):
        super().__init__()
        self.linear_query, self.linear_key = torch.nn.Linear(width, width), torch.nn.Linear(width, width)

    def init_keys(self, keys):
        self.keys, self.projected = keys, self.linear_key(keys)

    def forward(self, query, mask):
        scores = self.linear_query(query) @ self.projected.transpose(1, 2) / math.sqrt(query.size(-1))
        self.alphas = scores.masked_fill(mask == 0, -1e9).softmax(-1)
        return self.alphas @ self.keys


def cases():
    """(name, shape, torch's call, ours, inputs that want a gradient)."""
    sdpa, ours = F.scaled_dot_product_attention, scaled_dot_product_attention
    for shape in SHAPES:
        batch, heads, queries, keys, width = shape
        torch.manual_seed(0)
        qkv = [torch.randn(batch, heads, n, width, requires_grad=True) for n in (queries, keys, keys)]
        lengths = torch.randint(int(0.2 * keys), keys + 1, (batch,))  # 60 % on average
        mask = (torch.arange(keys) < lengths.view(-1, 1)).view(batch, 1, 1, keys)
        for name, theirs, mine in (
            ("plain", partial(sdpa, *qkv), partial(ours, *qkv)),
            ("lengths, 60 %", partial(sdpa, *qkv, mask), partial(ours, *qkv, lengths=lengths)),
            ("weights", partial(with_weights, *qkv), partial(ours, *qkv, return_weights=True)),
            (
                "average weights",
                partial(with_weights, *qkv, average=True),
                partial(ours, *qkv, return_weights=True, average_weights=True),
            ),
            ("dropout 0.1", partial(sdpa, *qkv, dropout_p=0.1), partial(ours, *qkv, dropout_p=0.1)),
        ):
            yield name, shape, theirs, mine, qkv
        theirs, mine = (m.MultiheadAttention(heads * width, heads, batch_first=True) for m in (torch.nn, nn))
        mine.load_state_dict(theirs.state_dict())
        x = torch.randn(batch, queries, heads * width, requires_grad=True)
        yield "nn.MultiheadAttention", shape, partial(theirs, x, x, x), partial(mine, x, x, x), [x]
    for batch, keys, width in QUERIES:
        theirs, mine = Eager(width), nn.Attention(width)
        mine.load_state_dict(theirs.state_dict())
        states, query = torch.randn(batch, keys, width), torch.randn(batch, 1, width, requires_grad=True)
        mask = torch.rand(batch, 1, keys) > 0.2
        mask[..., 0] = True
        for attention in (theirs, mine):
            with torch.no_grad():
                attention.init_keys(states)
        shape = (batch, 1, 1, keys, width)
        yield (
            "nn.Attention, a decoder's query",
            shape,
            partial(theirs, query, mask),
            partial(mine, query, mask),
            [query],
        )


def inference(call):
    def run():
        with torch.no_grad():
            return call()

    return run


def training(call, inputs):
    def run():
        output = call()
        return torch.autograd.grad((output if torch.is_tensor(output) else output[0]).sum(), inputs)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention", description=__doc__)
    parser.add_argument("--threads", type=int, default=2, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=0.4, help="for each case; default %(default)s")
    args = parser.parse_args()
    processors = machine.confine(args.threads)
    rows = []
    for name, shape, theirs, ours, inputs in cases():
        if "dropout" not in name:
            torch.testing.assert_close(inference(ours)(), inference(theirs)(), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(training(ours, inputs)(), training(theirs, inputs)(), rtol=1e-3, atol=1e-4)
        row = {"case": name, "B H L S E": " ".join(map(str, shape))}
        for mode, run in (("inference", inference), ("training", lambda call, i=inputs: training(call, i))):
            pairs = timing.pairs(run(theirs), run(ours), args.seconds)
            row |= {f"{mode}, us": round(pairs.ours * 1e6), f"{mode}, torch/ours": round(pairs.ratio, 2)}
        rows.append(row)
        print(*row.values(), flush=True)
    measured_on = machine.describe(args.threads, processors)
    table = tabulate(rows, headers="keys", tablefmt="github")
    print(table)
    path = pathlib.Path(__file__).parent / "results" / f"attention-{machine.name_of(measured_on)}"
    path.with_suffix(".json").write_text(json.dumps({"machine": measured_on, "cases": rows}, indent=1) + "\n")
    path.with_suffix(".md").write_text(
        f"# Attention, {measured_on['processor']}, {measured_on['threads']} threads\n\n{table}\n"
    )


if __name__ == "__main__":
    main()
