"""What carries a stream between daemons, or of a client: a call of gRPC, or frames.

Whoever has a stream sees a :class:`Carrier`, which is one or the other. Frames are written
at the end of the event loop's turn in which they are posted, and handed over where they are
read: neither needs a task that is woken for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import grpc

from disco_client.pb import controller_pb2, node_pb2
from disco_client.transport.carriers import (
    ANSWER_S,
    ASK_EVERY_S,
    CONNECT_S,
    SILENCE_S,
    Unreached,
    frames_address,
    permit_request,
    tune,
    unreached,
)
from disco_client.transport.channel import ReloadingChannel, target
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import MAX_FRAME_BYTES, FrameCutter, frame
from disco_server.ipc.event_loop import at_end_of_turn
from disco_server.ipc.outbox import Outbox
from disco_server.observe.acceptor import peer_text

if TYPE_CHECKING:
    from disco_client.transport.credentials import Credentials

__all__ = [
    "CallCarrier",
    "Carrier",
    "FramedCarrier",
    "ServedCarrier",
    "StreamCarrier",
    "dial_frames",
    "open_carrier",
    "open_line",
    "scratch",
]

_Found = TypeVar("_Found")

Metadata = Sequence[tuple[str, str | bytes]]

_READ_BYTES = 256 << 10
_HIGH_BYTES = 64 << 10
"""How much may wait outside of the outbox, where sessions take turns no more."""

_LINGER_S = 1.0
"""How long a closed connection may take to send what was written."""

_KEEP_ALIVE = frame(b"")
_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Carrier(Protocol):
    """One stream, from either end; belongs to the running event loop.

    Attributes:
        carrier: What carries it: ``frames`` or ``grpc``.
    """

    carrier: str

    async def receive(self, handle: Callable[[bytes], _Found | None]) -> _Found | None:
        """Hands over what comes, until the handler returns something or the stream ends.

        Args:
            handle: Gets each message; what it raises is raised here.

        Returns:
            What the handler has found; None at the end of the stream.
        """
        ...

    async def send(self, raw: bytes) -> None:
        """Sends a message; only while no outbox is sent from."""
        ...

    async def send_from(self, outbox: Outbox) -> None:
        """Sends what is posted, until the outbox is over or nothing can be sent any more."""
        ...

    def close(self) -> None:
        """Ends the stream; :meth:`receive` returns."""
        ...


class ServedCarrier(Carrier, Protocol):
    """One stream as its handler sees it, with what a handler knows of a call."""

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        """Ends the stream with an error, which its peer is told.

        Raises:
            grpc.aio.AbortError: Always.
        """
        ...

    def peer(self) -> str:
        """Where the peer is, as gRPC says it."""
        ...

    def invocation_metadata(self) -> Metadata | None:
        """What came with the peer's call."""
        ...


# By gRPC -------------------------------------------------------------------------------


class CallCarrier:
    """The stream of a call that is served.

    Args:
        stream: What comes.
        context: The call's context.
    """

    carrier = "grpc"

    def __init__(self, stream: AsyncIterator[bytes], context: Any) -> None:
        self._stream = aiter(stream)
        self._context = context
        self.peer: Callable[[], str] = context.peer
        self.invocation_metadata: Callable[[], Metadata | None] = context.invocation_metadata
        self.abort = context.abort
        self.send = context.write

    async def receive(self, handle: Callable[[bytes], _Found | None]) -> _Found | None:
        """As of a carrier."""
        async for raw in self._stream:
            if (found := handle(raw)) is not None:
                return found
        return None

    async def send_from(self, outbox: Outbox) -> None:
        """As of a carrier."""
        await outbox.run(self._context.write)

    def close(self) -> None:
        """Does nothing: the call ends with its handler."""


class StreamCarrier:
    """The stream of a call that was made.

    Args:
        stream: The call.
    """

    carrier = "grpc"

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.send = stream.write
        self.close = stream.cancel

    async def receive(self, handle: Callable[[bytes], _Found | None]) -> _Found | None:
        """As of a carrier."""
        while (raw := await self._stream.read()) is not grpc.aio.EOF:
            if (found := handle(raw)) is not None:
                return found
        return None

    async def send_from(self, outbox: Outbox) -> None:
        """As of a carrier."""
        await outbox.run(self._stream.write)


# By frames -----------------------------------------------------------------------------


def scratch() -> memoryview:
    """Makes memory to read into: one for all carriers of a loop, because each empties it at once.

    Fresh memory costs many times what reading does.
    """
    return memoryview(bytearray(_READ_BYTES))


class FramedCarrier(asyncio.BufferedProtocol):
    """A connection of frames, from either end.

    Args:
        scratch: What it reads into.
        made: Called with it once it is connected.
        limit: The longest frame that is taken, until the peer is admitted.
    """

    carrier = "frames"

    def __init__(
        self,
        scratch: memoryview,
        made: Callable[[FramedCarrier], object] = lambda _made: None,
        *,
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._scratch = scratch
        self._made = made
        self._cutter = FrameCutter(limit)
        self._transport: Any = None
        self._unread: deque[bytes] = deque()
        self._admitted: asyncio.Future[None] | None = None
        self._handle: Callable[[bytes], Any] | None = None
        self._found: asyncio.Future[Any] | None = None
        self._lost = False
        self._error: Exception | None = None
        self._outbox: Outbox | None = None
        self._all_sent: asyncio.Future[None] | None = None
        self._flushing = self._full = False
        self._quiet = 0
        self._timer: asyncio.TimerHandle | None = None
        self.metadata: Metadata = ()

    # The connection -----------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """Called by asyncio."""
        self._transport = transport
        transport.set_write_buffer_limits(_HIGH_BYTES)
        tune(transport.get_extra_info("socket"))
        self._made(self)

    async def secure(self, context: ssl.SSLContext) -> None:
        """Encrypts a connection that was accepted, before anything is read.

        Raises:
            OSError: The handshake failed.
        """
        raw, self._transport = self._transport, None
        try:
            # The first frame may be read before this returns.
            secured = await self._loop.start_tls(raw, self, context, server_side=True)
        except BaseException:
            self._transport = raw
            raise
        self._transport = secured
        self._transport.set_write_buffer_limits(_HIGH_BYTES)

    def pause(self) -> None:
        """Lets nothing be read until somebody receives."""
        self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio's)
        """Called by asyncio."""
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if self._admitted is not None and not self._admitted.done():
            self._admitted.set_exception(ConnectionError("it does not admit this connection"))
        if self._all_sent is not None and not self._all_sent.done():
            self._all_sent.set_result(None)
        if not self._unread:
            self._settle(None)

    def _look(self) -> None:
        """Asks a peer that is silent, and leaves one that stays so."""
        if self._quiet * ASK_EVERY_S / 2 >= SILENCE_S:
            self._transport.abort()
            return
        if self._quiet:
            self._transport.write(_KEEP_ALIVE)
        self._quiet += 1
        self._timer = self._loop.call_later(ASK_EVERY_S / 2, self._look)

    def close(self) -> None:
        """As of a carrier; what was written is still sent, if that does not take long."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._transport.is_closing():
            self._transport.close()
            # A peer that reads nothing would keep it open.
            self._loop.call_later(_LINGER_S, self._transport.abort)

    def drop(self) -> None:
        """Ends the connection at once, if there is one."""
        if self._transport is not None:
            self.close()
            self._transport.abort()

    async def show_permit(self, secret: bytes) -> None:
        """Waits until the other end admits this connection.

        Raises:
            ConnectionError: It does not.
        """
        self._admitted = self._loop.create_future()
        self._transport.write(frame(secret))
        await self._admitted

    def admit(self, metadata: Metadata) -> None:
        """Takes a peer's frames of any length from now on, and asks it for signs of life."""
        self._cutter.limit = MAX_FRAME_BYTES
        self.metadata = metadata
        self._transport.write(_KEEP_ALIVE)
        self._look()

    # Receiving ----------------------------------------------------------------------------

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  (asyncio's)
        """Called by asyncio, right before it reads."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Called by asyncio, right after it has read."""
        self._quiet = 0
        try:
            frames = self._cutter.feed(self._scratch[:nbytes])
        except ValueError as error:
            self._error = ConnectionError(str(error))
            self._transport.abort()
            return
        for raw in frames:
            if not raw:
                self._answer()
            elif self._handle is None:
                self._unread.append(raw)
            else:
                self._hand_over(raw)
        if self._unread and self._transport is not None:
            self._transport.pause_reading()

    def _answer(self) -> None:
        """Takes an empty frame, if this end has shown a secret.

        The first one says that the connection is admitted, the others ask.
        """
        if self._admitted is None:
            return
        if self._admitted.done():
            self._transport.write(_KEEP_ALIVE)
        else:
            self._admitted.set_result(None)

    def _hand_over(self, raw: bytes) -> None:
        handle = self._handle
        try:
            found = handle(raw) if handle is not None else None
        except Exception as error:  # noqa: BLE001  (raised where it is received)
            self._settle(error)
        else:
            if found is not None:
                self._settle(found)

    def _settle(self, found: Any) -> None:
        """Ends what receives, with a result or an exception."""
        self._handle = None
        if self._found is None or self._found.done():
            return
        if isinstance(found, Exception):
            self._found.set_exception(found)
        elif found is None and self._error is not None:
            self._found.set_exception(self._error)
        else:
            self._found.set_result(found)

    async def receive(self, handle: Callable[[bytes], _Found | None]) -> _Found | None:
        """As of a carrier.

        Raises:
            ConnectionError: A frame is longer than is taken.
        """
        self._handle, self._found = handle, self._loop.create_future()
        while self._unread and self._handle is not None:
            self._hand_over(self._unread.popleft())
        if self._lost:
            self._settle(None)
        elif self._handle is not None:
            self._transport.resume_reading()
        try:
            return await self._found
        finally:
            self._handle = None

    def unread(self, raw: bytes) -> None:
        """Gives a message back, to be received next."""
        self._unread.appendleft(raw)

    # Sending ------------------------------------------------------------------------------

    async def send(self, raw: bytes) -> None:
        """As of a carrier."""
        self._transport.write(frame(raw))

    async def send_from(self, outbox: Outbox) -> None:
        """As of a carrier."""
        self._outbox, self._all_sent = outbox, self._loop.create_future()
        outbox.on_post(self._soon)
        if self._lost:
            self._all_sent.set_result(None)
        else:
            self._flush()
        await self._all_sent

    def _soon(self) -> None:
        """Writes at the end of this turn of the loop, together with what is posted until then."""
        if not self._flushing:
            self._flushing = True
            at_end_of_turn(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        outbox, sent = self._outbox, self._all_sent
        if outbox is None or sent is None or sent.done():
            return
        while not self._full and (taken := outbox.take()):
            self._transport.write(b"".join(map(frame, taken)))
        if outbox.is_over:
            # Also wakes a loop that is about to wait.
            self._loop.call_soon_threadsafe(_finish, sent)

    def pause_writing(self) -> None:
        """Called by asyncio when much waits in the connection."""
        self._full = True

    def resume_writing(self) -> None:
        """Called by asyncio when little does."""
        self._full = False
        self._flush()

    # As of a call -------------------------------------------------------------------------

    async def abort(self, code: grpc.StatusCode, text: str) -> NoReturn:
        """As of a carrier."""
        refused = node_pb2.Refused(message=text, denied=code in _DENIED)
        await self.send(envelope(EnvelopeKind.REFUSED, refused.SerializeToString()))
        raise grpc.aio.AbortError(text)

    def peer(self) -> str:
        """As of a carrier."""
        return peer_text(self._transport.get_extra_info("peername"))

    def invocation_metadata(self) -> Metadata:
        """As of a carrier."""
        return self.metadata


def _finish(sent: asyncio.Future[None]) -> None:
    if not sent.done():
        sent.set_result(None)


async def dial_frames(
    address: str, permit: controller_pb2.Permit, credentials: Credentials
) -> FramedCarrier:
    """Connects to a controller that has admitted this daemon, from its side.

    Args:
        address: Where the controller takes calls.
        permit: What it answered.
        credentials: How to verify it.

    Raises:
        ConfigError: A certificate cannot be read.
        Unreached: No controller admits it there.
    """
    loop = asyncio.get_running_loop()
    where = frames_address(address, permit)
    context = credentials.context()
    host = where.host or "localhost"  # as gRPC asks where there is no name
    secured: dict[str, Any] = {} if context is None else {"ssl": context, "server_hostname": host}
    made = FramedCarrier(scratch())
    try:
        async with asyncio.timeout(CONNECT_S + (ANSWER_S if secured else 0.0)):
            if where.path:
                await loop.create_unix_connection(lambda: made, where.path, **secured)
            else:
                await loop.create_connection(lambda: made, where.host, where.port, **secured)
        async with asyncio.timeout(ANSWER_S):
            await made.show_permit(permit.secret)
    except BaseException as error:
        made.drop()
        if not isinstance(error, OSError):  # a timeout is one
            raise
        await asyncio.to_thread(unreached.add, address, error)
        raise Unreached from error
    return made


# The choice ----------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def open_line(
    address: str, credentials: Credentials, options: list[tuple[str, Any]]
) -> AsyncGenerator[ReloadingChannel]:
    """Makes a connection of gRPC to a controller, which ends with the block.

    Args:
        address: Where the controller takes calls.
        credentials: How to reach it.
        options: Of gRPC.

    Raises:
        ConfigError: A file of the credentials cannot be read.
    """
    secrets, where = credentials.secrets(), target(address)
    if secrets is None:
        channel = grpc.aio.insecure_channel(where, options=options)
    else:
        channel = grpc.aio.secure_channel(where, secrets, options=options)
    async with channel:
        # Always the same one: whoever needs other certificates connects anew.
        yield ReloadingChannel(address, credentials, lambda _address, _credentials: channel)


async def open_carrier(line: ReloadingChannel, method: str, first: bytes) -> Carrier:
    """Opens a stream to a controller, by frames where they reach it.

    Args:
        line: The connection of gRPC.
        method: Which stream, such as ``/disco.v1.NodeService/Register``.
        first: The first message, which is still to be sent.

    Raises:
        grpc.aio.AioRpcError: The controller does not answer, or refuses it.
    """
    where = line.address
    if not unreached.knows(where) or await asyncio.to_thread(unreached.may_try, where):
        admit = line.unary_unary(
            f"{method.rpartition('/')[0]}/Admit",
            request_serializer=controller_pb2.PermitRequest.SerializeToString,
            response_deserializer=controller_pb2.Permit.FromString,
        )
        try:
            # gRPC itself would count the time on the wall clock, which programs move.
            permit = await asyncio.wait_for(admit(permit_request(first)), ANSWER_S)
            return await dial_frames(where, permit, line.credentials)
        except (Unreached, TimeoutError):  # it is slower than frames are worth
            pass
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:  # it is older than frames
                raise
    return StreamCarrier(line.stream_stream(method)())
