"""Host arrays between the client and its child processes, through shared memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from disco_client.errors import SessionError
from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool, read_shared, write_shared
from disco_client.wire.codec import Kind, envelope
from disco_server.channels.frames import frame
from disco_server.embedded.children import Children
from disco_server.embedded.rank_child import RankChild

__all__ = ["SharedArrays"]

_MAX_UNDER_WAY = 64
_MAX_BYTES_UNDER_WAY = 256 << 20
"""How much may be on its way before an upload waits for the workers to take some."""

_MAX_WAIT_S = 1.0
"""An upload waits no longer than this for the one before: what that waits for might be
another thread's upload."""


class SharedArrays:
    """The arrays of one session that travel beside its log.

    Args:
        session: The session's id.
        children: Its ranks.
        wait: Waits for a lock, so many seconds.
    """

    def __init__(
        self,
        session: int,
        children: Children,
        wait: Callable[[threading.Lock, float], bool],
    ) -> None:
        self._session = session
        self._children = children
        self._wait = wait
        self._lock = threading.Lock()
        self._memory = SharedPool()
        self._offers: dict[tuple[int, int], tuple[int, int]] = {}
        self._under_way: dict[int, list[int]] = {}
        self._gates: list[threading.Lock] = []
        self._over = False

    # To a worker ----------------------------------------------------------------------------

    def upload(self, ticket: int, child: RankChild, data: memoryview) -> None:
        """Gives an array's bytes to a rank; returns when they may be changed.

        Raises:
            SessionError: There is no memory for it.
        """
        try:
            self._await_room(len(data))
            fd = self._fill(data)
        except BaseException as error:
            # The rank waits for the array by now.
            child.send(self._array_in(ticket, child, 0, "the upload was broken off"))
            if isinstance(error, OSError):
                msg = f"no shared memory for an array of {len(data)} bytes: {error}"
                raise SessionError(msg) from error
            raise
        with self._lock:
            self._under_way.setdefault(child.worker, []).append(len(data))
        child.send(self._array_in(ticket, child, len(data)), fd)

    def _fill(self, data: memoryview) -> int:
        with self._lock:
            fd = self._memory.take(len(data))
        try:
            write_shared(fd, data)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _array_in(self, ticket: int, child: RankChild, nbytes: int, error: str = "") -> bytes:
        transfer = controller_pb2.Transfer(
            session=self._session, ticket=ticket, worker=child.worker, nbytes=nbytes, error=error
        )
        payload = transfer.SerializeToString()
        return frame(envelope(Kind.ARRAY_IN, payload, session=self._session))

    def _await_room(self, nbytes: int) -> None:
        gate = threading.Lock()
        with self._lock:
            sizes = [size for taken in self._under_way.values() for size in taken]
            full = len(sizes) >= _MAX_UNDER_WAY or sum(sizes) + nbytes > _MAX_BYTES_UNDER_WAY
            if not sizes or not full or self._over:
                return
            gate.acquire()
            self._gates.append(gate)
        if self._wait(gate, _MAX_WAIT_S):
            self._await_room(nbytes)

    def given_back(self, child: RankChild) -> None:
        """Takes the memory back that a rank has copied from."""
        with self._lock:
            self._memory.give(child.reader.fds.popleft())
            taken = self._under_way.get(child.worker)
            if taken:
                taken.pop(0)
        self._open_gates()

    def _open_gates(self) -> None:
        with self._lock:
            gates, self._gates = self._gates, []
        for gate in gates:
            gate.release()

    # From a worker --------------------------------------------------------------------------

    def offered(self, child: RankChild, payload: bytes) -> None:
        """Keeps an array that a rank offers, until it is asked for."""
        transfer = controller_pb2.Transfer.FromString(payload)
        with self._lock:
            self._offers[child.worker, transfer.ticket] = (
                child.reader.fds.popleft(),
                transfer.nbytes,
            )

    def download(self, ticket: int, child: RankChild, into: memoryview) -> None:
        """Fills a buffer with the array that a rank offered.

        Raises:
            SessionError: There is none of that ticket and size.
        """
        with self._lock:
            fd, nbytes = self._offers.pop((child.worker, ticket), (-1, -1))
        if nbytes != len(into):
            if fd >= 0:
                os.close(fd)
            msg = f"expected an array of {len(into)} bytes from worker {child.worker}"
            raise SessionError(f"{msg}, got {nbytes}" if fd >= 0 else f"{msg}, there is none")
        try:
            read_shared(fd, into)
        finally:
            child.send(frame(envelope(Kind.ARRAY_BACK, session=self._session)), fd)

    # The end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Lets those go who wait for room."""
        self._over = True
        self._open_gates()

    def close(self) -> None:
        """Gives all memory back."""
        with self._lock:
            while self._offers:
                _, (fd, _) = self._offers.popitem()
                os.close(fd)
            self._memory.close()
