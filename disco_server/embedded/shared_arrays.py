"""Host arrays between the client and its child processes, through shared memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from disco_client.errors import SessionError
from disco_client.pb import controller_pb2
from disco_client.transport.mapped import MappedMemory
from disco_client.transport.shared import SharedPool
from disco_client.wire.arrays import in_pieces
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_server.channels.frames import frame
from disco_server.channels.growing import FilledArray, GrowingArray, Offers
from disco_server.embedded.children import Children
from disco_server.embedded.rank_child import RankChild

__all__ = ["SharedArrays"]

_OVER = "the session is over"
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
        self._mapped = MappedMemory()
        self._offers = Offers()
        self._under_way: dict[int, list[int]] = {}
        self._gates: list[threading.Lock] = []
        self._over = False

    # To a worker ----------------------------------------------------------------------------

    def upload(self, ticket: int, child: RankChild, data: memoryview) -> None:
        """Gives an array's bytes to a rank, piece by piece; returns when they may be changed.

        Raises:
            SessionError: There is no memory for it.
        """
        try:
            self._await_room(len(data))
            array = self._fill(ticket, child, data)
        except BaseException as error:
            self.give_up(ticket, child)
            if isinstance(error, OSError):
                msg = f"no shared memory for an array of {len(data)} bytes: {error}"
                raise SessionError(msg) from error
            raise
        with self._lock:
            self._under_way.setdefault(child.worker, []).append(len(data))
        array.grown(len(data))
        os.close(array.fd)

    def give_up(self, ticket: int, child: RankChild) -> None:
        """Tells a rank, which may wait for it, that an array will not come."""
        self._tell(child, Kind.ARRAY_MORE, ticket=ticket, error="the upload was broken off")

    def _fill(self, ticket: int, child: RankChild, data: memoryview) -> FilledArray:
        """Copies an array into memory; the rank hears of all of it but the end."""
        with self._lock:
            fd = self._memory.take(len(data))
        array = FilledArray(fd, len(data), partial(self._hand_in, ticket, child, len(data)))
        at = 0
        try:
            for piece in in_pieces(data):
                array.grown(at)
                self._mapped.write(fd, piece, at)
                at += len(piece)
        except BaseException:
            os.close(fd)
            raise
        return array

    def _hand_in(
        self, ticket: int, child: RankChild, nbytes: int, there: int, fd: int | None
    ) -> None:
        kind = Kind.ARRAY_MORE if fd is None else Kind.ARRAY_IN
        self._tell(child, kind, fd, ticket=ticket, nbytes=nbytes, there=there)

    def _tell(self, child: RankChild, kind: Kind, fd: int | None = None, **told: Any) -> None:
        payload = controller_pb2.Transfer(session=self._session, worker=child.worker, **told)
        raw = envelope(kind, payload.SerializeToString(), session=self._session)
        child.send(frame(raw), fd)

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

    def _given_back(self, child: RankChild) -> None:
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

    def receive(self, child: RankChild, received: EncodedEnvelope) -> None:
        """Acts on what a rank says about an array."""
        if received.kind == Kind.ARRAY_BACK:
            self._given_back(child)
            return
        told = controller_pb2.Transfer.FromString(received.payload)
        if received.kind == Kind.ARRAY_OUT:
            array = GrowingArray(child.reader.fds.popleft(), told.nbytes, told.there, told.error)
            self._offers.add(child.worker, told.ticket, array)
        else:
            self._offers.grow(child.worker, told.ticket, told.there, told.error)

    def download(self, ticket: int, child: RankChild, into: memoryview) -> None:
        """Fills a buffer with the array that a rank offered, as it grows.

        Raises:
            SessionError: There is none of that ticket and size.
            OSError: Its rest will not come.
        """
        expected = f"expected an array of {len(into)} bytes from worker {child.worker}"
        try:
            array = self._offers.take(child.worker, ticket)
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
                self._mapped.read(array.fd, piece, at)
                at += len(piece)
        finally:
            child.send(frame(envelope(Kind.ARRAY_BACK, session=self._session)), array.fd)

    def _await(self, array: GrowingArray, end: int) -> None:
        """Waits until an array is there up to one of its bytes."""
        while not array.reaches(end):
            gate = threading.Lock()
            gate.acquire()
            array.on_change = gate.release
            if self._over:
                raise OSError(_OVER)
            if not array.reaches(end):
                self._wait(gate, _MAX_WAIT_S)

    # The end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Lets those go who wait for room, or for the rest of an array."""
        self._over = True
        self._open_gates()
        self._offers.break_off(_OVER)

    def close(self) -> None:
        """Gives all memory back."""
        self._offers.close()
        with self._lock:
            self._memory.close()
        self._mapped.close()
