"""Two corners of a noisy square, clockwise or not: and the other two? Real values, fed back; with attention or not.

Draws some squares, and with attention its weights.
"""

import copy
import itertools
from pathlib import Path

import torch
import torch.nn.functional as F
from side_by_side import parser, race, table
from torch import Tensor, nn

import seq2seq_fast.nn
from seq2seq_fast import accelerate
from seq2seq_fast.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq

HIDDEN, BATCH, SQUARES, EPOCHS, HEADS, RATIO = 2, 16, 256, 100, 3, 0.5
KINDS = ("none", "single", "values", "wide")


def squares(count: int, seed: int) -> Tensor:
    """(count, 4, 2): the corners of [-1, 1]^2 in turn, from any of them, either way round, with noise."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
    first = torch.randint(4, (count, 1), generator=generator)
    way = torch.randint(2, (count, 1), generator=generator) * 2 - 1
    return corners[(first + way * torch.arange(4)) % 4] + 0.1 * torch.randn(count, 4, 2, generator=generator)


def batches(seed: int):
    corners = squares(SQUARES, seed)
    generator = torch.Generator().manual_seed(seed)
    for _ in itertools.count():
        for chosen in torch.randperm(SQUARES, generator=generator).split(BATCH):
            yield corners[chosen, :2], corners[chosen, 2:]


class PlainHead(nn.Module):
    """Attention as people write it: learned projections of query and key, and of the values or not."""

    def __init__(self, project_values: bool):
        super().__init__()
        self.linear_query, self.linear_key = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.linear_value = nn.Linear(HIDDEN, HIDDEN) if project_values else None
        self.alphas = None

    def forward(self, query: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        scores = self.linear_query(query) @ self.linear_key(states).mT / HIDDEN**0.5
        alphas = scores.masked_fill(~mask.unsqueeze(1), -torch.inf).softmax(-1)
        self.alphas = alphas.detach()
        return alphas @ (states if self.linear_value is None else self.linear_value(states))


class PlainWide(nn.Module):
    """Heads of the full width, joined and projected back."""

    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(PlainHead(True) for _ in range(HEADS))
        self.linear_out = nn.Linear(HEADS * HIDDEN, HIDDEN)

    def forward(self, query: Tensor, states: Tensor, mask: Tensor) -> Tensor:
        return self.linear_out(torch.cat([head(query, states, mask) for head in self.heads], -1))


class PlainSquares(nn.Module):
    def __init__(self, attention: nn.Module | None):
        super().__init__()
        self.encoder, self.decoder = (nn.GRU(2, HIDDEN, batch_first=True) for _ in range(2))
        self.attention = attention
        self.output = nn.Linear(HIDDEN if attention is None else 2 * HIDDEN, 2)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, state = self.encoder(source)
        mask = torch.ones(source.shape[:2], dtype=torch.bool)
        corner, found = source[:, -1:], []
        for step in range(target.size(1)):
            query, state = self.decoder(corner, state)
            if self.attention is not None:
                query = torch.cat([self.attention(query, states, mask), query], -1)
            found.append(self.output(query))
            corner = target[:, step : step + 1] if torch.rand(()) < RATIO else found[-1]
        return torch.cat(found, 1)


def build(kind: str, seed: int) -> dict[str, nn.Module]:
    torch.manual_seed(seed)
    attention = {"none": None, "single": PlainHead(False), "values": PlainHead(True), "wide": PlainWide()}[kind]
    plain = PlainSquares(attention)
    parts = copy.deepcopy(plain)
    if attention is None:
        decoder = Decoder(parts.decoder, parts.output)
    else:
        heads = HEADS if kind == "wide" else 1
        ours = seq2seq_fast.nn.Attention(HIDDEN, proj_values=kind == "values", num_heads=heads, wide=kind == "wide")
        ours.load_state_dict(joined(parts.attention))
        decoder = AttentionDecoder(parts.decoder, ours, parts.output)
    fast = Seq2Seq(Encoder(parts.encoder), decoder, teacher_forcing=RATIO)
    return {"torch.nn": plain, "accelerate": accelerate(copy.deepcopy(plain)), "seq2seq_fast.seq2seq": fast}


def joined(attention: nn.Module) -> dict[str, Tensor]:
    """The weights of `attention` under the names of seq2seq_fast.nn.Attention, which has the heads in one matrix."""
    if not isinstance(attention, PlainWide):
        return attention.state_dict()
    heads = [head.state_dict() for head in attention.heads]
    weights = {name: torch.cat([head[name] for head in heads]) for name in heads[0]}
    return weights | {f"linear_out.{name}": weight for name, weight in attention.linear_out.state_dict().items()}


def loss_of(model, batch) -> Tensor:
    source, target = batch
    if isinstance(model, Seq2Seq) and isinstance(model.decoder, AttentionDecoder):
        return F.mse_loss(model(source, target, source_mask=torch.ones(source.shape[:2], dtype=torch.bool)), target)
    return F.mse_loss(model(source, target), target)


def run(steps: int, seed: int, kind: str = "single"):
    return race(build(kind, seed), loss_of, batches(seed), steps, seed=seed, learning_rate=0.01, clip=None)


def draw(model: Seq2Seq, path: Path, seed: int) -> None:
    """Eight new squares, given corners and predicted ones, and the weights of attention under each."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    corners = squares(8, seed + 1)
    attends = isinstance(model.decoder, AttentionDecoder)
    predicted, alphas = model.eval().feedback(corners[:, :2], 2, return_alphas=attends)
    figure, axes = pyplot.subplots(2 if attends else 1, 8, figsize=(16, 4.4 if attends else 2.4), squeeze=False)
    for k, axis in enumerate(axes[0]):
        axis.plot(*corners[k, [0, 1, 2, 3, 0]].T, "o-", color="lightgray", label="square")
        axis.plot(*corners[k, :2].T, "o", color="tab:blue", label="given")
        axis.plot(*predicted[k].T, "x", color="tab:red", markersize=9, label="predicted")
        axis.set(xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), xticks=[], yticks=[], aspect="equal")
    axes[0, 0].legend(fontsize="x-small", loc="center")
    for k, axis in enumerate(axes[1] if attends else []):
        weights = alphas[k] if alphas.dim() == 3 else alphas[k].mean(0)
        axis.imshow(weights, vmin=0, vmax=1, cmap="viridis")
        axis.set(xticks=[0, 1], yticks=[0, 1], xlabel="given corner", ylabel="predicted corner" if k == 0 else "")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"Drawn in {path}.")


if __name__ == "__main__":
    options = parser(__doc__, steps=EPOCHS * SQUARES // BATCH)
    options.add_argument("--attention", choices=KINDS, default="single", help="(%(default)s)")
    options.add_argument("--output", type=Path, default=Path("out/squares.png"), help="the figure (%(default)s)")
    args = options.parse_args()
    torch.set_num_threads(args.threads)
    racers = run(args.steps, args.seed, args.attention)
    print(table(racers))
    draw(racers[-1].model, args.output, args.seed)
