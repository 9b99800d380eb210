"""The host arrays of a program and its child processes, through shared memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.shared_memory import SharedPool
from disco_client.descriptors import Descriptor
from disco_client.errors import SessionError
from disco_client.forks import leave_in_children
from disco_client.locks import make_lock
from disco_client.pb import controller_pb2
from disco_client.wire.arrays import in_pieces
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_server.embedded.rank_child import RankChild
from disco_server.ipc.arrays import IncomingArray
from disco_server.ipc.rank_arrays import RankArrays, SendArray

__all__ = ["SharedArrays"]


_OVER = "the session is over"
_MAX_UNDER_WAY = 64
_MAX_BYTES_UNDER_WAY = 256 << 20
"""How many bytes may be in transfer before an upload waits for the workers to copy some."""

_MAX_WAIT_S = 1.0
"""An upload waits no longer than this for the one before: what that waits for might be
another thread's upload."""

_MAX_WHY = 500


class SharedArrays(RankArrays):
    """The arrays of one session that are transferred beside its log; for any thread.

    Args:
        send: Tells a rank about an array.
        wait: Waits for a lock, at most so many seconds.
    """

    def __init__(self, send: SendArray, wait: Callable[[threading.Lock, float], bool]) -> None:
        super().__init__(send)
        self._wait = wait
        self._lock = make_lock()
        self._mapped = MappedMemory()
        leave_in_children(self._memory, SharedPool.close)
        self._under_way: dict[tuple[int, int], int] = {}
        self._waiters: list[threading.Lock] = []
        self._over = False

    # To a worker ----------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a rank, piece by piece; returns when they may be changed.

        Raises:
            OSError: There is no memory for it, or no descriptor.
        """
        self._await_room(len(data))
        with self._lock:
            array = self._outgoing(
                controller_pb2.Transfer(ticket=ticket, worker=worker, nbytes=len(data))
            )
        try:
            at = 0
            for piece in in_pieces(data):
                array.grow(at)
                self._mapped.write(array.fd.fileno(), piece, at)
                at += len(piece)
            with self._lock:
                self._under_way[worker, ticket] = len(data)
            array.grow(len(data))
        finally:
            array.fd.close()

    def give_up(self, ticket: int, worker: int, why: str) -> None:
        """Notifies a rank, which may wait for it, that an array will not come."""
        error = f"the upload was broken off: {why}" if why else "the upload was broken off"
        self._settle(worker, ticket)
        self._tell(controller_pb2.Transfer(ticket=ticket, worker=worker), error=error[:_MAX_WHY])

    def decline(self, ticket: int, worker: int) -> None:
        """Releases an array that a rank offered, unless it was fetched."""
        with contextlib.suppress(KeyError):
            self._give_back(worker, self._offers.take(worker, ticket))

    def _await_room(self, nbytes: int) -> None:
        waiter = threading.Lock()
        with self._lock:
            sizes = self._under_way.values()
            full = len(sizes) >= _MAX_UNDER_WAY or sum(sizes) + nbytes > _MAX_BYTES_UNDER_WAY
            if not sizes or not full or self._over:
                return
            waiter.acquire()
            self._waiters.append(waiter)
        if self._wait(waiter, _MAX_WAIT_S):
            self._await_room(nbytes)

    def take_back(
        self, worker: int, received: EncodedEnvelope, fds: tuple[Descriptor, ...]
    ) -> None:
        """Recycles the memory that a rank has copied from, where it has come."""
        told = controller_pb2.Transfer.FromString(received.payload)
        with self._lock:
            for fd in fds:
                self._memory.give(fd)
        self._settle(worker, told.ticket)

    def _settle(self, worker: int, ticket: int) -> None:
        """Stops counting an array that a rank has received, or that was given up."""
        with self._lock:
            self._under_way.pop((worker, ticket), None)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    # From a worker --------------------------------------------------------------------------

    def receive(
        self, child: RankChild, raw: bytes, received: EncodedEnvelope
    ) -> tuple[Descriptor, ...] | None:
        """Handles a rank's message about an array; may be repeated.

        Returns:
            None; or the descriptors for :meth:`take_back`.
        """
        told = controller_pb2.Transfer.FromString(received.payload)
        take = partial(child.reader.descriptor_of, raw)
        if received.kind == EnvelopeKind.ARRAY_BACK:
            fd = None if told.error else take()
            return () if fd is None else (fd,)
        self._note_offer(child.worker, received.kind, told, take)
        return None

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a rank offered, as it grows.

        Raises:
            SessionError: There is none of that ticket and size.
            OSError: The rest of it will not come.
        """
        expected = f"expected an array of {len(into)} bytes from worker {worker}"
        try:
            array = self._offers.take(worker, ticket)
        except KeyError:
            msg = f"{expected}, there is none"
            raise SessionError(msg) from None
        try:
            if array.nbytes != len(into):
                msg = f"{expected}, got {array.nbytes}"
                raise SessionError(msg)
            at = 0
            for piece in in_pieces(into):
                self._await(array, at + len(piece))
                self._mapped.read(array.fileno(), piece, at)
                at += len(piece)
        finally:
            self._give_back(worker, array)

    def _await(self, array: IncomingArray, end: int) -> None:
        """Waits until an array has arrived up to one of its bytes."""
        while not array.reaches(end):
            waiter = threading.Lock()
            waiter.acquire()
            array.on_change = waiter.release
            if self._over:
                raise OSError(_OVER)
            if not array.reaches(end):
                self._wait(waiter, _MAX_WAIT_S)

    # The end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the waits for room and for the rest of an array."""
        self._over = True
        self._wake_waiters()
        self._offers.break_off(_OVER)

    def close(self) -> None:
        """Frees all memory."""
        self._offers.close()
        with self._lock:
            self._memory.close()
        self._mapped.close()
