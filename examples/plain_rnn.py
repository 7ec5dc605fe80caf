"""Token to token with stacks of nn.RNN: learns to say a sequence backwards."""

import itertools

import torch
import torch.nn.functional as F
from engines import engines
from plain_decoder import PlainSeq2Seq
from side_by_side import parser, race, table
from torch import Tensor, nn

VOCABULARY, EMBEDDING, HIDDEN, LAYERS, STEPS, BATCH = 1000, 256, 512, 2, 10, 32
BOS = 0


def sequences(seed: int):
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        source = torch.randint(1, VOCABULARY, (BATCH, STEPS), generator=generator)
        yield source, source.flip(1)


def build(seed: int):
    torch.manual_seed(seed)
    stacks = [nn.RNN(EMBEDDING, HIDDEN, LAYERS, dropout=0.5, batch_first=True) for _ in range(2)]
    embeddings = [nn.Embedding(VOCABULARY, EMBEDDING) for _ in range(2)]
    output = nn.Linear(HIDDEN, VOCABULARY)
    return engines(PlainSeq2Seq(embeddings[0], stacks[0], embeddings[1], stacks[1], output, bos=BOS, ratio=0.5))


def loss_of(model, batch) -> Tensor:
    source, target = batch
    return F.cross_entropy(model(source, target).flatten(0, 1), target.flatten())


def run(steps: int, seed: int):
    return race(build(seed), loss_of, sequences(seed), steps, seed=seed, learning_rate=1e-3)


if __name__ == "__main__":
    args = parser(__doc__, steps=200).parse_args()
    torch.set_num_threads(args.threads)
    print(table(run(args.steps, args.seed)))
