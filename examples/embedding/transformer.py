"""What the workers of a session can do for the embedder; imported by each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import disco_server
from embedding.bert import BertSlice
from embedding.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from embedding.numerics import Floats

__all__ = ["forward", "load", "times"]


@disco_server.register_func("examples.embedding.load")
def load(folder: str | None) -> BertSlice:
    """Reads this worker's share of a model; it stays on the worker's device.

    Args:
        folder: The model's folder on this worker's machine; None means the
            all-MiniLM-L6-v2 that is installed there.

    Raises:
        ModelError: The model cannot be read here, or does not divide by the
            number of workers.
    """
    worker = disco_server.current_worker()
    model = BertSlice(read_settings(folder), worker.worker_id, worker.num_workers, worker.xp)
    if worker.num_workers > 1:
        # The first collective starts MPI, which belongs to the loading and not to the first batch.
        worker.barrier()
    if not worker.arrays.on_host:
        # So does what a GPU does once: compiling, opening its libraries, connecting to its peers.
        forward(model, worker.xp.zeros(3, "int32"), [2, 1])
    return model


@disco_server.register_func("examples.embedding.forward")
def forward(model: BertSlice, ids: npt.NDArray[np.int32], lengths: Sequence[int]) -> Floats:
    """Embeds a batch together with the other workers.

    Arrays among the arguments are on the worker's device already, and plain
    numbers are on the host: the tokens are looked up on the device, the lengths
    decide what is computed.

    Args:
        model: What ``load`` returned on this worker.
        ids: [tokens], int32: the tokens of all sentences, one after the other.
        lengths: How many of them each sentence has.

    Returns:
        [sentences, H], float32, each row of length 1; the same on every worker.

    Raises:
        ValueError: The batch does not fit the model.
    """
    worker = disco_server.current_worker()

    def add_up(summand: Floats) -> None:
        worker.allreduce(summand, summand)

    return model.forward(ids, lengths, add_up)


@disco_server.register_func("examples.embedding.times")
def times(model: BertSlice) -> list[float]:
    """Says how long this worker has spent so far: [computing, in collectives], in seconds.

    Where it computes on a GPU, it is the GPU's own time, and this waits for the GPU.
    """
    return list(model.times())
