"""Host arrays to and from workers: straight to a worker's daemon, or through the controller.

A daemon that the client can reach takes arrays at a door of its own, which spares
them a hop: in shared memory on the same machine, over gRPC from elsewhere. Whether
it can be reached shows at the first attempt, and is remembered.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar, cast

import grpc

from disco_client.pb import controller_pb2
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.doors import Door, DoorShut, TransferFailed
from disco_client.transport.line import Line, open_channel
from disco_client.transport.memory_client import MemoryDoor
from disco_client.transport.memory_frames import MEMORY_SCHEME
from disco_client.transport.reaching import details
from disco_client.wire.arrays import chunk_data, encode_head, encode_stream

__all__ = ["ArrayClient", "GrpcDoor"]

_SERVICE = "/disco.v1.ArrayService/"
_REACH_S = 1.0
"""A daemon that does not answer within this time is reached through the controller."""

_T = TypeVar("_T")


class GrpcDoor:
    """An ``ArrayService``; a :class:`~disco_client.transport.doors.Door`.

    Args:
        channel: Leads to it, and is closed with the door.
    """

    def __init__(self, channel: grpc.Channel | Line) -> None:
        self._channel = channel
        # Bytes cross it as they are, which the types of its methods do not foresee.
        untyped = cast("Any", channel)
        self._upload: Any = untyped.stream_unary(
            _SERVICE + "Upload", response_deserializer=controller_pb2.UploadResult.FromString
        )
        self._download: Any = untyped.unary_stream(
            _SERVICE + "Download", request_serializer=controller_pb2.Transfer.SerializeToString
        )

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: The worker does not get them.
        """
        with _translated():
            self._upload(encode_stream(transfer, data))

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns the bytes that came.

        Raises:
            TransferFailed: It cannot be had.
        """
        at = 0
        with _translated():
            for raw in self._download(transfer):
                data = chunk_data(raw)
                if at + len(data) <= len(into):
                    into[at : at + len(data)] = data
                at += len(data)
        return at

    def close(self) -> None:
        """Closes the channel; idempotent."""
        with contextlib.suppress(Exception):
            self._channel.close()


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Makes the errors of a door of those of gRPC."""
    try:
        yield
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        shut = code is grpc.StatusCode.UNAVAILABLE
        raise (DoorShut if shut else TransferFailed)(details(error)) from error
    # The array does not come, or another thread has closed the channel.
    except (OSError, ValueError) as error:
        raise TransferFailed(str(error)) from error


class ArrayClient:
    """The transfers of one session; may be used from several threads.

    Args:
        relay: The channel to the controller.
        session: The session's id.
        key: Its secret.
        doors: Each worker's array address; empty where its daemon has none.
        credentials: How the controller is reached; daemons show certificates of its authority.
    """

    def __init__(
        self,
        relay: grpc.Channel | Line,
        session: int,
        key: bytes,
        doors: Mapping[int, str],
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._relay = GrpcDoor(relay)
        self._credentials = credentials
        self._session = session
        self._key = key
        self._doors = dict(doors)
        self._lock = threading.Lock()
        self._direct: dict[str, Door | None] = {}
        self._closed = False

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: It cannot be sent either way.
        """
        head = encode_head(self._session, self._key, ticket, len(data), worker)
        self._through(worker, lambda door: door.upload(head, data))

    def download(self, ticket: int, worker: int, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns the bytes that came.

        Raises:
            TransferFailed: It cannot be fetched either way.
        """
        head = encode_head(self._session, self._key, ticket, len(into), worker)
        return self._through(worker, lambda door: door.download(head, into))

    def _through(self, worker: int, carry: Callable[[Door], _T]) -> _T:
        address = self._doors.get(worker, "")
        door = self._reach(address)
        if door is not None:
            try:
                return carry(door)
            except DoorShut:
                self._give_up(address, door)
        return carry(self._relay)

    def _reach(self, address: str) -> Door | None:
        """The door at an address, if there is a way to it."""
        with self._lock:
            self._check_open()
            if address and address not in self._direct:
                self._direct[address] = _open(address, self._credentials)
            return self._direct.get(address)

    def _give_up(self, address: str, door: Door) -> None:
        """Remembers that a door is shut."""
        door.close()
        with self._lock:
            self._check_open()
            self._direct[address] = None

    def _check_open(self) -> None:
        if self._closed:
            msg = "the session is over"
            raise TransferFailed(msg)

    def close(self) -> None:
        """Closes the doors, which breaks off what goes through them; idempotent.

        The channel to the controller is its owner's.
        """
        with self._lock:
            self._closed = True
            doors = [door for door in self._direct.values() if door is not None]
            self._direct.clear()
        for door in doors:
            door.close()


def _open(address: str, credentials: Credentials) -> Door | None:
    """Opens a door; None where nobody answers, or it is of a kind not known here."""
    if address.startswith(MEMORY_SCHEME):
        here = hasattr(socket, "AF_UNIX")
        return MemoryDoor(address.removeprefix(MEMORY_SCHEME)) if here else None
    if not address.startswith("unix:") and not address.rpartition(":")[2].isdigit():
        return None
    # The session's secret is what a daemon asks for; a token is the controller's business.
    channel = open_channel(address, credentials)
    ready = grpc.channel_ready_future(channel)
    try:
        ready.result(timeout=_REACH_S)
    except grpc.FutureTimeoutError:
        ready.cancel()
        channel.close()
        return None
    return GrpcDoor(channel)
