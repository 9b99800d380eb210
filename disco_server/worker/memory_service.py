"""The daemon's door for clients on its machine: arrays in memory that both share.

A client asks over a Unix socket and gets the descriptor of memory: what a rank
offers, or room for what the client brings. Neither goes through the socket or this
process, so the event loop only opens the door and notices who leaves. Each
connection carries one array and is a task of its own, which ends with the client,
with the session and with the door, and lets go of the memory however it ends.

The messages are those of ``memory.proto``; see ``transport.memory_frames`` for how
they are framed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from google.protobuf.message import DecodeError

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.transport.memory_frames import MEMORY_SCHEME, READ_BYTES, pack, unpack
from disco_server.worker.array_desk import ArrayDesk, NotAdmitted, admit, incoming, outgoing
from disco_server.worker.arrays import wait_for
from disco_server.worker.own_folder import OwnFolder

__all__ = ["MemoryService"]

_logger = logging.getLogger("disco.worker")

_PREFIX = "disco-arrays-"

REQUEST_S = 10.0
"""A client that has said nothing for this long after it came is sent away."""

_WAITING_ROOM = 1024
"""How many clients may knock at one moment; further ones take the other way."""

_PAUSE_S = 0.5
"""Between two looks whether a descriptor has become free."""


class _Refused(Exception):
    """What a client asks for cannot be; the text tells it why."""


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
                await asyncio.sleep(_PAUSE_S)
                continue
            visit = asyncio.ensure_future(self._receive(sock))
            self._visits.add(visit)
            visit.add_done_callback(self._visits.discard)
            # Also one that was cancelled before it began.
            visit.add_done_callback(lambda _, sock=sock: sock.close())

    async def _receive(self, sock: socket.socket) -> None:
        """Serves one client."""
        try:
            await self._serve(sock)
        except (_Refused, NotAdmitted, OSError) as error:
            try:
                _say(sock, memory_pb2.MemoryReply(refused=str(error)))
            except OSError:
                _logger.debug("a client left the door for arrays: %s", error)
        except Exception:
            _logger.exception("a transfer through shared memory failed")

    async def _serve(self, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                request = await _hear(sock)
        except TimeoutError:
            msg = f"no request came within {REQUEST_S:.0f} s"
            raise _Refused(msg) from None
        what = request.WhichOneof("what")
        if what == "upload":
            await self._upload(sock, request.upload)
        elif what == "download":
            await self._download(sock, request.download)
        else:
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
        if transfer.error:
            await desk.uploads(transfer).give_up(transfer)
        else:
            # A socket on this machine breaks with one of its ends only, so a client that
            # has left will not send the array again.
            async with incoming(desk, transfer, again=False) as array:
                if array is not None:
                    _say(sock, memory_pb2.MemoryReply(granted=transfer.nbytes), array.fd)
                    await _hear_done(sock)
                    array.grown(transfer.nbytes)
        _say(sock, memory_pb2.MemoryReply(taken=True))

    async def _download(self, sock: socket.socket, transfer: controller_pb2.Transfer) -> None:
        desk = self._admit(transfer)
        try:
            async with outgoing(desk, transfer, again=False) as array:
                await wait_for(array, array.nbytes)
                _say(sock, memory_pb2.MemoryReply(granted=array.nbytes), array.fd)
                await asyncio.get_running_loop().sock_recv(sock, 1)  # until it closes
        except KeyError:
            msg = "the worker offers no such array"
            raise _Refused(msg) from None


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
    loop = asyncio.get_running_loop()
    data = b""
    try:
        while (raw := unpack(data)) is None:
            more = await loop.sock_recv(sock, READ_BYTES)
            if not more:
                msg = "the client left"
                raise ConnectionResetError(msg)
            data += more
        return memory_pb2.MemoryRequest.FromString(raw)
    except (ValueError, DecodeError) as error:
        raise _Refused(str(error)) from error


async def _hear_done(sock: socket.socket) -> None:
    request = await _hear(sock)
    if not request.done:
        msg = "expected to hear that the array is there"
        raise _Refused(msg)
