"""A small network whose ranks train together by sends and broadcasts; of Disco's and of gloo's.

In each step all ranks but rank 0 send it their four gradients, one tensor each; it averages them,
takes a step of gradient descent, and broadcasts the four weights. Only processes that have torch
import this.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol

__all__ = ["TensorTransfer", "train"]

torch: Any = importlib.import_module("torch")

_INPUTS, _HIDDEN = 3, 16
_ROWS_A_RANK, _RATE = 32, 0.05


class TensorTransfer(Protocol):
    """Moves tensors among the ranks."""

    def send(self, tensor: Any, rank: int) -> None:
        """Sends to a rank."""

    def recv(self, tensor: Any, rank: int) -> None:
        """Receives from a rank."""

    def broadcast(self, tensor: Any) -> None:
        """Overwrites the tensors of all ranks with that of rank 0."""


def train(rank: int, size: int, steps: int, mover: TensorTransfer) -> list[float]:
    """Trains from the same beginning each time.

    Args:
        rank: Which this is.
        size: Of how many.
        steps: How many.
        mover: Moves the tensors.

    Returns:
        This rank's loss before each step; equal for every mover.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(_INPUTS, _HIDDEN), torch.nn.Tanh(), torch.nn.Linear(_HIDDEN, 1)
    )
    weights = list(net.parameters())
    data = torch.Generator().manual_seed(1 + rank)
    inputs = torch.randn(_ROWS_A_RANK, _INPUTS, generator=data)
    targets = inputs.sin().sum(1, keepdim=True)
    came = [torch.empty_like(weight, requires_grad=False) for weight in weights]
    losses: list[float] = []
    for _ in range(steps):
        loss = torch.nn.functional.mse_loss(net(inputs), targets)
        gradients = torch.autograd.grad(loss, weights)
        losses.append(loss.item())
        with torch.no_grad():
            if rank:
                for gradient in gradients:
                    mover.send(gradient, 0)
            else:
                _take_step(size, weights, gradients, came, mover)
            for weight in weights:
                mover.broadcast(weight.detach())
    return losses


def _take_step(size: int, weights: Any, gradients: Any, came: Any, mover: TensorTransfer) -> None:
    """Receives the other ranks' gradients and changes the weights of rank 0."""
    for peer in range(1, size):
        for gradient, other in zip(gradients, came, strict=True):
            mover.recv(other, peer)
            gradient.add_(other)
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.sub_(gradient, alpha=_RATE / size)
