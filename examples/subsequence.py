"""x = (start, length, x_0 .. x_7), digits; y is that subsequence of x_0 .. x_7, then zeros. Three layers of GRU."""

import itertools

import torch
import torch.nn.functional as F
from engines import engines
from plain_decoder import PlainSeq2Seq
from side_by_side import parser, race, table
from torch import Tensor, nn

DIGITS, EMBEDDING, HIDDEN, LAYERS, LENGTH, BATCH, EXAMPLES = 10, 128, 256, 3, 8, 32, 4096
BOS = 0


def subsequences(seed: int):
    generator = torch.Generator().manual_seed(seed)
    place = torch.arange(LENGTH)
    for _ in itertools.count():
        x = torch.randint(DIGITS, (BATCH, LENGTH), generator=generator)
        start = torch.randint(LENGTH, (BATCH, 1), generator=generator)
        length = (torch.rand(BATCH, 1, generator=generator) * (LENGTH - start) + 1).long()
        y = x.gather(1, (start + place).clamp(max=LENGTH - 1)).where(place < length, 0)
        yield torch.cat([start, length, x], 1), y


def build(seed: int, ratio: float = 0.5):
    torch.manual_seed(seed)
    embeddings = [nn.Embedding(DIGITS, EMBEDDING) for _ in range(2)]
    stacks = [nn.GRU(EMBEDDING, HIDDEN, LAYERS, dropout=0.5, batch_first=True) for _ in range(2)]
    output = nn.Linear(HIDDEN, DIGITS)
    plain = PlainSeq2Seq(embeddings[0], stacks[0], embeddings[1], stacks[1], output, bos=BOS, ratio=ratio)
    for parameter in plain.parameters():
        nn.init.uniform_(parameter, -0.08, 0.08)
    return engines(plain)


def loss_of(model, batch) -> Tensor:
    source, target = batch
    return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())


def run(steps: int, seed: int):
    return race(build(seed), loss_of, subsequences(seed), steps, seed=seed, learning_rate=1e-3)


if __name__ == "__main__":
    args = parser(__doc__, steps=16 * EXAMPLES // BATCH).parse_args()
    torch.set_num_threads(args.threads)
    print(table(run(args.steps, args.seed)))
