"""The servers of a worker daemon to which clients upload host arrays and download them.

Clients on other machines use gRPC; one that cannot reach the daemon uses the controller,
which offers the same service. Clients on the same machine share memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf.message import DecodeError

from disco_client.arrays.memory_messages import MEMORY_SCHEME, READ_BYTES, pack, unpack
from disco_client.descriptors import Descriptor
from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.transport.credentials import is_local
from disco_client.transport.grpc_options import SERVER_OPTIONS, connection_limit
from disco_client.wire.arrays import CHUNK_BYTES, TRANSFER_HEADER
from disco_server.config import MAX_CONNECTIONS
from disco_server.ipc.grpc_server import add_port, quiet_if_peer_left, stop_server
from disco_server.observe.open_files import most_by_grpc
from disco_server.security import Guard
from disco_server.settings import Address
from disco_server.worker.array_store import ArrayStore, NotAdmitted
from disco_server.worker.array_streams import BrokenOff, receive_array, send_array, wait_for
from disco_server.worker.environment import OwnFolder

if TYPE_CHECKING:
    from disco_server.worker.pending_arrays import PendingArrays

__all__ = ["ArrayService", "MemoryService", "choose_address", "data_host", "make_array_server"]


_OPEN = Guard()

_OPTIONS = {
    **dict(SERVER_OPTIONS),
    # No message is larger than a chunk.
    "grpc.max_receive_message_length": 4 * CHUNK_BYTES,
}


class ArrayService:
    """A gRPC server for host arrays.

    Args:
        listen: The address.
        store: The arrays of the node.
        guard: How its port is guarded.

    Attributes:
        address: Where it listens, once started; empty if it cannot.
    """

    def __init__(self, listen: Address, store: ArrayStore, guard: Guard = _OPEN) -> None:
        self._listen = listen
        self._guard = guard
        self._store = store
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
            # The request, which says what the metadata says, is not read: see AuthInterceptor.
            "Download": untyped.stream_stream_rpc_method_handler(self._download),
        }
        service = grpc.method_handlers_generic_handler("disco.v1.ArrayService", handlers)
        most = connection_limit(most_by_grpc(MAX_CONNECTIONS))
        self._server = grpc.aio.server(options=[*_OPTIONS.items(), most])
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

    async def _admit(self, context: Any) -> tuple[controller_pb2.Transfer, PendingArrays]:
        """Finds out what a call is for; of whoever knows no session's secret nothing is read."""
        headers: dict[str, Any] = dict(context.invocation_metadata() or ())
        try:
            transfer = controller_pb2.Transfer.FromString(headers.get(TRANSFER_HEADER, b""))
            return transfer, self._store.admit(transfer)
        except (DecodeError, NotAdmitted) as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error))
            raise AssertionError from None  # abort() raises; this tells the type checker

    async def _upload(
        self, stream: AsyncIterator[bytes], context: Any
    ) -> controller_pb2.UploadResult:
        transfer, arrays = await self._admit(context)
        await anext(aiter(stream), b"")  # the head, which says the same
        try:
            async with arrays.upload(transfer) as array:
                if array is not None:
                    await receive_array(stream, array)
        except BrokenOff as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except (OSError, MemoryError) as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error) or "no memory")
        return controller_pb2.UploadResult(nbytes=transfer.nbytes)

    async def _download(self, _request: AsyncIterator[bytes], context: Any) -> None:
        transfer, arrays = await self._admit(context)
        if transfer.there:
            arrays.confirm(transfer)
            return
        try:
            with quiet_if_peer_left():
                async with arrays.download(transfer) as array:
                    async for chunk in send_array(array):
                        await context.write(chunk)
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the worker offers no such array")


# Clients on this machine: arrays in memory that both processes share.
#
# A client asks over a Unix socket and gets the descriptor of memory: what a rank
# offers, or room for what the client uploads. Neither goes through the socket or this
# process, so the event loop only accepts connections and notices when they end. Each
# connection carries one array and is a task of its own, which ends with the client,
# with the session and with the service, and releases the memory however it ends.
#
# The messages are those of ``memory.proto``; see ``transport.memory_frames`` for how
# they are framed.


_logger = logger_of("disco.worker")

_PREFIX = "disco-arrays-"

REQUEST_S = 10.0
"""A client that has sent no request for this long after it connected is refused."""

_BACKLOG = 1024
"""How many connections may wait to be accepted; further clients take the other way."""

_PAUSE_S = 0.5
"""The pause between two attempts to find a free descriptor."""

_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)


class _Refused(Exception):
    """A client's request cannot be met; the text tells it why."""


class _Failed(Exception):
    """The same, for a session that still runs here."""


class MemoryService:
    """A Unix socket, in a folder that only this user can enter, for arrays in shared memory.

    Args:
        store: The arrays of the node.

    Attributes:
        address: What a client needs to find it, once started.
    """

    def __init__(self, store: ArrayStore) -> None:
        self._store = store
        self._folder: OwnFolder | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._reserve: int | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: The system does not permit it.
        """
        self._folder = OwnFolder(_PREFIX)
        path = self._folder.path / "socket"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.setblocking(False)
        try:
            self._listener.bind(str(path))
            self._listener.listen(_BACKLOG)
        except OSError as error:
            msg = (
                f"cannot listen on {path} for arrays: {error} ({len(os.fsencode(path))} bytes); "
                "choose an address with --array-listen, or another folder with TMPDIR"
            )
            raise ConfigError(msg) from error
        self._reserve = _open_reserve()
        self._accepting = asyncio.ensure_future(self._accept(self._listener))
        self.address = f"{MEMORY_SCHEME}{path}"

    async def stop(self) -> None:
        """Ends it; transfers under way are cut. Idempotent."""
        tasks = [task for task in (self._accepting, *self._connections) if task is not None]
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
                _logger.warning("no connection for arrays is accepted now: %s", error)
                if error.errno not in _NO_DESCRIPTOR or not await self._refuse_one(listener, error):
                    await asyncio.sleep(_PAUSE_S)
                continue
            connection = asyncio.ensure_future(self._receive(sock))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)
            # Also one that was cancelled before it began.
            connection.add_done_callback(lambda _, sock=sock: sock.close())

    async def _refuse_one(self, listener: socket.socket, why: OSError) -> bool:
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
        except OSError:  # no client connects, which could not be seen without a descriptor
            return False
        else:
            # Does not wait for a client that leaves or sends no request.
            with sock, contextlib.suppress(OSError, TimeoutError, _Refused):
                sock.setblocking(False)
                async with asyncio.timeout(_PAUSE_S):
                    await _receive_request(sock)
                    _send(sock, memory_pb2.MemoryReply(failed=f"the daemon: {why}"))
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
                _send(sock, reply)
            except OSError as error:
                _logger.debug("a client left before it was answered: %s", error)

    async def _serve(self, sock: socket.socket) -> memory_pb2.MemoryReply | None:
        """Handles one client's request; returns the last answer."""
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await _receive_request(sock)
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

    async def _upload(self, sock: socket.socket, transfer: controller_pb2.Transfer) -> None:
        arrays = self._store.admit(transfer)
        # A socket on this machine breaks with one of its ends only, so a client that has
        # left will not send the array again.
        try:
            async with arrays.upload(transfer, resumable=False) as array:
                if array is not None:
                    _send(sock, memory_pb2.MemoryReply(granted=transfer.nbytes), array.fd)
                    await _receive_done(sock)
                    array.grow(transfer.nbytes)
        except ConnectionError:
            raise
        except (OSError, MemoryError) as error:
            raise _Failed(str(error) or "no memory") from error

    async def _download(self, sock: socket.socket, transfer: controller_pb2.Transfer) -> None:
        arrays = self._store.admit(transfer)
        try:
            async with arrays.download(transfer, resumable=False) as array:
                await wait_for(array, array.nbytes)
                _send(sock, memory_pb2.MemoryReply(granted=array.nbytes), array.fd)
                await _recv(sock, 1)  # until it closes
        except KeyError:
            msg = "the worker offers no such array"
            raise _Refused(msg) from None


def _open_reserve() -> int | None:
    """A descriptor to close when none is free; None if none can be had."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return None


def _send(sock: socket.socket, reply: memory_pb2.MemoryReply, fd: Descriptor | None = None) -> None:
    """Sends an answer, which a socket takes at once: it is small, and all that is sent."""
    data = pack(reply)
    sent = socket.send_fds(sock, [data], [] if fd is None else [fd.fileno()])
    if sent < len(data):
        msg = f"expected the socket to take {len(data)} bytes, it took {sent}"
        raise OSError(msg)


async def _receive_request(sock: socket.socket) -> memory_pb2.MemoryRequest:
    """Waits for the client's request.

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


async def _receive_done(sock: socket.socket) -> None:
    request = await _receive_request(sock)
    if not request.done:
        msg = "expected to hear that the array is there"
        raise _Refused(msg)


# Which of the two a daemon starts depends on where its clients are.


def make_array_server(
    listen: Address | None, controller: Address, store: ArrayStore, *, guard: Guard = _OPEN
) -> ArrayService | MemoryService | None:
    """Makes the service that fits, not yet started.

    Args:
        listen: The configured address; None chooses one.
        controller: The controller's address.
        store: The arrays of the node.
        guard: How a port is guarded that other machines can reach.

    Returns:
        The service; None where its port could not be encrypted, and the settings do not
        accept that: then arrays go through the controller.
    """
    where = listen or choose_address(controller)
    if where is None:
        return MemoryService(store)
    try:
        guard.check_listener(where, "array_listen")
    except ConfigError as error:
        _logger.info("clients bring and fetch arrays through the controller: %s", error)
        return None
    return ArrayService(where, store, guard)


def choose_address(controller: Address) -> Address | None:
    """Where to serve arrays by default: as reachable as the controller is.

    A controller on a Unix socket or on loopback has its clients on this machine,
    where memory is shared and no address is needed: None. For another controller,
    it is this machine's address on the route there.
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


def data_host(listen: Address | None, controller: Address) -> str:
    """The address of this machine that ranks of other machines connect to.

    Args:
        listen: Where arrays are served, as configured; None chooses an address.
        controller: The controller's address.

    Returns:
        A name or an IP address; empty where none is known but that of loopback.
    """
    if listen is not None and listen.host and not _is_wildcard(listen.host):
        return listen.host
    chosen = choose_address(controller)
    return "" if chosen is None else chosen.host


def _is_wildcard(host: str) -> bool:
    """Whether it stands for all addresses of a machine, and so is none to connect to."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
