"""Uploads that will not arrive, which nodes are told until no worker can wait for them."""

from __future__ import annotations

from collections.abc import Sequence

from disco_client.locks import make_lock
from disco_client.pb import controller_pb2

__all__ = ["GivenUp"]

_MAX_WHY = 500


class GivenUp:
    """Any thread may add some; it is sent over the session's stream, which needs no descriptor."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._told: list[tuple[int, controller_pb2.Transfer]] = []

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, uploads: Sequence[tuple[int, int]], why: str, issued: int) -> None:
        """Adds some.

        Args:
            uploads: The ticket and the worker of each.
            why: The reason for the workers; may be empty.
            issued: The newest command, up to which one may wait for them.
        """
        error = f"the upload was broken off: {why}" if why else "the upload was broken off"
        with self._lock:
            self._told += [
                (issued, controller_pb2.Transfer(ticket=t, worker=w, error=error[:_MAX_WHY]))
                for t, w in uploads
            ]

    def still(self, acked: int) -> list[controller_pb2.Transfer]:
        """Those that a worker may not know of yet.

        Args:
            acked: The newest command that every worker has executed: a report is acknowledged
                with the commands that wait for its arrays.
        """
        if not self._told:
            return []
        with self._lock:
            self._told = [each for each in self._told if each[0] > acked]
            return [transfer for _, transfer in self._told]
