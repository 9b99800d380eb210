"""A small network with its gradients and its optimiser, in numpy; and what workers offer of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import disco_server

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NumpyNetwork", "start", "step"]

Floats = np.ndarray[Any, np.dtype[np.float64]]


class NumpyNetwork:
    """A perceptron with one hidden layer; gradient descent with momentum.

    Args:
        seed: Of the first weights.
        features: How many inputs it has.
        average: Returns the mean of an array over all that train; of one, the array itself.
    """

    def __init__(self, seed: int, features: int, average: Callable[[Any], Any]) -> None:
        rng = np.random.default_rng(seed)
        sizes = ((features, 32), (32, 1))
        self._weights = [rng.normal(0, size[0] ** -0.5, size) for size in sizes]
        self._velocities = [np.zeros(size) for size in sizes]
        self._average = average

    def step(self, x: Floats, y: Floats) -> Floats:
        """Trains on a part of a batch; returns the loss of the whole batch.

        Args:
            x: [rows, features].
            y: [rows, 1].
        """
        into, out = self._weights
        hidden = np.tanh(x @ into)
        error = hidden @ out - y
        slope = 2 * error / len(x)
        gradients = (x.T @ (slope @ out.T * (1 - hidden**2)), hidden.T @ slope)
        for place, gradient in enumerate(gradients):
            self._velocities[place] *= 0.9
            self._velocities[place] += self._average(gradient)
            self._weights[place] -= 0.02 * self._velocities[place]
        return self._average(np.mean(error**2, keepdims=True))


@disco_server.register_func("examples.training.numpy.start")
def start(seed: int, features: int) -> NumpyNetwork:
    """Makes this worker's copy of the network; it stays in a register."""
    worker = disco_server.current_worker()
    return NumpyNetwork(seed, features, lambda array: worker.allreduce(array, op="avg"))


@disco_server.register_func("examples.training.numpy.step")
def step(network: NumpyNetwork, x: Floats, y: Floats, number: int) -> Floats:
    """Trains on this worker's part of one batch.

    Args:
        network: What `start` returned.
        x: Its parts of all batches, [batches, rows, features].
        y: Likewise, [batches, rows, 1].
        number: Which batch.
    """
    return network.step(x[number], y[number])
