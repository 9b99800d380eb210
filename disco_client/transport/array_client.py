"""Host arrays to and from workers: straight to a worker's daemon, or through the controller.

A daemon that the client can reach takes arrays at a door of its own, which spares
them a hop: in shared memory on the same machine, over gRPC from elsewhere. Whether
it can be reached shows at the first attempt, and is remembered.

A transfer that is cut begins anew, for as long as its session lives: the daemon keeps
what an upload has brought and what a download has to bring, and knows by the ticket what
has come already.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar, cast

import grpc

from disco_client.pb import controller_pb2
from disco_client.transport.apart import apart, ask
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.doors import Door, DoorShut, TransferFailed
from disco_client.transport.line import Line, open_channel
from disco_client.transport.memory_client import MemoryDoor
from disco_client.transport.memory_frames import MEMORY_SCHEME
from disco_client.transport.reaching import details
from disco_client.wire.arrays import chunk_data, encode_head, encode_stream

__all__ = ["ArrayClient", "GrpcDoor"]

_logger = logging.getLogger(__name__)
_SERVICE = "/disco.v1.ArrayService/"
_PAUSES_S = (0.1, 1.0)
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
        self._confirming: set[Any] = set()

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: The worker does not get them.
        """
        with _translated():
            ask(self._upload, encode_stream(transfer, data))

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns the bytes that came.

        Raises:
            TransferFailed: It cannot be had.
        """

        def receive(call: Any) -> int:
            at = 0
            for raw in call:
                data = chunk_data(raw)
                if at + len(data) <= len(into):
                    into[at : at + len(data)] = data
                at += len(data)
            self._confirm(transfer, at)
            return at

        with _translated():
            return apart(lambda: self._download(transfer), receive)

    def _confirm(self, transfer: controller_pb2.Transfer, there: int) -> None:
        """Lets the daemon let go of an array; where that is lost, it does so after a while."""
        if there:
            confirmed = controller_pb2.Transfer()
            confirmed.CopyFrom(transfer)
            confirmed.there = there
            with contextlib.suppress(ValueError):  # this door was closed just now
                call = self._download(confirmed)
                self._confirming.add(call)  # gRPC cancels a call that nobody holds
                call.add_done_callback(self._confirming.discard)

    def close(self) -> None:
        """Closes the channel; idempotent."""
        with contextlib.suppress(Exception):
            self._channel.close()


_CUT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
)
"""How a call ends whose connection broke, whose other side has to begin anew, or whose
door another thread has given up."""


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Makes the errors of a door of those of gRPC."""
    try:
        yield
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        raise (DoorShut if code in _CUT else TransferFailed)(details(error)) from error
    except ValueError as error:  # another thread has closed the channel
        raise DoorShut(str(error)) from error
    except OSError as error:
        raise TransferFailed(str(error)) from error


class ArrayClient:
    """The transfers of one session; may be used from several threads.

    Args:
        relay: A channel to the controller, which is closed with this.
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
        self._over = threading.Event()

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: It cannot be sent either way; the worker hears of that.
        """
        head = encode_head(self._session, self._key, ticket, len(data), worker)
        try:
            self._through(worker, lambda door: door.upload(head, data))
        except BaseException:
            self.give_up([(ticket, worker)])
            raise

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Tells workers, in a thread, of arrays that will not come, or not the rest of them.

        Args:
            uploads: The ticket and the worker of each.
        """
        if not self._over.is_set():
            threading.Thread(
                target=self._give_up_uploads, args=(uploads,), name="disco-give-up", daemon=True
            ).start()

    def _give_up_uploads(self, uploads: Sequence[tuple[int, int]]) -> None:
        nothing = memoryview(b"")
        for ticket, worker in uploads:
            head = encode_head(self._session, self._key, ticket, 0, worker)
            head.error = "the upload was broken off"
            # Whoever refuses this does not make a worker wait either.
            with contextlib.suppress(TransferFailed):
                self._through(worker, lambda door, head=head: door.upload(head, nothing))

    def download(self, ticket: int, worker: int, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns the bytes that came.

        Raises:
            TransferFailed: It cannot be fetched either way.
        """
        head = encode_head(self._session, self._key, ticket, len(into), worker)
        return self._through(worker, lambda door: door.download(head, into))

    def _through(self, worker: int, carry: Callable[[Door], _T]) -> _T:
        """Carries an array, again and again while it is cut, until the session is over."""
        address, pause = self._doors.get(worker, ""), _PAUSES_S[0]
        while True:
            door = self._reach(address)
            try:
                return carry(self._relay if door is None else door)
            except DoorShut as error:
                if door is not None:
                    self._give_up(address, door)
                    continue
                _logger.debug("a transfer was cut, and begins anew: %s", error)
            self._over.wait(pause * random.uniform(0.5, 1.0))  # noqa: S311  (no secret)
            pause = min(pause * 2, _PAUSES_S[1])

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
        if self._over.is_set():
            msg = "the session is over"
            raise TransferFailed(msg)

    def close(self) -> None:
        """Closes the doors, which breaks off what goes through them; idempotent."""
        with self._lock:
            self._over.set()
            doors = [door for door in self._direct.values() if door is not None]
            self._direct.clear()
        for door in (*doors, self._relay):
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
