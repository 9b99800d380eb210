"""The client's side: a model on the workers of a session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from embedding.report import Share
from embedding.tokens import embed_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    import disco_client
    from embedding.numerics import Floats
    from embedding.tokens import Batch

__all__ = ["Embedder"]


class Embedder:
    """A model split over all workers of a session.

    Args:
        session: Its workers must be able to import this package.
        folder: The model's folder on the workers; None means the installed
            all-MiniLM-L6-v2 of each.

    Attributes:
        seconds: How long the latest ``embed`` took, from the first batch to the
            last embedding.
        shares: How that time divides, one entry a worker.

    Raises:
        disco_client.RemoteError: A worker cannot load its share.
    """

    def __init__(self, session: disco_client.Session, folder: str | None = None) -> None:
        self._session = session
        session.import_python_module("embedding.transformer")
        self._forward = session.get_global_func("examples.embedding.forward")
        self._times = session.get_global_func("examples.embedding.times")
        self._model = session.get_global_func("examples.embedding.load")(folder)
        self.seconds = 0.0
        self.shares: list[Share] = []
        # Without this, the loading would be counted with the first batch.
        session.sync_all()

    def embed(self, batches: Iterable[Batch]) -> Floats:
        """Embeds the sentences of all batches.

        A batch is one command: its token numbers travel inside the call, and
        what returns is fetched from worker 0.

        Args:
            batches: At least one.

        Returns:
            [sentences, H], float32, each row of length 1, in the sentences' order.

        Raises:
            disco_client.RemoteError: A worker could not embed a batch.
            disco_client.SessionLost: A worker, node or controller went away.
        """
        before = self._read_times()
        started = time.perf_counter()
        embeddings = embed_all(batches, self._begin)
        elapsed = self.seconds = time.perf_counter() - started
        self.shares = [
            Share(
                compute=now[0] - then[0],
                collectives=now[1] - then[1],
                control=elapsed - (now[0] - then[0]) - (now[1] - then[1]),
            )
            for now, then in zip(self._read_times(), before, strict=True)
        ]
        return embeddings

    def _begin(self, batch: Batch) -> disco_client.DRef:
        return self._forward(self._model, batch.ids, batch.lengths.tolist())

    def _read_times(self) -> list[list[float]]:
        times = self._times(self._model)
        return [times.debug_get_from_remote(i) for i in range(self._session.num_workers)]
