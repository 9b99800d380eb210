"""The daemon's own door for host arrays: clients that can reach it spare a hop.

A client that cannot goes through the controller, which offers the same service.
Whoever knocks must know the secret of a session that runs here.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Protocol, cast

import grpc
from google.protobuf.message import DecodeError

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2
from disco_client.transport.options import SERVER_OPTIONS
from disco_client.transport.shared import SharedPool
from disco_server.config import Address
from disco_server.worker.arrays import receive_array, send_array

__all__ = ["ArrayDesk", "ArrayService", "choose_address"]


class ArrayDesk(Protocol):
    """Where arrays of the sessions on this node are handed in and out."""

    def memory(self, transfer: controller_pb2.Transfer) -> SharedPool | None:
        """Where memory for an array comes from."""
        ...

    def give_back(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Returns the memory of an array that was handed out; closes the descriptor."""
        ...

    def hand_in(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Gives an array to its rank; the descriptor is closed there."""
        ...

    def refuse(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells a rank that an array will not come."""
        ...

    def hand_out(self, transfer: controller_pb2.Transfer) -> tuple[int, int]:
        """Returns the descriptor and the size of an array that a rank offers.

        Raises:
            KeyError: There is none under this ticket.
        """
        ...

    def knows(self, transfer: controller_pb2.Transfer) -> bool:
        """Whether the transfer names a worker of a session here, and its secret."""
        ...


class ArrayService:
    """A gRPC server for host arrays.

    Args:
        listen: Where.
        desk: The desk of this moment; None while there is no controller.

    Attributes:
        address: Where it listens, once started; empty if it cannot.
    """

    def __init__(self, listen: Address, desk: Callable[[], ArrayDesk | None]) -> None:
        self._listen = listen
        self._desk = desk
        self._folder: str | None = None
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self) -> None:
        """Begins to listen.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        listen = self._listen
        if listen == _OWN_SOCKET:
            self._folder = tempfile.mkdtemp(prefix="disco-arrays-")
            listen = Address(path=str(Path(self._folder) / "socket"))
        untyped = cast("Any", grpc)
        handlers = {
            "Upload": untyped.stream_unary_rpc_method_handler(
                self._upload, response_serializer=controller_pb2.UploadResult.SerializeToString
            ),
            "Download": untyped.unary_stream_rpc_method_handler(
                self._download, request_deserializer=controller_pb2.Transfer.FromString
            ),
        }
        service = grpc.method_handlers_generic_handler("disco.v1.ArrayService", handlers)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((service,))
        try:
            port = self._server.add_insecure_port(str(listen))
        except RuntimeError:
            msg = f"cannot listen on {listen} for arrays; choose another with --array-listen"
            raise ConfigError(msg) from None
        await self._server.start()
        self.address = str(listen if listen.path else Address(listen.host, port))

    async def stop(self) -> None:
        """Ends the server; transfers under way are cut."""
        if self._server is not None:
            await self._server.stop(None)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _admit(self, transfer: controller_pb2.Transfer, context: Any) -> ArrayDesk:
        desk = self._desk()
        if desk is None or not desk.knows(transfer):
            await context.abort(
                grpc.StatusCode.NOT_FOUND, "no such worker, session or key on this node"
            )
            raise AssertionError  # abort() raises; this tells the type checker
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
            fd = await receive_array(stream, transfer.nbytes, desk.memory(transfer))
        except OSError as error:
            desk.refuse(transfer, str(error))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
            raise AssertionError from error
        except BaseException:
            # The rank waits for it, and nobody else would tell.
            desk.refuse(transfer, "the upload was broken off")
            raise
        desk.hand_in(transfer, fd)
        return controller_pb2.UploadResult(nbytes=transfer.nbytes)

    async def _download(self, transfer: controller_pb2.Transfer, context: Any) -> None:
        desk = await self._admit(transfer, context)
        try:
            fd, nbytes = desk.hand_out(transfer)
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the worker offers no such array")
            raise AssertionError from None
        try:
            async for chunk in send_array(os.dup(fd), nbytes):
                await context.write(chunk)
        finally:
            desk.give_back(transfer, fd)


_OWN_SOCKET = Address(path="/dev/null")
"""Stands for a Unix socket in a folder of the daemon's own."""


def choose_address(controller: Address) -> Address:
    """Where to listen when nobody said: as far as the controller is away.

    A controller on a Unix socket or on loopback has its clients on this machine,
    where a Unix socket carries twice as much as TCP. Of another controller, this
    machine's address on the way there is taken.
    """
    if controller.path or _is_loopback(controller.host):
        return _OWN_SOCKET
    try:
        found = socket.getaddrinfo(controller.host, controller.port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, where = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(where)  # sends nothing; the kernel only picks a route
            return Address(probe.getsockname()[0], 0)
    except OSError:
        return _OWN_SOCKET


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
