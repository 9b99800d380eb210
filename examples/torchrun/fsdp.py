"""Training with sharded weights by FSDP2, and a checkpoint from which it goes on.

Each rank has a part of each weight, of its gradient and of the optimiser's state.

    torchrun --standalone --nproc-per-node 4 fsdp.py --folder /tmp/checkpoint
    disco run --torch --workers 4 fsdp.py --folder /tmp/checkpoint

All ranks have to see the folder, by the same path.
"""

# Where torch is not installed, nothing is known of its types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import argparse
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from network import RATE, batches, loss_of, losses_alone, make_network, show
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make_sharded() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Makes the network, whose weights are divided among the ranks, and its optimiser."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    network = make_network()
    for layer in network:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network, torch.optim.SGD(network.parameters(), lr=RATE)


def train(
    network: nn.Module, optimizer: torch.optim.Optimizer, data: Iterable[tuple[Tensor, Tensor]]
) -> list[float]:
    """Trains on all ranks; the loss of each whole batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    losses = list[float]()
    for inputs, wanted in data:
        optimizer.zero_grad()
        loss = loss_of(network, inputs[rank::size], wanted[rank::size])
        loss.backward()  # each rank gets its part of the mean gradients
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def save(folder: str, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Saves weights and the optimiser's state; each rank writes its own parts."""
    weights, state = get_state_dict(network, optimizer)
    dcp.save({"network": weights, "optimizer": state}, checkpoint_id=folder)


def load(folder: str, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Loads what `save` has saved; each rank reads its own parts."""
    weights, state = get_state_dict(network, optimizer)
    dcp.load({"network": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(network, optimizer, model_state_dict=weights, optim_state_dict=state)


def main() -> None:
    """Trains, compares with one process, and repeats the second half from a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--folder", help="of a checkpoint; without it there is none")
    given = parser.parse_args()
    data, half = list(batches(given.steps)), given.steps // 2
    dist.init_process_group("gloo")
    network, optimizer = make_sharded()
    losses = train(network, optimizer, data[:half])
    if given.folder:
        save(given.folder, network, optimizer)
    losses += train(network, optimizer, data[half:])
    if dist.get_rank() == 0:
        show(f"{dist.get_world_size()} ranks", losses, losses_alone(given.steps), "one process")
    if given.folder:
        again = make_sharded()
        load(given.folder, *again)
        repeated = train(*again, data[half:])
        if dist.get_rank() == 0:
            show("from checkpoint", repeated, losses[half:], "before")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
