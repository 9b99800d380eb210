"""The arrays that travel beside a rank's envelopes: uploads to collect, answers to offer.

Each is shared memory, whose descriptor goes with a message of its own; more messages say how much
of it is there.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.shared_memory import SharedPool
from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2
from disco_client.wire.arrays import CHUNK_BYTES, PIECE_BYTES, byte_view, empty_array, in_pieces
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_client.wire.values import ArrayPorter
from disco_server.ipc.arrays import IncomingArray
from disco_server.rank.errors import brief
from disco_server.rank.signals import CallGuard

__all__ = ["ArrayMessages", "ArrayPort"]


class ArrayMessages(Protocol):
    """Reads and sends a rank's messages; see :class:`~disco_server.rank.port.RankPort`."""

    guard: CallGuard
    session: int
    worker: int

    def read(self) -> None:
        """Waits for messages, and hands them to who waits for them."""
        ...

    def take_descriptor(self) -> Descriptor | None:
        """The next descriptor that has come; None for one that was lost on its way."""
        ...

    def send(self, kind: EnvelopeKind, payload: bytes = b"", number: int = 0, ack: int = 0) -> None:
        """Sends a message."""
        ...

    def send_with(
        self, fd: Descriptor | None, kind: EnvelopeKind, told: controller_pb2.Transfer
    ) -> None:
        """Sends a message about an array with its memory."""
        ...


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


class ArrayPort(ArrayPorter):
    """For the rank's one thread, as the port is.

    Args:
        port: Reads and sends the messages.
    """

    def __init__(self, port: ArrayMessages) -> None:
        self._port = port
        self._uploads: dict[int, IncomingArray] = {}
        self._unwanted: set[int] = set()
        self._none_up_to = (0, "")
        self._offers: list[_Offer] = []
        self._memory = SharedPool()
        self._mapped = MappedMemory()
        self._tickets = 0

    # Messages of the daemon ---------------------------------------------------------

    def told(self, received: EncodedEnvelope) -> None:
        """Handles the daemon's message about an upload."""
        told = controller_pb2.Transfer.FromString(received.payload)
        if told.and_before:
            self._none_up_to = told.ticket, told.error
            return
        array = self._uploads.get(told.ticket)
        if array is not None:
            array.grow(told.there, told.error)
        elif received.kind == EnvelopeKind.ARRAY_IN or told.error:
            # The first message of an upload that failed before it had memory.
            array = self._uploads[told.ticket] = IncomingArray.received(
                self._port.take_descriptor, told.nbytes, told.there, told.error
            )
        else:
            return  # more of one that has failed here
        if told.ticket in self._unwanted and array.settled:
            self._unwanted.discard(told.ticket)
            self._give_back(told.ticket, array)

    def returned(self, received: EncodedEnvelope) -> None:
        """Takes memory back that the daemon has read."""
        if not controller_pb2.Transfer.FromString(received.payload).error:
            self._memory.give(self._port.take_descriptor())

    # To the client ------------------------------------------------------------------

    def announce(self) -> list[_Offer]:
        """Sends the memory of the arrays that the next reply names; returns them."""
        offers, self._offers = self._offers, []
        for offer in offers:
            told = self._tell(offer)
            self._port.send_with(offer.fd, EnvelopeKind.ARRAY_OUT, told)
            offer.error = told.error
        return offers

    def complete(self, offers: list[_Offer]) -> None:
        """Copies what is left of these, and says how far that is."""
        for offer in offers:
            if offer.large and not offer.error:
                for _ in offer.fill():
                    self._port.send(EnvelopeKind.ARRAY_MORE, self._tell(offer).SerializeToString())
            offer.fd.close()

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
        error = offer.error and f"worker {self._port.worker} could not copy it: {offer.error}"
        return controller_pb2.Transfer(
            session=self._port.session,
            ticket=offer.ticket,
            worker=self._port.worker,
            nbytes=offer.nbytes,
            there=offer.there,
            error=brief(error),
        )

    # From the client ----------------------------------------------------------------

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
        while ticket not in self._uploads:
            newest, why = self._none_up_to
            if ticket <= newest:
                raise OSError(why)
            self._port.read()
        array, at = self._uploads[ticket], 0

        def read(into: memoryview) -> None:
            nonlocal at
            while not array.reaches(at + len(into)):
                self._port.read()
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
        array = self._uploads.get(ticket)
        if array is not None and array.settled:
            self._give_back(ticket, array)
        else:
            self._unwanted.add(ticket)

    def _give_back(self, ticket: int, array: IncomingArray) -> None:
        """Returns the memory of an upload when no process writes there any more."""
        with self._port.guard:
            while not array.settled:
                self._port.read()
            del self._uploads[ticket]
            # An upload that was broken off may still have a writer to its memory.
            told = controller_pb2.Transfer(
                ticket=ticket, worker=self._port.worker, error=array.error
            )
            self._port.send_with(array.fd, EnvelopeKind.ARRAY_BACK, told)
            if array.fd is not None:
                array.fd.close()
