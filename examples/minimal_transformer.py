"""An encoder-decoder of multi-head attention, residual connections and a feed-forward, no norm, on 1 0 1 0 ...

Here accelerate alone has something to do: it swaps nn.MultiheadAttention.
"""

import copy
import itertools

import torch
import torch.nn.functional as F
from side_by_side import parser, race, table
from torch import Tensor, nn

from seq2seq_fast import accelerate

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 256, 4, 2, 10, 32
BOS, TOKENS = 2, 3


class Block(nn.Module):
    """Attention to itself, to the source where there is one, and a feed-forward of four times the width."""

    def __init__(self, of_decoder: bool):
        super().__init__()
        self.itself = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.source = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True) if of_decoder else None
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, source: Tensor | None = None) -> Tensor:
        mask = None if self.source is None else nn.Transformer.generate_square_subsequent_mask(x.size(1))
        x = x + self.itself(x, x, x, attn_mask=mask, is_causal=mask is not None, need_weights=False)[0]
        if self.source is not None:
            x = x + self.source(x, source, source, need_weights=False)[0]
        return x + self.feed_forward(x)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)
        self.encoder = nn.ModuleList(Block(False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Block(True) for _ in range(LAYERS))
        self.output = nn.Linear(WIDTH, TOKENS)
        for parameter in self.parameters():
            # without a norm, the usual initial values would grow from layer to layer
            parameter.data.mul_(0.3)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states = self.embedding(source)
        for block in self.encoder:
            states = block(states)
        x = self.embedding(F.pad(target[:, :-1], (1, 0), value=BOS))
        for block in self.decoder:
            x = block(x, states)
        return self.output(x)


def alternating(seed: int):
    """Sources that begin with 0 or 1, and targets that go on with them."""
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        first = torch.randint(2, (BATCH, 1), generator=generator)
        tokens = (first + torch.arange(2 * LENGTH)) % 2
        yield tokens[:, :LENGTH], tokens[:, LENGTH:]


def build(seed: int) -> dict[str, nn.Module]:
    torch.manual_seed(seed)
    plain = Transformer()
    return {"torch.nn": plain, "accelerate": accelerate(copy.deepcopy(plain))}


def loss_of(model, batch) -> Tensor:
    source, target = batch
    return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())


def run(steps: int, seed: int):
    return race(build(seed), loss_of, alternating(seed), steps, seed=seed, learning_rate=1e-4)


if __name__ == "__main__":
    args = parser(__doc__, steps=100).parse_args()
    torch.set_num_threads(args.threads)
    print(table(run(args.steps, args.seed)))
