"""What the workers of the section `torch_steps` do; they need torch."""

from __future__ import annotations

from typing import Any

import disco_server
from disco_bench.torch_steps_net import train

__all__ = ["train_on_worker"]


class _ByDisco:
    """See `TensorTransfer`."""

    def __init__(self, world: Any) -> None:
        self.send, self.recv = world.send, world.recv
        self._broadcast = world.broadcast

    def broadcast(self, tensor: Any) -> None:
        """Overwrites the tensors of all ranks with that of rank 0."""
        self._broadcast(tensor, tensor)


@disco_server.register_func("bench.torch_steps")
def train_on_worker(steps: int) -> list[float]:
    """Trains the network with the other workers, and returns this worker's losses."""
    worker = disco_server.current_worker()
    return train(worker.worker_id, worker.num_workers, steps, _ByDisco(worker.world))
