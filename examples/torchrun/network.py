"""The network that the scripts beside train, its batches, and its training in one process."""

# Where torch is not installed, nothing is known of its types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

INPUTS, HIDDEN, BATCH = 16, 32, 24
RATE = 0.2


def make_network() -> nn.Sequential:
    """Makes the network, with the same weights each time."""
    torch.manual_seed(7)
    layers = (nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 1))
    return nn.Sequential(*layers).double()


def batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Makes batches, the same ones each time.

    Args:
        steps: How many.

    Yields:
        Inputs [batch, inputs] and what is to be learned of them [batch, 1], in float64.
    """
    draws = torch.Generator().manual_seed(11)
    for _ in range(steps):
        inputs = torch.randn(BATCH, INPUTS, generator=draws, dtype=torch.float64)
        yield inputs, inputs[:, :4].sin().sum(1, keepdim=True)


def loss_of(network: nn.Module, inputs: Tensor, wanted: Tensor) -> Tensor:
    """The mean squared error."""
    return nn.functional.mse_loss(network(inputs), wanted)


def losses_alone(steps: int) -> list[float]:
    """Trains in this process alone, with whole batches; the loss of each step."""
    network = make_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    losses = list[float]()
    for inputs, wanted in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(network, inputs, wanted)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def show(what: str, losses: Sequence[float], others: Sequence[float], other: str) -> None:
    """Prints two trainings step by step, and by how much they differ.

    Args:
        what: The name of the first one.
        losses: Its losses.
        others: Those of the second one.
        other: Its name.
    """
    print(f"step  {what:<16}  {other}")
    for step, (one, two) in enumerate(zip(losses, others, strict=True)):
        print(f"{step:>4}  {one:<16.12f}  {two:.12f}")
    largest = max(abs(one - two) for one, two in zip(losses, others, strict=True))
    print(f"largest difference of {len(losses)} losses: {largest:.1e}", flush=True)
