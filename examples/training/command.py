"""Trains a network on the workers of a session, and once more in this process, to compare."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

import disco_client
from cluster.commands import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Floats = np.ndarray[Any, np.dtype[np.float64]]

__all__ = ["Network", "main"]

_FEATURES = 8
_ROWS = 16
_SEED = 5
_ROUNDING = 1e-9


class Network(Protocol):
    """What can be trained."""

    def step(self, x: Floats, y: Floats) -> Any:
        """Trains on a batch; returns the loss, one number."""
        ...


def main(
    name: str,
    library: str,
    network: Callable[[int, int, Callable[[Any], Any]], Network],
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs the command and returns its exit code.

    Args:
        name: The command's.
        library: Which functions of the workers train: those of `training.LIBRARY_network`.
        network: Makes the same network in this process.
        arguments: The command's; None for those of this process.
    """
    options = _parse(name, arguments)
    return run_command(name, lambda: _run(options, library, network))


def _run(
    options: argparse.Namespace,
    library: str,
    network: Callable[[int, int, Callable[[Any], Any]], Network],
) -> int:
    workers, steps = options.workers, options.steps
    x, y = _make_batches(workers, steps)
    together = _train(options, library, x, y)
    alone = network(_SEED, _FEATURES, lambda array: array)
    # A batch of one process is the workers' parts of it, one after the other.
    apart = [
        alone.step(x[:, at].reshape(-1, _FEATURES), y[:, at].reshape(-1, 1)).item()
        for at in range(steps)
    ]
    print(f"step  {workers} workers      one process")
    for at in sorted({*range(0, steps, 10), steps - 1}):
        print(f"{at:4}  {together[at]:.12f}  {apart[at]:.12f}")
    difference = float(np.max(np.abs(np.subtract(together, apart))))
    print(f"largest difference of {steps} losses: {difference:.1e}")
    return int(difference > _ROUNDING)


def _make_batches(workers: int, steps: int) -> tuple[Floats, Floats]:
    """Inputs and what is to be learned of them; [workers, steps, rows, features or 1]."""
    rng = np.random.default_rng(_SEED)
    x = rng.normal(size=(workers, steps, _ROWS, _FEATURES))
    return x, np.sin(x.sum(axis=-1, keepdims=True))


def _train(options: argparse.Namespace, library: str, x: Floats, y: Floats) -> list[float]:
    """Trains on the workers, each on its part of every batch; returns the losses."""
    with disco_client.connect(
        options.address, num_workers=options.workers, timeout=options.timeout
    ) as session:
        session.import_python_module(f"training.{library}_network")
        start = session.get_global_func(f"examples.training.{library}.start")
        step = session.get_global_func(f"examples.training.{library}.step")
        network = start(_SEED, _FEATURES)
        parts = session.scatter(x), session.scatter(y)
        losses = [step(network, *parts, at) for at in range(options.steps)]
        return [loss.numpy().item() for loss in losses]


def _parse(name: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=name, description=__doc__)
    parser.add_argument("--workers", type=int, default=4, metavar="N", help="default: 4")
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="default: 40")
    parser.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="the controller (default: $DISCO_ADDRESS, else 127.0.0.1:7600)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long to wait for the controller and for workers (default: 30)",
    )
    return parser.parse_args(arguments)
