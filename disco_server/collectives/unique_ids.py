"""How the ranks of a communicator on GPUs get the unique id that the first of them made.

The id says where that rank listens. Ranks of a worker daemon get it as a key of their
session's rendezvous, over gRPC. Where there is no rendezvous, under an MPI launcher, in the
child processes of a program and between threads, it is sent over the host's communicator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from disco_server.collectives.group import Backend

__all__ = ["HostIds", "RendezvousIds", "UniqueIds"]


class UniqueIds(Protocol):
    """Shares the unique ids of one rank's communicators with their other ranks."""

    def share(self, use: str, unique: bytes | None, nbytes: int, host: Backend) -> bytes:
        """Returns the id that the first rank made; every rank of the communicator calls it.

        Args:
            use: Names the communicator; the same on its ranks, and never used again.
            unique: The id on the first rank, empty where it could not make one; None on others.
            nbytes: How long the library's ids are.
            host: Moves data among the same ranks on the host.

        Returns:
            The id; empty where the first rank could not make one.

        Raises:
            Exception: It did not come in time, or will not come.
        """
        ...


class HostIds:
    """Sends unique ids over the host's communicator."""

    def share(self, use: str, unique: bytes | None, nbytes: int, host: Backend) -> bytes:
        """Broadcasts the id of the first rank; see `UniqueIds`."""
        del use
        shared = np.zeros(nbytes, np.uint8)
        if unique is not None and len(unique) == nbytes:
            shared[:] = np.frombuffer(unique, np.uint8)
        host.broadcast(shared, shared)
        return shared.tobytes() if shared.any() else b""


class RendezvousIds:
    """Makes unique ids keys of the session's rendezvous.

    Args:
        put: Writes a key: its name, its value, and within how many seconds.
        get: Waits for a key, for so many seconds, and returns its value.
        limit_s: Returns how many. All ranks have said before that they can begin.
    """

    def __init__(
        self,
        put: Callable[[str, bytes, float], None],
        get: Callable[[str, float], bytes],
        limit_s: Callable[[], float],
    ) -> None:
        self._put, self._get, self._limit_s = put, get, limit_s

    def share(self, use: str, unique: bytes | None, nbytes: int, host: Backend) -> bytes:
        """Writes the key of this use, or waits for it; see `UniqueIds`.

        Raises:
            ConnectionError: The first rank did not write it in time, the session is over, or
                the controller is gone.
        """
        del nbytes, host
        if unique is None:
            return self._get(use, self._limit_s())
        self._put(use, unique, self._limit_s())
        return unique
