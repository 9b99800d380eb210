"""The same in torch, with its autograd and its optimiser; and what workers offer of it."""

# Where torch is not installed, nothing is known of its types.
# pyright: reportMissingImports=false, reportUnknownVariableType=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import disco_server

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchNetwork", "start", "step"]


class TorchNetwork:
    """A perceptron with one hidden layer, and Adam.

    Args:
        seed: Of the first weights.
        features: How many inputs it has.
        average: Replaces a tensor by its mean over all that train, and returns it; of one,
            the tensor as it is.
    """

    def __init__(self, seed: int, features: int, average: Callable[[Any], Any]) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._model = torch.nn.Sequential(
                torch.nn.Linear(features, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)
            ).double()
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
        self._average = average

    def step(self, x: Any, y: Any) -> Any:
        """Trains on a part of a batch; returns the loss of the whole batch.

        Args:
            x: [rows, features], of numpy or torch.
            y: [rows, 1].
        """
        self._optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self._model(torch.as_tensor(x)), torch.as_tensor(y))
        loss.backward()
        for parameter in self._model.parameters():
            self._average(parameter.grad)  # in place
        self._optimizer.step()
        return self._average(loss.detach())


@disco_server.register_func("examples.training.torch.start")
def start(seed: int, features: int) -> TorchNetwork:
    """Makes this worker's copy of the network; it stays in a register."""
    worker = disco_server.current_worker()
    return TorchNetwork(seed, features, lambda tensor: worker.allreduce(tensor, tensor, op="avg"))


@disco_server.register_func("examples.training.torch.step")
def step(network: TorchNetwork, x: Any, y: Any, number: int) -> Any:
    """Trains on this worker's part of one batch.

    Args:
        network: What `start` returned.
        x: Its parts of all batches, [batches, rows, features].
        y: Likewise, [batches, rows, 1].
        number: Which batch.
    """
    return network.step(x[number], y[number])
