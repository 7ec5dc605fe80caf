"""Learns to say again the histories of reinforcement learning, s a s a s EOS, in float64.

States and actions come as one-hot vectors through embeddings without a bias, so that the gradient reaches them.
"""

import itertools

import torch
import torch.nn.functional as F
from engines import engines
from plain_decoder import PlainSeq2Seq
from side_by_side import parser, race, table
from torch import Tensor, nn

HORIZON, STATES, ACTIONS, BATCH = 2, 3, 3, 32
EOS, PAD, BOS = STATES + ACTIONS, STATES + ACTIONS + 1, STATES + ACTIONS + 2
TOKENS = BOS + 1


class OneHots(nn.Module):
    """(B, S, 3 + 3 + 1) one-hot states, actions and EOS to (B, S, E), each through a table of its own."""

    def __init__(self, width: int):
        super().__init__()
        self.tables = nn.ModuleList(nn.Linear(count, width, bias=False) for count in (STATES, ACTIONS, 1))

    def forward(self, one_hots: Tensor) -> Tensor:
        parts = one_hots.split((STATES, ACTIONS, 1), -1)
        return sum(table(part) for table, part in zip(self.tables, parts, strict=True))


def histories(seed: int):
    """Fresh random ones without end: one-hot vectors (B, 2 * HORIZON + 2, 7) and tokens (B, 2 * HORIZON + 2)."""
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        states = torch.randint(STATES, (BATCH, HORIZON + 1), generator=generator)
        actions = torch.randint(ACTIONS, (BATCH, HORIZON), generator=generator) + STATES
        between = torch.stack([states[:, :-1], actions], -1).flatten(1)
        tokens = torch.cat([between, states[:, -1:], torch.full((BATCH, 1), EOS)], 1)
        yield F.one_hot(tokens, EOS + 1).double(), tokens


def build(seed: int):
    torch.manual_seed(seed)
    plain = PlainSeq2Seq(
        OneHots(5), nn.GRU(5, 16, batch_first=True), nn.Embedding(TOKENS, 7, padding_idx=PAD),
        nn.GRU(7, 16, batch_first=True), nn.Linear(16, TOKENS), bos=BOS, ratio=0.5,
    )  # fmt: skip
    return engines(plain.double(), eos=EOS, pad=PAD)


def loss_of(model, batch) -> Tensor:
    source, target = batch
    return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten(), ignore_index=PAD)


def run(steps: int, seed: int):
    return race(build(seed), loss_of, histories(seed), steps, seed=seed, learning_rate=5e-3)


if __name__ == "__main__":
    args = parser(__doc__, steps=500 * 256 // BATCH).parse_args()
    torch.set_num_threads(args.threads)
    print(table(run(args.steps, args.seed)))
