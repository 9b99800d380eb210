"""The daemon's door for clients on other machines: host arrays over gRPC.

A client that cannot reach it goes through the controller, which offers the same
service.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError

from disco_client.arrays.shared_memory import MEMORY_SCHEME, READ_BYTES, pack, unpack
from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.transport.channel import SERVER_OPTIONS
from disco_client.transport.credentials import is_local
from disco_client.wire.arrays import CHUNK_BYTES, TICKETS_SHIFT
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_server.ipc.growing import GrowingArray, array_with
from disco_server.ipc.grpc_server import add_port, parsed, quiet_if_peer_left, stop_server
from disco_server.security import Guard
from disco_server.settings import Address
from disco_server.worker.array_store import BrokenOff, LentArrays, Uploads
from disco_server.worker.array_streams import (
    ArrayCarrier,
    ArrayDesk,
    NotAdmitted,
    admit,
    incoming,
    outgoing,
    receive_array,
    send_array,
    wait_for,
)
from disco_server.worker.environment import OwnFolder

if TYPE_CHECKING:
    from disco_server.ipc.framing import FrameReader
    from disco_server.worker.node_session import NodeSession

__all__ = [
    "ArrayDoor",
    "ArrayService",
    "MemoryService",
    "NodeArrays",
    "choose_address",
    "make_door",
]


_OPEN = Guard()


_OPTIONS = {
    **dict(SERVER_OPTIONS),
    # Nothing larger than a chunk comes here, and those who bring it are strangers at first.
    "grpc.max_receive_message_length": 4 * CHUNK_BYTES,
}


class ArrayService:
    """A gRPC server for host arrays.

    Args:
        listen: Where.
        desk: The desk of this moment; None while there is no controller.
        guard: How its door is guarded.

    Attributes:
        address: Where it listens, once started; empty if it cannot.
    """

    def __init__(
        self, listen: Address, desk: Callable[[], ArrayDesk | None], guard: Guard = _OPEN
    ) -> None:
        self._listen = listen
        self._guard = guard
        self._desk = desk
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: The address cannot be listened on, or a certificate not be read.
        """
        listen = self._listen
        untyped = cast("Any", grpc)
        handlers = {
            "Upload": untyped.stream_unary_rpc_method_handler(
                self._upload, response_serializer=controller_pb2.UploadResult.SerializeToString
            ),
            "Download": untyped.unary_stream_rpc_method_handler(
                parsed(self._download, controller_pb2.Transfer)
            ),
        }
        service = grpc.method_handlers_generic_handler("disco.v1.ArrayService", handlers)
        self._server = grpc.aio.server(options=[*_OPTIONS.items()])
        self._server.add_generic_rpc_handlers((service,))
        port = add_port(self._server, str(listen), self._guard)
        if not port:
            msg = f"cannot listen on {listen} for arrays; choose another with --array-listen"
            raise ConfigError(msg)
        await self._server.start()
        self.address = str(listen if listen.path else Address(listen.host, port))

    async def stop(self) -> None:
        """Ends the server; transfers under way are cut."""
        if self._server is not None:
            await stop_server(self._server, None)

    async def _admit(self, transfer: controller_pb2.Transfer, context: Any) -> ArrayDesk:
        try:
            desk = admit(self._desk(), transfer)
        except NotAdmitted as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError from None  # abort() raises; this tells the type checker
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (this runs in one)
        desk.attend(transfer, task)
        return desk

    async def _upload(
        self, stream: AsyncIterator[bytes], context: Any
    ) -> controller_pb2.UploadResult:
        first = await anext(aiter(stream), b"")
        try:
            transfer = controller_pb2.ArrayChunk.FromString(first).transfer
        except DecodeError:
            transfer = controller_pb2.Transfer()
        desk = await self._admit(transfer, context)
        try:
            async with incoming(desk, transfer) as array:
                if array is not None:
                    await receive_array(stream, transfer.nbytes, array.fd, array.grown)
        except BrokenOff as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except (OSError, MemoryError) as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error) or "no memory")
        return controller_pb2.UploadResult(nbytes=transfer.nbytes)

    async def _download(self, transfer: controller_pb2.Transfer, context: Any) -> None:
        desk = await self._admit(transfer, context)
        if transfer.there:
            desk.lent(transfer).confirm(transfer.worker, transfer.ticket)
            return
        try:
            with quiet_if_peer_left():
                async with outgoing(desk, transfer) as array:
                    async for chunk in send_array(array):
                        await context.write(chunk)
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the worker offers no such array")


# The daemon's door for clients on its machine: arrays in memory that both share.
#
# A client asks over a Unix socket and gets the descriptor of memory: what a rank
# offers, or room for what the client brings. Neither goes through the socket or this
# process, so the event loop only opens the door and notices who leaves. Each
# connection carries one array and is a task of its own, which ends with the client,
# with the session and with the door, and lets go of the memory however it ends.
#
# The messages are those of ``memory.proto``; see ``transport.memory_frames`` for how
# they are framed.


_logger = logging.getLogger("disco.worker")

_PREFIX = "disco-arrays-"

REQUEST_S = 10.0
"""A client that has said nothing for this long after it came is sent away."""

_WAITING_ROOM = 1024
"""How many clients may knock at one moment; further ones take the other way."""

_PAUSE_S = 0.5
"""Between two looks whether a descriptor has become free."""

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class _Refused(Exception):
    """What a client asks for cannot be; the text tells it why."""


class _Failed(Exception):
    """The same, of a session that goes on here."""


class MemoryService:
    """A Unix socket, in a folder that only this user can enter, for arrays in shared memory.

    Args:
        desk: The desk of this moment; None while there is no controller.

    Attributes:
        address: What a client needs to find it, once started.
    """

    def __init__(self, desk: Callable[[], ArrayDesk | None]) -> None:
        self._desk = desk
        self._folder: OwnFolder | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._reserve: int | None = None
        self._visits: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: The system does not let it.
        """
        self._folder = OwnFolder(_PREFIX)
        path = self._folder.path / "socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        try:
            self._listener.bind(str(path))
            self._listener.listen(_WAITING_ROOM)
        except OSError as error:
            msg = (
                f"cannot listen on {path} for arrays: {error}; "
                "choose an address with --array-listen, or another folder with TMPDIR"
            )
            raise ConfigError(msg) from error
        self._reserve = _open_reserve()
        self._accepting = asyncio.ensure_future(self._accept(self._listener))
        self.address = f"{MEMORY_SCHEME}{path}"

    async def stop(self) -> None:
        """Shuts the door; transfers under way are cut. Idempotent."""
        tasks = [task for task in (self._accepting, *self._visits) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._reserve is not None:
            os.close(self._reserve)
            self._reserve = None
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError as error:
                _logger.warning("nobody is let in at the door for arrays now: %s", error)
                if error.errno not in _NO_DESCRIPTOR or not await self._turn_away(listener, error):
                    await asyncio.sleep(_PAUSE_S)
                continue
            visit = asyncio.ensure_future(self._receive(sock))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)
            # Also one that was cancelled before it began.
            visit.add_done_callback(lambda _, sock=sock: sock.close())

    async def _turn_away(self, listener: socket.socket, why: OSError) -> bool:
        """Tells a client that no descriptor is free, with one that was kept for this.

        Returns:
            Whether there was one.
        """
        if self._reserve is None:
            self._reserve = _open_reserve()
            return False
        os.close(self._reserve)
        self._reserve = None
        try:
            sock, _ = listener.accept()
        except OSError:  # nobody knocks: without a descriptor that could not be seen
            return False
        else:
            # Whoever leaves or says nothing is not waited for.
            with sock, contextlib.suppress(OSError, TimeoutError, _Refused):
                sock.setblocking(False)
                async with asyncio.timeout(_PAUSE_S):
                    await _hear(sock)
                    _say(sock, memory_pb2.MemoryReply(failed=f"the daemon: {why}"))
            return True
        finally:
            self._reserve = _open_reserve()

    async def _receive(self, sock: socket.socket) -> None:
        """Serves one client."""
        try:
            reply = await self._serve(sock)
        except _Failed as error:
            reply = memory_pb2.MemoryReply(failed=str(error))
        except (_Refused, NotAdmitted, OSError) as error:
            reply = memory_pb2.MemoryReply(refused=str(error))
        except Exception as error:
            _logger.exception("a transfer through shared memory failed")
            reply = memory_pb2.MemoryReply(failed=repr(error))
        if reply is not None:
            try:
                _say(sock, reply)
            except OSError as error:
                _logger.debug("a client left the door for arrays: %s", error)

    async def _serve(self, sock: socket.socket) -> memory_pb2.MemoryReply | None:
        """Does what one client asks for; returns the last answer."""
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await _hear(sock)
        except TimeoutError:
            msg = f"no request came within {REQUEST_S:.0f} s"
            raise _Refused(msg) from None
        what = request.WhichOneof("what")
        if what == "upload":
            await self._upload(sock, request.upload)
            return memory_pb2.MemoryReply(taken=True)
        if what == "download":
            await self._download(sock, request.download)
            return None
        msg = "expected an upload or a download first"
        raise _Refused(msg)

    def _admit(self, transfer: controller_pb2.Transfer) -> ArrayDesk:
        desk = admit(self._desk(), transfer)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (this runs in one)
        desk.attend(transfer, task)
        return desk

    async def _upload(self, sock: socket.socket, transfer: controller_pb2.Transfer) -> None:
        desk = self._admit(transfer)
        # A socket on this machine breaks with one of its ends only, so a client that has
        # left will not send the array again.
        try:
            async with incoming(desk, transfer, again=False) as array:
                if array is not None:
                    _say(sock, memory_pb2.MemoryReply(granted=transfer.nbytes), array.fd)
                    await _hear_done(sock)
                    array.grown(transfer.nbytes)
        except ConnectionError:
            raise
        except (OSError, MemoryError) as error:
            raise _Failed(str(error) or "no memory") from error

    async def _download(self, sock: socket.socket, transfer: controller_pb2.Transfer) -> None:
        desk = self._admit(transfer)
        try:
            async with outgoing(desk, transfer, again=False) as array:
                await wait_for(array, array.nbytes)
                _say(sock, memory_pb2.MemoryReply(granted=array.nbytes), array.fd)
                await _recv(sock, 1)  # until it closes
        except KeyError:
            msg = "the worker offers no such array"
            raise _Refused(msg) from None


def _open_reserve() -> int | None:
    """A descriptor to give up where none is free; None where none is."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None


def _say(sock: socket.socket, reply: memory_pb2.MemoryReply, fd: int | None = None) -> None:
    """Sends an answer, which a socket takes at once: it is small, and all that is sent."""
    data = pack(reply)
    sent = socket.send_fds(sock, [data], [] if fd is None else [fd])
    if sent < len(data):
        msg = f"expected the socket to take {len(data)} bytes, it took {sent}"
        raise OSError(msg)


async def _hear(sock: socket.socket) -> memory_pb2.MemoryRequest:
    """Waits for what the client says.

    Raises:
        _Refused: It is no request.
        ConnectionError: The client left.
    """
    data = b""
    try:
        while (raw := unpack(data)) is None:
            more = await _recv(sock, READ_BYTES)
            if not more:
                msg = "the client left"
                raise ConnectionResetError(msg)
            data += more
        return memory_pb2.MemoryRequest.FromString(raw)
    except (ValueError, DecodeError) as error:
        raise _Refused(str(error)) from error


async def _recv(sock: socket.socket, nbytes: int) -> bytes:
    """Waits for bytes, or the end; also where the kernel is short of memory for a moment."""
    while True:
        try:
            return await asyncio.get_running_loop().sock_recv(sock, nbytes)
        except OSError as error:
            if error.errno not in (errno.ENOMEM, errno.ENOBUFS):
                raise
            await asyncio.sleep(_PAUSE_S)


async def _hear_done(sock: socket.socket) -> None:
    request = await _hear(sock)
    if not request.done:
        msg = "expected to hear that the array is there"
        raise _Refused(msg)


# Which door a daemon opens for host arrays: where its clients are decides.


class ArrayDoor(Protocol):
    """Where clients that can reach this daemon bring and fetch arrays.

    Attributes:
        address: What they are told, once it is started.
    """

    address: str

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: It cannot be listened there.
        """
        ...

    async def stop(self) -> None:
        """Ends; transfers under way are cut."""
        ...


def make_door(
    listen: Address | None,
    controller: Address,
    desk: Callable[[], ArrayDesk | None],
    *,
    guard: Guard = _OPEN,
) -> ArrayDoor:
    """Makes the door that fits, not yet started.

    Args:
        listen: Where a person wants it; None leaves it to this.
        controller: Where the controller is.
        desk: The desk of any moment; None while there is no controller.
        guard: How a door is guarded that other machines can reach. Where it cannot be
            encrypted, and nobody takes the risk, it stays shut, and arrays go through the
            controller.
    """
    where = listen or choose_address(controller)
    if where is None:
        return MemoryService(desk)
    try:
        guard.check_door(where, "array_listen")
    except ConfigError as error:
        _logger.info("clients bring and fetch arrays through the controller: %s", error)
        return _NoDoor()
    return ArrayService(where, desk, guard)


class _NoDoor:
    """A door that stays shut."""

    address = ""

    async def start(self) -> None:
        """Does nothing."""

    async def stop(self) -> None:
        """Does nothing."""


def choose_address(controller: Address) -> Address | None:
    """Where to serve arrays when nobody said: as far as the controller is away.

    A controller on a Unix socket or on loopback has its clients on this machine,
    where memory is shared and no address is needed: None. Of another controller,
    this machine's address on the way there is taken.
    """
    if is_local(str(controller)):
        return None
    try:
        found = socket.getaddrinfo(controller.host, controller.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing; the kernel only picks a route
            return Address(probe.getsockname()[0], 0)
    except OSError:
        return None


# The arrays of the sessions on one node, between its ranks and those who ask for them.


class NodeArrays:
    """The :class:`~disco_server.worker.array_streams.ArrayDesk` of a node.

    Args:
        sessions: The sessions that run here at any moment.
        carrier: Moves arrays over the connection to the controller.
        max_bytes: How large an array may be that a client brings.
        post: Sends an encoded envelope to the controller.
    """

    def __init__(
        self,
        sessions: Mapping[int, NodeSession],
        carrier: ArrayCarrier,
        max_bytes: int,
        post: Callable[[bytes], object],
    ) -> None:
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._carrier = carrier
        self._post = post

    # What ranks say ----------------------------------------------------------------

    def receive(
        self, session: NodeSession, worker: int, received: EncodedEnvelope, reader: FrameReader
    ) -> None:
        """Acts on what a rank says about an array.

        Args:
            session: Its session.
            worker: Which of the session's ranks it is.
            received: The envelope.
            reader: Holds the descriptors that came.
        """
        told = controller_pb2.Transfer.FromString(received.payload)
        if received.kind == Kind.ARRAY_BACK:
            if not told.error:
                session.memory.give(reader.fds.popleft())
        elif received.kind == Kind.ARRAY_OUT:
            session.offers.add(
                worker, told.ticket, array_with(reader, told.nbytes, told.there, told.error)
            )
        else:
            session.offers.grow(worker, told.ticket, told.there, told.error)

    # What doors want ---------------------------------------------------------------

    def knows(self, transfer: controller_pb2.Transfer) -> bool:
        """Whether a transfer names a worker of a session here, and its secret."""
        session = self._sessions.get(transfer.session)
        return (
            session is not None
            and not session.ending
            and transfer.worker in session.ranks
            and hmac.compare_digest(session.start.transfer_key, transfer.transfer_key)
        )

    def attend(self, transfer: controller_pb2.Transfer, task: asyncio.Task[Any]) -> None:
        """Cancels a task when the transfer's session ends, and waits for it.

        Raises:
            KeyError: There is no such session.
        """
        tasks = self._sessions[transfer.session].tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def uploads(self, transfer: controller_pb2.Transfer) -> Uploads:
        """The arrays on their way to the ranks of the transfer's session; see `ArrayDesk`.

        Raises:
            KeyError: There is no such session.
        """
        return self._sessions[transfer.session].uploads

    def check_size(self, transfer: controller_pb2.Transfer) -> None:
        """Refuses an array that is larger than the node's settings allow; see `ArrayDesk`.

        Raises:
            OSError: It is.
        """
        if transfer.nbytes > self._max_bytes:
            msg = (
                f"expected an array of at most {self._max_bytes} bytes, got one of "
                f"{transfer.nbytes}; start disco-worker with a larger --max-array-mib"
            )
            raise OSError(msg)

    def lent(self, transfer: controller_pb2.Transfer) -> LentArrays:
        """The arrays that the ranks of the transfer's session offer; see `ArrayDesk`.

        Raises:
            KeyError: There is no such session.
        """
        return self._sessions[transfer.session].lent

    # By way of the controller --------------------------------------------------------

    async def fetch(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Fetches an array that a client has brought to the controller, and answers it.

        Where the array was here already, or was given up, there is only the answer. An
        answer that is lost with the connection is given again when the client sends again.
        """
        error = ""
        try:
            async with incoming(self, transfer) as array:
                if array is not None:
                    chunks = self._carrier.fetch(transfer)
                    await receive_array(chunks, transfer.nbytes, array.fd, array.grown)
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("an upload was cut: %s", broke)
            return  # the client knows, or is gone
        except Exception as failed:  # noqa: BLE001  (the client waits for an answer)
            error = str(failed) or type(failed).__name__
            log = session.log_of(transfer.worker)
            log.warning("an upload of %d bytes failed: %s", transfer.nbytes, error)
        answer = controller_pb2.Transfer(
            ticket=transfer.ticket, worker=transfer.worker, nbytes=transfer.nbytes, error=error
        )
        self._post(envelope(Kind.FETCH, answer.SerializeToString(), session=session.session))

    async def push(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Sends an array that a rank offers to the controller, for a client that has not got it."""
        if transfer.there:
            session.lent.confirm(transfer.worker, transfer.ticket)
            return
        try:
            async with outgoing(self, transfer) as array:
                transfer.nbytes = array.nbytes
                await self._carrier.push(transfer, send_array(array))
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("a download was cut: %s", broke)
        except Exception as failed:  # noqa: BLE001  (the client waits for an answer)
            why = str(failed) or type(failed).__name__
            if isinstance(failed, KeyError):
                why = "the worker offers no such array"
            nothing = GrowingArray(-1, 1, error=why)
            with contextlib.suppress(grpc.RpcError, ConnectionError):
                await self._carrier.push(transfer, send_array(nothing))

    async def settle(
        self,
        session: NodeSession,
        given_up: Iterable[controller_pb2.Transfer],
        unwanted: Iterable[controller_pb2.Transfer],
    ) -> None:
        """Acts on what a client will not send or fetch, as far as it is for ranks here."""
        for transfer in unwanted:
            session.lent.confirm(transfer.worker, transfer.ticket)
        for transfer in given_up:
            if transfer.worker in session.ranks:
                await session.uploads.give_up(transfer)

    async def abandon(self, session: NodeSession) -> None:
        """Lets go of what a program was sending or fetching that will not come back.

        Another one begins behind the commands that are here: what those wait for and
        has not come will not come.
        """
        why = "the program that sent it is gone"
        newest = session.received << TICKETS_SHIFT
        await asyncio.gather(session.uploads.abandon(why), session.lent.abandon())
        for worker in session.ranks:
            session.uploads.abandon_unseen(worker, newest, why)
