"""Data-parallel training by torch's DistributedDataParallel: each rank has a part of each batch.

torchrun --standalone --nproc-per-node 4 ddp.py
disco run --torch --workers 4 ddp.py
"""

# Where torch is not installed, nothing is known of its types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from network import RATE, batches, loss_of, losses_alone, make_network, show
from torch.nn.parallel import DistributedDataParallel


def train(steps: int) -> list[float]:
    """Trains on all ranks; the loss of each whole batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    network = DistributedDataParallel(make_network())
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = list[float]()
    for inputs, wanted in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(network, inputs[rank::size], wanted[rank::size])
        loss.backward()  # averages the gradients of all ranks
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def main() -> None:
    """Trains, and compares with one process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    steps = parser.parse_args().steps
    dist.init_process_group("gloo")
    losses = train(steps)
    if dist.get_rank() == 0:
        show(f"{dist.get_world_size()} ranks", losses, losses_alone(steps), "one process")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
