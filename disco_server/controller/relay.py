"""Relays host arrays through the controller: two streams are matched by ticket.

A client opens the relay, and the daemon of its worker is asked to connect: it fetches
what the client uploads, or pushes what the client downloads. The stream that is written
pulls from the stream that is read, chunk by chunk, so gRPC's own flow control reaches
from end to end and the controller holds no more than a chunk or two.

If one side goes away, the other side fails. Nothing is kept here: a client whose
connection broke opens another relay, which replaces the former one, and the array is
sent again from its beginning.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias

from disco_client.pb import envelope_pb2, node_pb2
from disco_client.wire.arrays import chunk_data
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.controller.slices import in_slices
from disco_server.core.rendezvous import Rendezvous, RendezvousError, Wake

__all__ = ["Exchanges", "NodeRefusedTransfer", "TransferKey", "TransferRelay", "Transfers"]


TransferKey: TypeAlias = tuple[int, str, int, int]
"""Session, direction ("up" or "down"), worker, ticket."""


class NodeRefusedTransfer(Exception):
    """The node cannot take an array; the text says why."""


class TransferRelay:
    """Connects the two streams of one transfer.

    Args:
        node: The node of its worker.
        nbytes: How large the array is, if the client knows.

    Attributes:
        source: The stream of encoded chunks, once its side has connected.
        done: Set when the other end has the array.
    """

    def __init__(self, node: str, nbytes: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self.node = node
        self.nbytes = nbytes
        self.source: asyncio.Future[AsyncIterator[bytes]] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()
        self._reading: asyncio.Task[Any] | None = None
        self._broken = ""
        self._carried = False

    def fail(self, why: str) -> None:
        """Ends it for both sides, unless it is done."""
        if self.done.done():
            return
        self._broken = why
        _fail(self.source, ConnectionError(why))
        _fail(self.done, ConnectionError(why))
        if self._reading is not None:
            self._reading.cancel()

    def answer(self, error: str) -> None:
        """Notes a node's answer to an upload: it has all of it, or why it cannot take it."""
        if error:
            _fail(self.done, NodeRefusedTransfer(error))
        elif not self.done.done():
            self.done.set_result(None)

    async def carry(self, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Passes the chunks on, each as soon as it is there.

        Raises:
            ConnectionError: One of the two sides is gone, fewer bytes came than announced, or
                another call carries the same transfer.
        """
        source = await self.source
        if self._carried:
            self.fail("the node has begun this transfer anew")
        self._carried = True
        self._check()
        count, whole = 0, False
        while (chunk := await self._next(source)) is not None:
            try:
                count += len(chunk_data(chunk))
            except OSError:
                whole = True  # it says that no more will come, and why
            await write(chunk)
            self._check()
        if count < self.nbytes and not whole:
            self.fail(f"expected an array of {self.nbytes} bytes, got {count}")
            self._check()

    async def _next(self, source: AsyncIterator[bytes]) -> bytes | None:
        # Only this wait is cancelled from outside: a message that is being written must be
        # sent, or gRPC could send nothing after it.
        task = self._reading = asyncio.current_task()
        try:
            return await anext(source, None)
        except asyncio.CancelledError:
            if self._broken and task is not None:
                task.uncancel()
            self._check()
            raise
        finally:
            self._reading = None

    def _check(self) -> None:
        if self._broken:
            raise ConnectionError(self._broken)


class Transfers:
    """The transfers under way; used from the event loop only."""

    def __init__(self) -> None:
        self._relays: dict[TransferKey, TransferRelay] = {}

    @contextlib.contextmanager
    def opened(self, key: TransferKey, node: str, nbytes: int = 0) -> Generator[TransferRelay]:
        """Opens the relay of a transfer for its client, in place of an earlier one."""
        former = self._relays.get(key)
        relay = self._relays[key] = TransferRelay(node, nbytes)
        if former is not None:
            former.fail("the client has begun this transfer anew")
        try:
            yield relay
        finally:
            if self._relays.get(key) is relay:
                del self._relays[key]
            relay.fail("the client went away")

    def join(self, key: TransferKey) -> TransferRelay:
        """Returns the relay of a transfer for its node.

        Raises:
            ConnectionError: The client went away.
        """
        relay = self._relays.get(key)
        if relay is None:
            msg = f"nobody waits for ticket {key[3]} any more"
            raise ConnectionError(msg)
        return relay

    async def bring(self, key: TransferKey, source: AsyncIterator[bytes], nbytes: int) -> None:
        """Offers a stream to the client that waits for it, until it has taken it all.

        Raises:
            ConnectionError: The session ended, or the client went away.
        """
        relay = self.join(key)
        if relay.source.done():
            relay.fail("the node has begun this transfer anew")
        else:
            relay.nbytes = nbytes
            relay.source.set_result(source)
        await asyncio.shield(relay.done)

    def answer(self, key: TransferKey, error: str) -> None:
        """Notes a node's answer to an upload, whose client may be gone."""
        relay = self._relays.get(key)
        if relay is not None:
            relay.answer(error)

    def break_off(self, node: str) -> None:
        """Fails every transfer that needs a node whose connection broke."""
        for relay in list(self._relays.values()):
            if relay.node == node:
                relay.fail("the connection to the worker's node broke")

    def end_session(self, session: int) -> None:
        """Fails every transfer of a session."""
        for key, relay in list(self._relays.items()):
            if key[0] == session:
                relay.fail("the session ended")


def _fail(
    future: asyncio.Future[AsyncIterator[bytes]] | asyncio.Future[None], error: Exception
) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # there may be no waiter, which is no error


# The rendezvous of every session: pure state, with answers and time limits added.


_MAX_WAIT_S = 600.0
_OF_RANKS = "rank-"
"""How the keys begin that ranks write themselves."""


class _Waiter(NamedTuple):
    """Who waits in an exchange: a rank of a node for a key, or the node at a fence.

    Attributes:
        node: The node.
        worker: The rank; -1 at a fence.
        number: The rank's number of its question.
        fence: The fence, if it is one.
    """

    node: str
    worker: int
    number: int
    fence: str


class Exchanges:
    """One key-value exchange a session; used from the event loop only.

    Questions and answers travel on the streams of nodes. A node whose connection broke asks
    again what it has no answer to, and is answered again.

    Args:
        post: Sends an encoded envelope of a ``session`` to a node, if it is connected.
    """

    def __init__(self, post: Callable[..., object]) -> None:
        self._post = post
        self._open: dict[int, Rendezvous] = {}
        self._limits: dict[tuple[int, _Waiter], asyncio.TimerHandle] = {}

    def open(self, session: int) -> None:
        """Begins the exchange of a session, unless it has begun."""
        if session not in self._open:
            self._open[session] = Rendezvous()

    def close(self, session: int, why: str) -> None:
        """Ends the exchange of a session; everyone who waits is told the reason."""
        rendezvous = self._open.pop(session, None)
        if rendezvous is not None:
            self._wake(session, rendezvous.fail(why))

    def ask(self, node: str, asked: envelope_pb2.Envelope) -> None:
        """Takes a question of a node that runs the session, and answers it once that can be.

        Args:
            node: The node.
            asked: To write a key, to wait for one, or to come to a fence.

        Raises:
            DecodeError: It is none of these.
        """
        session = asked.session
        rendezvous = self._open.get(session)
        if rendezvous is None:
            self.refuse(node, asked, "the session is over")
            return
        try:
            if asked.kind == EnvelopeKind.FENCE:
                self._fence(rendezvous, node, asked)
            elif asked.kind == EnvelopeKind.PUT_KEY:
                self._put(rendezvous, node, asked)
            else:
                self._get(rendezvous, node, asked)
        except RendezvousError as error:
            self.refuse(node, asked, str(error))

    def refuse(self, node: str, asked: envelope_pb2.Envelope, why: str) -> None:
        """Answers a question by saying why it has no other answer."""
        fence = ""
        if asked.kind == EnvelopeKind.FENCE:
            fence = node_pb2.FenceRequest.FromString(asked.payload).name
        self._answer(asked.session, Wake(_waiter(node, asked, fence), error=why))

    def _put(self, rendezvous: Rendezvous, node: str, asked: envelope_pb2.Envelope) -> None:
        request = node_pb2.PutRequest.FromString(asked.payload)
        for key, value in request.items.items():
            self._wake(asked.session, rendezvous.put(_OF_RANKS + key, value))
        self._answer(asked.session, Wake(_waiter(node, asked), value=b""))

    def _get(self, rendezvous: Rendezvous, node: str, asked: envelope_pb2.Envelope) -> None:
        request = node_pb2.GetRequest.FromString(asked.payload)
        session, waiter = asked.session, _waiter(node, asked)
        found = rendezvous.get(_OF_RANKS + request.key, waiter)
        self._end_limit(session, waiter)
        if found:
            self._wake(session, found)
            return
        seconds = min(max(0.0, request.timeout_s), _MAX_WAIT_S)
        self._limits[session, waiter] = asyncio.get_running_loop().call_later(
            seconds, self._give_up, session, waiter, request.key, seconds
        )

    def _give_up(self, session: int, waiter: _Waiter, key: str, seconds: float) -> None:
        rendezvous = self._open.get(session)
        if rendezvous is not None:
            rendezvous.withdraw(_OF_RANKS + key, waiter)
        why = f"nobody wrote {key!r} within {seconds:g} s"
        self._wake(session, [Wake(waiter, error=why)])

    def _fence(self, rendezvous: Rendezvous, node: str, asked: envelope_pb2.Envelope) -> None:
        request = node_pb2.FenceRequest.FromString(asked.payload)
        wakes = rendezvous.fence(
            request.name,
            request.participant,
            request.participants,
            dict(request.items),
            _waiter(node, asked, request.name),
        )
        self._wake(asked.session, wakes)

    def _end_limit(self, session: int, waiter: Any) -> None:
        limit = self._limits.pop((session, waiter), None)
        if limit is not None:
            limit.cancel()

    def _wake(self, session: int, wakes: list[Wake]) -> None:
        """Ends waits; what all participants of a fence get is encoded once."""
        for wake in wakes:
            self._end_limit(session, wake.waiter)
        met = next((wake for wake in wakes if wake.items is not None), None)
        fenced = b"" if met is None else _answer_to(session, met)
        in_slices(wakes, lambda wake: self._answer(session, wake, fenced), len(fenced))

    def _answer(self, session: int, wake: Wake, fenced: bytes = b"") -> None:
        waiter: Any = wake.waiter
        raw = fenced if wake.items is not None else _answer_to(session, wake)
        self._post(waiter.node, raw, session=session)


def _waiter(node: str, asked: envelope_pb2.Envelope, fence: str = "") -> _Waiter:
    return _Waiter(node, asked.worker_plus_one - 1, asked.first_seq, fence)


def _answer_to(session: int, wake: Wake) -> bytes:
    """Encodes what a waiter is told."""
    waiter: Any = wake.waiter
    if waiter.fence:
        result = node_pb2.FenceResult(name=waiter.fence, items=wake.items, error=wake.error)
        return envelope(EnvelopeKind.FENCED, result.SerializeToString(), session=session)
    answer = node_pb2.KeyAnswer(value=wake.value or b"", error=wake.error)
    return envelope(
        EnvelopeKind.KEY,
        answer.SerializeToString(),
        session=session,
        worker=waiter.worker,
        first_seq=waiter.number,
    )
