"""Trains a tagger of every cell, with torch.nn and with seq2seq_fast, and writes the losses.

torchrun --nproc-per-node=2 ddp_program.py {ddp,fsdp} LOSSES.json
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from cases import LAYERS, draw, make_layer, twin
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Tagger(torch.nn.Module):
    def __init__(self, cell: str, library: str):
        super().__init__()
        layer = make_layer(cell, 5, 8, 2, bidirectional=True)
        self.layer = layer if library == "seq2seq_fast" else twin(layer)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.layer(x)[0])


def train(model: torch.nn.Module) -> list[float]:
    """The mean loss over the processes, each on its own data, step by step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for step in range(4):
        loss = model(draw(4, 3, 5, seed=10 * step + dist.get_rank())).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wrapper", choices=("ddp", "fsdp"))
    parser.add_argument("losses", type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    losses = {}
    for cell in LAYERS:
        for library in ("seq2seq_fast", "torch.nn"):
            model = Tagger(cell, library)
            if arguments.wrapper == "ddp":
                model = DistributedDataParallel(model)
            else:
                fully_shard(model.layer, mesh=mesh)
                fully_shard(model, mesh=mesh)
            losses.setdefault(cell, {})[library] = train(model)
    if dist.get_rank() == 0:
        arguments.losses.write_text(json.dumps(losses))
    dist.barrier()
    # not through the destructors: gloo's may wait for ever for a thread that waits for the GIL (torch 2.13)
    os._exit(0)


if __name__ == "__main__":
    main()
