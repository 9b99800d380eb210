"""The daemon's door for clients on other machines: host arrays over gRPC.

A client that cannot reach it goes through the controller, which offers the same
service.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import grpc
from google.protobuf.message import DecodeError

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2
from disco_client.transport.options import SERVER_OPTIONS
from disco_client.wire.arrays import CHUNK_BYTES
from disco_server.channels.calls import parsed
from disco_server.channels.stopping import stop_server
from disco_server.channels.tls import add_port
from disco_server.config import Address
from disco_server.guarding import Guard
from disco_server.worker.array_desk import ArrayDesk, NotAdmitted, admit, incoming, outgoing
from disco_server.worker.arrays import receive_array, send_array
from disco_server.worker.uploads import BrokenOff

__all__ = ["ArrayService"]

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
            if transfer.error:
                await desk.uploads(transfer).give_up(transfer)
                return controller_pb2.UploadResult()
            async with incoming(desk, transfer) as array:
                if array is not None:
                    await receive_array(stream, transfer.nbytes, array.fd, array.grown)
        except BrokenOff as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        except OSError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        return controller_pb2.UploadResult(nbytes=transfer.nbytes)

    async def _download(self, transfer: controller_pb2.Transfer, context: Any) -> None:
        desk = await self._admit(transfer, context)
        if transfer.there:
            desk.lent(transfer).confirm(transfer.worker, transfer.ticket)
            return
        try:
            async with outgoing(desk, transfer) as array:
                async for chunk in send_array(array):
                    await context.write(chunk)
        except KeyError:
            await context.abort(grpc.StatusCode.NOT_FOUND, "the worker offers no such array")
