"""A rank's end of the socket to its daemon: batches in, replies out, arrays both ways."""

from __future__ import annotations

import contextlib
import math
import os
import select
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.shared_memory import SharedPool
from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import CHUNK_BYTES, PIECE_BYTES, byte_view, empty_array, in_pieces
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_client.wire.values import ArrayPorter
from disco_server.ipc.arrays import IncomingArray
from disco_server.ipc.framing import (
    FrameReader,
    ProgressPage,
    frame_of_progress,
    receive,
    send_all,
    send_with_fd,
)
from disco_server.rank.errors import sendable
from disco_server.rank.signals import CallGuard, RankEnded

if TYPE_CHECKING:
    import socket

__all__ = ["DaemonGone", "RankPort"]


_LOOKS = 50
"""How often a rank polls for the next command before it sleeps, about 0.2 ms: a client that
requested its progress often continues at once, and a wake-up takes several times that."""


_PAUSE_S = 0.001
_MAX_ERROR = 500
"""How much of an error's text is sent; it has to fit into a message of every transport."""


@dataclass(slots=True)
class _Offer:
    """An array for the client, and how much of it is in its memory."""

    ticket: int
    fd: Descriptor
    nbytes: int
    pieces: Iterator[memoryview]
    mapped: MappedMemory
    there: int = 0
    error: str = ""

    @property
    def large(self) -> bool:
        """Whether the client is notified of it before it is copied."""
        return self.nbytes > PIECE_BYTES

    def fill(self) -> Iterator[None]:
        """Copies what is left, and yields after each piece, or when it fails."""
        try:
            for piece in self.pieces:
                self.mapped.write(self.fd.fileno(), piece, self.there)
                self.there += len(piece)
                yield
        except Exception as error:  # noqa: BLE001  (whatever a device raises)
            self.error = f"{type(error).__name__}: {error}"
            yield


class DaemonGone(RankEnded):
    """The daemon closed the socket: this process has no more commands to execute."""


class RankPort(ArrayPorter):
    """Blocking; used by the rank's one thread.

    Args:
        sock: To the daemon, or to the client whose child this rank is.
        page: Where such a client reads this rank's progress.

    Attributes:
        guard: Keeps what handlers of signals raise out of the reading and sending of frames.
    """

    def __init__(self, sock: socket.socket, page: ProgressPage | None = None) -> None:
        self.guard = CallGuard()
        self._sock = sock
        self._page = page
        self._sent = 0
        self._replies = 0
        self._reader = FrameReader()
        self._looker = select.poll()
        self._looker.register(sock, select.POLLIN)
        self._frames: deque[EncodedEnvelope | None] = deque()
        self._arrays: dict[int, IncomingArray] = {}
        self._unwanted: set[int] = set()
        self._none_up_to = (0, "")
        self._offers: list[_Offer] = []
        self._memory = SharedPool()
        self._mapped = MappedMemory()
        self._tickets = 0
        self._key: node_pb2.KeyAnswer | None = None
        self._questions = 0
        self._session = 0
        self._worker = 0
        self._answered = False

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        return self

    @property
    def has_daemon(self) -> bool:
        """Whether this rank is one of a worker daemon, and not a child of its client."""
        return self._page is None

    @property
    def live(self) -> None:
        """None: the client is another process, and gets encoded answers."""
        return None

    def become(self, session: int, worker: int) -> None:
        """Sets the session and the rank for which it sends."""
        self._session, self._worker = session, worker

    # Envelopes ---------------------------------------------------------------------

    def next(self) -> EncodedEnvelope | None:
        """Waits for the next envelope; None when :meth:`say_progress` is requested.

        Raises:
            DaemonGone: The socket was closed.
        """
        while not self._frames:
            self._read()
        return self._frames.popleft()

    def wait(self, seconds: float) -> bool:
        """Waits for so long; whether there is an envelope, or the end, to read."""
        return bool(self._frames) or self._readable(seconds * 1000)

    def _readable(self, milliseconds: float | None) -> bool:
        """Waits for so long, None without an end; whether there is something to read.

        What another thread raises in this one comes here, where nothing is half read: a wait is
        over only when there is something.
        """
        while True:
            try:
                return bool(self._looker.poll(milliseconds))
            except BaseException as error:  # noqa: BLE001  (whatever code of the session raises)
                self.guard.outside(error)

    def _read(self) -> None:
        with self.guard:
            frames = self._receive()
            if frames is None:
                raise DaemonGone
            self._sort(frames)

    def _sort(self, frames: Iterable[bytes]) -> None:
        """Hands what came to who waits for it."""
        for raw in frames:
            if not raw:
                self._frames.append(None)
                continue
            received = EncodedEnvelope.FromString(raw)
            if received.kind in (EnvelopeKind.ARRAY_IN, EnvelopeKind.ARRAY_MORE):
                self._told(received)
            elif received.kind == EnvelopeKind.ARRAY_BACK:
                if not controller_pb2.Transfer.FromString(received.payload).error:
                    self._memory.give(self._reader.fds.popleft())
            elif received.kind == EnvelopeKind.KEY:
                self._key = node_pb2.KeyAnswer.FromString(received.payload)
            else:
                self._frames.append(received)

    def _told(self, received: EncodedEnvelope) -> None:
        """Handles the daemon's message about an upload."""
        told = controller_pb2.Transfer.FromString(received.payload)
        if told.and_before:
            self._none_up_to = told.ticket, told.error
            return
        array = self._arrays.get(told.ticket)
        if array is not None:
            array.grow(told.there, told.error)
        elif received.kind == EnvelopeKind.ARRAY_IN or told.error:
            # The first message of an upload that failed before it had memory.
            array = self._arrays[told.ticket] = IncomingArray.received(
                self._reader.fds.popleft, told.nbytes, told.there, told.error
            )
        else:
            return  # more of one that has failed here
        if told.ticket in self._unwanted and array.settled:
            self._unwanted.discard(told.ticket)
            self._give_back(told.ticket, array)

    def _receive(self) -> deque[bytes] | None:
        """Waits for frames; where a request was just answered, it polls at first."""
        looks, self._answered = _LOOKS if self._answered else 0, False
        while looks and not self._readable(0):
            looks -= 1
            os.sched_yield()
        if not looks:
            self._readable(None)
        while True:
            try:
                return receive(self._sock, self._reader)
            except BlockingIOError:  # the kernel is short of memory
                time.sleep(_PAUSE_S)

    def send(self, kind: EnvelopeKind, payload: bytes = b"", number: int = 0, ack: int = 0) -> None:
        """Sends one envelope to the daemon; replies and questions are numbered."""
        raw = envelope(
            kind,
            payload,
            session=self._session,
            worker=self._worker,
            first_seq=number,
            last_seq=ack,
        )
        with self.guard:
            self._sent += 1
            send_all(self._sock, frame(raw))

    def audit(self, what: str, name: str, refused: str) -> None:
        """Sends the daemon an entry of its audit log; a client's child has none."""
        if self._page is None:
            said = node_pb2.Audited(
                what=what[:_MAX_ERROR],
                name=sendable(name[:_MAX_ERROR]),
                refused=sendable(refused[:_MAX_ERROR]),
            )
            self.send(EnvelopeKind.AUDIT, said.SerializeToString())

    # Keys of the session's rendezvous ------------------------------------------------

    def put_key(self, key: str, value: bytes, seconds: float) -> None:
        """Writes a key of the session's rendezvous, which ranks of other nodes can read.

        Raises:
            ConnectionError: It could not be written in so many seconds.
            DaemonGone: The socket was closed.
        """
        request = node_pb2.PutRequest(items={key: value}, timeout_s=seconds)
        self._ask(EnvelopeKind.PUT_KEY, request.SerializeToString())

    def get_key(self, key: str, seconds: float) -> bytes:
        """Waits until a rank has written a key, and returns its value.

        Raises:
            ConnectionError: None has written it in so many seconds, or none will.
            DaemonGone: The socket was closed.
        """
        request = node_pb2.GetRequest(key=key, timeout_s=seconds)
        return self._ask(EnvelopeKind.GET_KEY, request.SerializeToString())

    def _ask(self, kind: EnvelopeKind, request: bytes) -> bytes:
        """Waits for the daemon's answer, which keeps to the limit; what else comes is kept."""
        with self.guard:  # an answer that nobody awaits would be taken for the next one's
            self._key = None
            self._questions += 1
            self.send(kind, request, self._questions)
            while self._key is None:
                self._read()
            if self._key.error:
                raise ConnectionError(self._key.error)
            return self._key.value

    def _send_with(
        self, fd: Descriptor | None, kind: EnvelopeKind, told: controller_pb2.Transfer
    ) -> None:
        """Sends the message about an array with its memory; without memory it has an error."""

        def framed(error: str) -> bytes:
            told.error = told.error or error
            payload = told.SerializeToString()
            return frame(envelope(kind, payload, session=self._session, worker=self._worker))

        with self.guard:
            self._sent += 1
            if told.error or fd is None:
                send_all(self._sock, framed(""))
            else:
                send_with_fd(self._sock, framed(""), fd, framed)

    def show_progress(self, seq: int) -> None:
        """Writes to the shared page that everything up to this command is executed."""
        if self._page is not None:
            self._page.write(seq, self._sent)

    def say_progress(self, seq: int) -> None:
        """Reports that everything up to this command is executed."""
        self.show_progress(seq)
        send_all(self._sock, frame_of_progress(seq))
        self._answered = True

    def reply(self, raw: bytes, ack: int = 0) -> None:
        """Sends one encoded reply to the client, then the rest of the arrays that it names.

        This is still part of the command: the next one may change the arrays.

        Args:
            raw: The reply.
            ack: The newest command with which this rank is done, for who relays it.
        """
        offers, self._offers = self._offers, []
        for offer in offers:
            told = self._tell(offer)
            self._send_with(offer.fd, EnvelopeKind.ARRAY_OUT, told)
            offer.error = told.error
        self._replies += 1
        self.send(EnvelopeKind.REPLY, raw, self._replies, ack)
        for offer in offers:
            if offer.large and not offer.error:
                for _ in offer.fill():
                    self.send(EnvelopeKind.ARRAY_MORE, self._tell(offer).SerializeToString())
            offer.fd.close()

    # Arrays -------------------------------------------------------------------------

    def offer(self, array: np.ndarray[Any, Any]) -> int:
        """Hands an array to the daemon, for the client to download."""
        return self.offer_pieces(array.nbytes, in_pieces(byte_view(array)))

    def offer_pieces(self, nbytes: int, pieces: Iterable[memoryview]) -> int:
        """Hands over an array whose bytes come piece by piece, and returns its ticket.

        The client is notified of a large one at once, and it is copied when the reply that
        names it was sent: the client fetches its beginning meanwhile.
        """
        self._tickets += 1
        fd = self._memory.take(nbytes)
        offer = _Offer(self._tickets, fd, nbytes, iter(pieces), self._mapped)
        self._offers.append(offer)
        if not offer.large:
            for _ in offer.fill():
                pass
        return self._tickets

    def withdraw(self) -> None:
        """Withdraws what was offered for a reply that is not sent; see :class:`ArrayPorter`."""
        while self._offers:
            self._memory.give(self._offers.pop().fd)

    def _tell(self, offer: _Offer) -> controller_pb2.Transfer:
        error = offer.error and f"worker {self._worker} could not copy it: {offer.error}"
        return controller_pb2.Transfer(
            session=self._session,
            ticket=offer.ticket,
            worker=self._worker,
            nbytes=offer.nbytes,
            there=offer.there,
            error=sendable(error[:_MAX_ERROR]),
        )

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Waits for an uploaded array and returns it, an array of its own.

        Raises:
            OSError: It will not come.
            ValueError: It is of another size.
        """
        with self._arrived(ticket, dtype, shape) as read:
            out = empty_array(tuple(shape), dtype)
            for piece in in_pieces(byte_view(out)):
                read(piece)
        return out

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Copies an uploaded array to its destination, as it arrives.

        Raises:
            OSError: It will not come, or not all of it.
            ValueError: It is of another size.
        """
        straight = out.flags.c_contiguous and out.flags.writeable
        with self._arrived(ticket, out.dtype, out.shape) as read:
            target = out if straight else empty_array(out.shape, out.dtype)
            for piece in in_pieces(byte_view(target)):
                read(piece)
        if not straight:
            out[...] = target

    def collect_pieces(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[memoryview]:
        """Yields an uploaded array as it arrives; see :class:`ArrayPorter`.

        Raises:
            OSError: It will not come, or not all of it.
            ValueError: It is of another size.
        """
        with self._arrived(ticket, dtype, shape) as read:
            nbytes = math.prod(shape) * dtype.itemsize
            # Small enough to be in a cache still when it is copied on.
            buffer = byte_view(empty_array((min(nbytes, CHUNK_BYTES),), np.dtype(np.uint8)))
            for start in range(0, nbytes, CHUNK_BYTES):
                piece = buffer[: nbytes - start]
                read(piece)
                yield piece

    @contextlib.contextmanager
    def _arrived(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[Callable[[memoryview], None]]:
        """Returns a reader of an uploaded array: each call fills a buffer with the next bytes.

        Other envelopes keep their order while this waits for its own.
        """
        while ticket not in self._arrays:
            newest, why = self._none_up_to
            if ticket <= newest:
                raise OSError(why)
            self._read()
        array, at = self._arrays[ticket], 0

        def read(into: memoryview) -> None:
            nonlocal at
            while not array.reaches(at + len(into)):
                self._read()
            self._mapped.read(array.fileno(), into, at)
            at += len(into)

        try:
            array.reaches(0)
            nbytes = math.prod(shape) * dtype.itemsize
            if nbytes != array.nbytes:
                msg = f"expected {nbytes} bytes for {dtype}{list(shape)}, got {array.nbytes}"
                raise ValueError(msg)
            yield read
        finally:
            self._give_back(ticket, array)

    def discard(self, ticket: int) -> None:
        """Returns the memory of an upload that no command will collect, once it has arrived."""
        array = self._arrays.get(ticket)
        if array is not None and array.settled:
            self._give_back(ticket, array)
        else:
            self._unwanted.add(ticket)

    def _give_back(self, ticket: int, array: IncomingArray) -> None:
        """Returns the memory of an upload when no process writes there any more."""
        with self.guard:
            while not array.settled:
                self._read()
            del self._arrays[ticket]
            # An upload that was broken off may still have a writer to its memory.
            told = controller_pb2.Transfer(ticket=ticket, worker=self._worker, error=array.error)
            self._send_with(array.fd, EnvelopeKind.ARRAY_BACK, told)
            if array.fd is not None:
                array.fd.close()
