"""A rank's end of the socket to its daemon: batches in, replies out, arrays both ways."""

from __future__ import annotations

import os
import select
import socket
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool, read_shared, write_shared
from disco_client.wire.arrays import byte_view, empty_array
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_client.wire.porter import ArrayPorter
from disco_server.channels.frames import (
    FrameReader,
    frame,
    frame_of_progress,
    receive,
    send_with_fd,
)
from disco_server.channels.progress import ProgressPage

__all__ = ["DaemonGone", "RankPort"]


_LOOKS = 50
"""How often a rank looks for the next command before it sleeps, about 0.2 ms: who asked
how far it is often goes on at once, and being woken takes several times that exchange."""


class _Arrived(NamedTuple):
    """An upload: its descriptor and size, or why there is none."""

    fd: int
    nbytes: int
    error: str


class DaemonGone(Exception):
    """The daemon closed the socket: this process has nobody to work for."""


class RankPort(ArrayPorter):
    """Blocking; used by the rank's one thread.

    Args:
        sock: To the daemon, or to the client whose child this rank is.
        page: Where such a client looks how far this rank is.
    """

    def __init__(self, sock: socket.socket, page: ProgressPage | None = None) -> None:
        self._sock = sock
        self._page = page
        self._sent = 0
        self._reader = FrameReader()
        self._looker = select.poll()
        self._looker.register(sock, select.POLLIN)
        self._frames: deque[EncodedEnvelope | None] = deque()
        self._arrays: dict[int, _Arrived] = {}
        self._memory = SharedPool()
        self._tickets = 0
        self._session = 0
        self._worker = 0
        self._answered = False

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        return self

    @property
    def live(self) -> None:
        """None: the client is another process, and gets encoded answers."""
        return None

    def become(self, session: int, worker: int) -> None:
        """Learns on whose behalf it sends."""
        self._session, self._worker = session, worker

    # Envelopes ---------------------------------------------------------------------

    def next(self) -> EncodedEnvelope | None:
        """Waits for the next envelope; None when :meth:`say_progress` is asked for.

        Raises:
            DaemonGone: The socket was closed.
        """
        while not self._frames:
            self._read()
        return self._frames.popleft()

    def wait(self, seconds: float) -> bool:
        """Waits a little; whether there is an envelope, or the end, to read."""
        return bool(self._frames) or bool(select.select((self._sock,), (), (), seconds)[0])

    def _read(self) -> None:
        frames = self._receive()
        if frames is None:
            raise DaemonGone
        for raw in frames:
            if not raw:
                self._frames.append(None)
                continue
            received = EncodedEnvelope.FromString(raw)
            if received.kind == Kind.ARRAY_IN:
                transfer = controller_pb2.Transfer.FromString(received.payload)
                fd = -1 if transfer.error else self._reader.fds.popleft()
                self._arrays[transfer.ticket] = _Arrived(fd, transfer.nbytes, transfer.error)
            elif received.kind == Kind.ARRAY_BACK:
                self._memory.give(self._reader.fds.popleft())
            else:
                self._frames.append(received)

    def _receive(self) -> list[bytes] | None:
        """Waits for frames; where a question was just answered, with open eyes at first."""
        if self._answered:
            self._answered = False
            look = self._looker.poll
            for _ in range(_LOOKS):
                if look(0):
                    break
                os.sched_yield()
        return receive(self._sock, self._reader)

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Sends one envelope to the daemon."""
        raw = envelope(kind, payload, session=self._session, worker=self._worker)
        self._sent += 1
        self._sock.sendall(frame(raw))

    def _send_with(self, fd: int, kind: Kind, payload: bytes = b"") -> None:
        raw = envelope(kind, payload, session=self._session, worker=self._worker)
        self._sent += 1
        send_with_fd(self._sock, raw, fd)

    def show_progress(self, seq: int) -> None:
        """Shows a client that looks that everything up to this command is executed."""
        if self._page is not None:
            self._page.write(seq, self._sent)

    def say_progress(self, seq: int) -> None:
        """Says that everything up to this command is executed."""
        self.show_progress(seq)
        self._sock.sendall(frame_of_progress(seq))
        self._answered = True

    def reply(self, raw: bytes) -> None:
        """Sends one encoded reply to the client."""
        self.send(Kind.REPLY, raw)

    # Arrays -------------------------------------------------------------------------

    def offer(self, array: np.ndarray[Any, Any]) -> int:
        """Hands an array to the daemon, for the client to download."""
        return self.offer_pieces(array.nbytes, (byte_view(array),))

    def offer_pieces(self, nbytes: int, pieces: Iterable[memoryview]) -> int:
        """Hands over an array whose bytes come piece by piece, and returns its ticket."""
        self._tickets += 1
        fd = self._memory.take(nbytes)
        try:
            at = 0
            for piece in pieces:
                write_shared(fd, piece, at)
                at += len(piece)
            transfer = controller_pb2.Transfer(
                session=self._session,
                ticket=self._tickets,
                worker=self._worker,
                nbytes=nbytes,
            )
            self._send_with(fd, Kind.ARRAY_OUT, transfer.SerializeToString())
        finally:
            os.close(fd)
        return self._tickets

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Waits for an uploaded array and returns it, an array of its own.

        Raises:
            OSError: It will not come.
            ValueError: It is of another size.
        """
        out = empty_array(tuple(shape), dtype)
        self.collect_into(ticket, out)
        return out

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Waits for an uploaded array; other envelopes keep their order meanwhile.

        Raises:
            OSError: It will not come.
            ValueError: It is of another size.
        """
        while ticket not in self._arrays:
            self._read()
        fd, nbytes, error = self._arrays.pop(ticket)
        if error:
            raise OSError(error)
        try:
            if out.nbytes != nbytes:
                msg = f"expected {out.nbytes} bytes for {out.dtype}{list(out.shape)}, got {nbytes}"
                raise ValueError(msg)
            _read_into(fd, out)
        finally:
            self._send_with(fd, Kind.ARRAY_BACK)
            os.close(fd)


def _read_into(fd: int, out: np.ndarray[Any, Any]) -> None:
    if out.flags.c_contiguous and out.flags.writeable:
        read_shared(fd, byte_view(out))
    else:
        whole = empty_array(out.shape, out.dtype)
        read_shared(fd, byte_view(whole))
        out[...] = whole
