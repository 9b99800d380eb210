"""Tensor-parallel training by torch's DTensor: each rank has a part of the hidden units.

torchrun --standalone --nproc-per-node 4 dtensors.py
disco run --torch --workers 4 dtensors.py
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
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor


def placements(name: str) -> list[Placement]:
    """How a parameter is placed: by hidden units, where it has an axis for them."""
    return {
        "0.weight": [Shard(0)],
        "0.bias": [Shard(0)],
        "2.weight": [Shard(1)],
        "2.bias": [Replicate()],
    }[name]


def train(steps: int) -> list[float]:
    """Trains on all ranks; the loss of each batch, which every rank has as a whole."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    network = make_network()
    for name, whole in list(network.named_parameters()):
        layer = network.get_submodule(name.partition(".")[0])
        part = distribute_tensor(whole.detach(), mesh, placements(name))
        setattr(layer, name.partition(".")[2], nn.Parameter(part))

    def copied(tensor: Tensor) -> Tensor:
        return distribute_tensor(tensor, mesh, [Replicate()])

    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = list[float]()
    for inputs, wanted in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(network, copied(inputs), copied(wanted))
        loss.backward()
        optimizer.step()
        losses.append(loss.full_tensor().item())  # type: ignore[attr-defined]  (a DTensor's)
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
