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
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from typing import Any, TypeAlias

from disco_client.pb import node_pb2
from disco_client.wire.arrays import chunk_data
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


# The rendezvous of every session, with waiting added: futures around pure state.


_MAX_WAIT_S = 600.0


class Exchanges:
    """One key-value exchange a session; used from the event loop only."""

    def __init__(self) -> None:
        self._open: dict[int, Rendezvous] = {}

    def open(self, session: int) -> None:
        """Begins the exchange of a session, unless it has begun."""
        if session not in self._open:
            self._open[session] = Rendezvous()

    def close(self, session: int, why: str) -> None:
        """Ends the exchange of a session; every waiting call fails with the reason."""
        rendezvous = self._open.pop(session, None)
        if rendezvous is not None:
            _wake(rendezvous.fail(why))

    def put(self, session: int, items: Mapping[str, bytes]) -> None:
        """Writes keys.

        Raises:
            ConnectionError: The session is over, or a key has another value.
        """
        rendezvous = self._of(session)
        try:
            for key, value in items.items():
                _wake(rendezvous.put(key, value))
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None

    async def get(self, session: int, key: str, limit: float) -> bytes:
        """Waits for a key and returns its value.

        Raises:
            ConnectionError: The session is over, or the key was not written in time.
        """
        rendezvous = self._of(session)
        waiter: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        try:
            _wake(rendezvous.get(key, waiter))
            wake = await asyncio.wait_for(waiter, min(limit, _MAX_WAIT_S))
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None
        except TimeoutError:
            msg = f"nobody wrote {key!r} within {limit:g} s"
            raise ConnectionError(msg) from None
        finally:
            rendezvous.withdraw(waiter)
        if wake.value is None:
            raise ConnectionError(wake.error)
        return wake.value

    async def fence(self, request: node_pb2.FenceRequest) -> bytes:
        """Waits for every participant; returns the answer with the items of all of them, encoded.

        Raises:
            ConnectionError: The session is over, a participant did not arrive in time, or
                the participants contradict each other.
        """
        rendezvous = self._of(request.session)
        waiter: asyncio.Future[Wake] = asyncio.get_running_loop().create_future()
        try:
            _wake(
                rendezvous.fence(
                    request.name,
                    request.participant,
                    request.participants,
                    dict(request.items),
                    waiter,
                )
            )
            limit = min(request.timeout_s, _MAX_WAIT_S) or None
            wake = await asyncio.wait_for(waiter, limit)
        except RendezvousError as error:
            raise ConnectionError(str(error)) from None
        except TimeoutError:
            why = f"not every node came to {request.name!r} within {request.timeout_s:g} s"
            # Its participant was counted, so the exchange cannot go on without it.
            _wake(rendezvous.fail(why))
            raise ConnectionError(why) from None
        if wake.value is None:
            raise ConnectionError(wake.error)
        return wake.value

    def _of(self, session: int) -> Rendezvous:
        rendezvous = self._open.get(session)
        if rendezvous is None:
            msg = "the session is over"
            raise ConnectionError(msg)
        return rendezvous


def _wake(wakes: list[Wake]) -> None:
    """Ends waits; what all participants of a fence get is encoded once."""
    union = next((wake.items for wake in wakes if wake.items is not None), None)
    answer = None if union is None else node_pb2.FenceResult(items=union).SerializeToString()

    def end(wake: Wake) -> None:
        waiter = wake.waiter
        if wake.items is not None:
            wake = Wake(waiter, value=answer)
        if isinstance(waiter, asyncio.Future) and not waiter.done():  # pyright: ignore[reportUnknownMemberType]
            waiter.set_result(wake)  # pyright: ignore[reportUnknownMemberType]

    in_slices(wakes, end, len(answer or b""))
