"""Host arrays to and from workers: straight to a worker's daemon, or through the controller.

A daemon that the client can reach has an endpoint of its own for arrays, which spares
them a hop: in shared memory on the same machine, over gRPC from elsewhere. Whether
it can be reached is found at the first attempt and remembered; while that attempt is
pending over a slow link, arrays go through the controller.

An interrupted transfer starts again, for as long as its session lives: the daemon keeps
the received part of an upload and the content of a download, and identifies both by the
ticket. Only where the session's own stream, which frames carry, is connected, and gRPC
does not reach the same controller for a minute, is there nothing to wait for.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar, cast

import grpc

from disco_client.arrays.memory_endpoint import MemoryEndpoint
from disco_client.arrays.memory_messages import MEMORY_SCHEME
from disco_client.backoff import Backoff
from disco_client.clock import monotonic
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_client.reentry import Event, is_of_system
from disco_client.transport.base import ArrayEndpoint, EndpointLost, TransferFailed, TransferRefused
from disco_client.transport.calls import run_uninterrupted
from disco_client.transport.channel import ReloadingChannel, abandon, open_channel
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.reaching import details
from disco_client.wire.arrays import TRANSFER_HEADER, chunk_data, encode_head, encode_stream

__all__ = ["ArrayClient", "GrpcEndpoint"]

_logger = logger_of(__name__)
_SERVICE = "/disco.v1.ArrayService/"
_REACH_S = 1.0
"""If a daemon has not answered after this time, arrays go through the controller meanwhile."""

_UNREACHED_S = 60.0
"""For how long the controller is tried that only the session's stream reaches."""

_T = TypeVar("_T")


class GrpcEndpoint:
    """An ``ArrayService``; a :class:`~disco_client.transport.base.ArrayEndpoint`.

    gRPC starts threads for a call. If it cannot, that call and all later ones stay in the
    channel and are never served: the endpoint is spoiled.

    Args:
        channel: Leads to it, and is closed with the endpoint.
    """

    def __init__(self, channel: grpc.Channel | ReloadingChannel) -> None:
        self.spoiled: bool = False
        self._channel = channel
        # Messages are passed as raw bytes, which the types of its methods do not allow.
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
            run_uninterrupted(
                lambda: self._begin(self._upload.future, encode_stream(transfer, data), transfer),
                lambda made: made.result(),
            )

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns how many bytes arrived.

        Raises:
            TransferFailed: It cannot be fetched.
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
            return run_uninterrupted(
                lambda: self._begin(self._download, transfer, transfer), receive
            )

    def _begin(
        self, call: Callable[..., Any], request: object, transfer: controller_pb2.Transfer
    ) -> Any:
        # A worker's daemon reads nothing before it knows of which session a call is.
        metadata = ((TRANSFER_HEADER, transfer.SerializeToString()),)
        try:
            return call(request, metadata=metadata)
        except RuntimeError:  # there is no thread; a reloading channel has replaced its own
            self.spoiled = isinstance(self._channel, grpc.Channel)
            raise

    def _confirm(self, transfer: controller_pb2.Transfer, there: int) -> None:
        """Lets the daemon release an array; if this message is lost, it does so after a timeout."""
        if there:
            confirmed = controller_pb2.Transfer()
            confirmed.CopyFrom(transfer)
            confirmed.there = there
            # This endpoint was closed just now, or there is no thread.
            with contextlib.suppress(ValueError, RuntimeError):
                call = self._begin(self._download, confirmed, confirmed)
                self._confirming.add(call)  # gRPC cancels a call without references
                call.add_done_callback(self._confirming.discard)

    def close(self) -> None:
        """Closes the channel; idempotent."""
        if self.spoiled:
            abandon(self._channel)
            return
        with contextlib.suppress(Exception):
            self._channel.close()


_CUT = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
)
"""Status codes of a call whose connection broke, whose peer has to start again, or whose
endpoint another thread has given up."""


_CLOSED = "closed"
"""In whatever gRPC says of a channel that was closed."""


@contextlib.contextmanager
def _translated() -> Generator[None]:
    """Translates errors of gRPC into those of an endpoint."""
    try:
        yield
    except grpc.RpcError as error:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code in _CUT:
            unreached = code is grpc.StatusCode.UNAVAILABLE
            raise EndpointLost(details(error), unreached=unreached) from error
        kind = TransferRefused if code is grpc.StatusCode.RESOURCE_EXHAUSTED else TransferFailed
        raise kind(details(error)) from error
    except ValueError as error:
        if _CLOSED not in str(error):
            raise
        raise EndpointLost(str(error)) from error  # another thread has closed the channel
    except OSError as error:
        if not is_of_system(error):
            raise
        raise TransferFailed(str(error)) from error


class ArrayClient:
    """The transfers of one session; may be used from several threads.

    Args:
        relay: A channel to the controller, which is closed with this.
        session: The session's id.
        key: Its secret.
        addresses: Each worker's array address; empty where its daemon has none.
        credentials: How the controller is reached; daemons show certificates of its authority.
        connected: Says whether the session's own stream is connected at this moment.
    """

    def __init__(
        self,
        relay: ReloadingChannel,
        session: int,
        key: bytes,
        addresses: Mapping[int, str],
        credentials: Credentials = NO_CREDENTIALS,
        connected: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connected = connected
        self._line = relay
        self._relay = GrpcEndpoint(relay)
        self._credentials = credentials
        self._session = session
        self._key = key
        self._addresses = dict(addresses)
        self._lock = make_lock()
        self._direct: dict[str, ArrayEndpoint | None] = {}
        self._opening: dict[str, _Opening] = {}
        self._over = Event()

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: It cannot be sent either way.
            OSError, RuntimeError: The system has no descriptor, memory or thread for it.
        """
        head = encode_head(self._session, self._key, ticket, len(data), worker)
        self._through(worker, lambda endpoint: endpoint.upload(head, data))

    def download(self, ticket: int, worker: int, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered; returns how many bytes arrived.

        Raises:
            TransferFailed: It cannot be fetched either way.
            OSError, RuntimeError: As for :meth:`upload`.
        """
        head = encode_head(self._session, self._key, ticket, len(into), worker)
        return self._through(worker, lambda endpoint: endpoint.download(head, into))

    def _through(self, worker: int, carry: Callable[[ArrayEndpoint], _T]) -> _T:
        """Transfers an array, retrying after interruptions until the session is over."""
        address, backoff = self._addresses.get(worker, ""), Backoff()
        began: float | None = None
        while True:
            endpoint = self._reach(address)
            try:
                return carry(endpoint)
            except EndpointLost as error:
                if endpoint is self._direct.get(address):
                    self._give_up(address, endpoint)
                    continue
                _logger.debug("a transfer was cut, and begins anew: %s", error)
                if error.unreached:
                    self._line.renew()  # another channel resolves the controller's name at once
                if not (error.unreached and self._connected()):
                    began = None  # the controller is away, or answers
                elif began is None:
                    began = monotonic()
                elif monotonic() - began > _UNREACHED_S:
                    raise TransferFailed(_only_by_frames(str(error))) from None
            self._over.wait(backoff.pause())

    def _reach(self, address: str) -> ArrayEndpoint:
        """The endpoint at an address, if there is a way to it, or else the controller's."""
        opening = self._open(address)
        if opening is not None:
            opening.wait()  # without the lock: transfers to others do not wait for this one
        with self._lock:
            self._check_open()
            if opening is not None and opening.known.is_set() and address in self._opening:
                self._direct[address] = self._opening.pop(address).finish()
            endpoint = self._direct.get(address)
            return self._relay if endpoint is None else endpoint

    def _open(self, address: str) -> _Opening | None:
        """Starts connecting to an endpoint; returns the attempt while its result is not used."""
        with self._lock:
            self._check_open()
            known = self._direct.get(address)
            if known is not None and known.spoiled:
                del self._direct[address]
                known.close()
            if address and address not in self._direct and address not in self._opening:
                channel = _channel_to(address, self._credentials)
                if channel is None:
                    self._direct[address] = _memory_at(address)
                else:
                    self._opening[address] = _Opening(channel)
            return self._opening.get(address)

    def _give_up(self, address: str, endpoint: ArrayEndpoint) -> None:
        """Remembers that an endpoint is lost."""
        endpoint.close()
        with self._lock:
            self._check_open()
            self._direct[address] = None

    def _check_open(self) -> None:
        if self._over.is_set():
            msg = "the session is over"
            raise TransferFailed(msg)

    def close(self) -> None:
        """Closes all endpoints, which aborts their transfers; idempotent."""
        with self._lock:
            self._over.set()
            endpoints = [endpoint for endpoint in self._direct.values() if endpoint is not None]
            for opening in self._opening.values():
                opening.known.set()
                endpoints.append(GrpcEndpoint(opening.channel))
            self._direct.clear()
            self._opening.clear()
        for endpoint in (*endpoints, self._relay):
            endpoint.close()


def _only_by_frames(why: str) -> str:
    return (
        f"arrays travel over gRPC, which has not reached the controller for {_UNREACHED_S:g} s"
        f" ({why}), although the session's own stream has, over frames; let this machine reach the"
        " controller's gRPC port, or the worker's daemon itself (disco-worker --array-listen)"
    )


class _Opening:
    """The first attempt to reach a daemon.

    Args:
        channel: Leads to it.

    Attributes:
        channel: The same.
        known: Set when the attempt is over, or its result is not wanted any more.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.known = Event()
        self._reached = False
        self._patient_until = monotonic() + _REACH_S
        try:
            channel.subscribe(self._see, try_to_connect=True)
        except BaseException:  # Ctrl-C, or there is no thread
            channel.close()
            raise

    def _see(self, state: grpc.ChannelConnectivity) -> None:
        if not self.known.is_set() and state in _OUTCOMES:
            # gRPC polls for who subscribes, without a pause where a program has frozen the time.
            self.channel.unsubscribe(self._see)
            self._reached = state is grpc.ChannelConnectivity.READY
            self.known.set()

    def wait(self) -> None:
        """Waits for the result, but only for a moment from the attempt's beginning on."""
        self.known.wait(max(0.0, self._patient_until - monotonic()))

    def finish(self) -> GrpcEndpoint | None:
        """The endpoint; None if no daemon answers."""
        if self._reached:
            return GrpcEndpoint(self.channel)
        self.channel.close()
        return None


_OUTCOMES = (
    grpc.ChannelConnectivity.READY,
    grpc.ChannelConnectivity.TRANSIENT_FAILURE,
    grpc.ChannelConnectivity.SHUTDOWN,
)


def _memory_at(address: str) -> ArrayEndpoint | None:
    """An endpoint in shared memory; None where the address is of a kind not known here."""
    if address.startswith(MEMORY_SCHEME) and hasattr(socket, "AF_UNIX"):
        return MemoryEndpoint(address.removeprefix(MEMORY_SCHEME))
    return None


def _channel_to(address: str, credentials: Credentials) -> grpc.Channel | None:
    """A channel to a daemon; None where it is reached otherwise, or not at all."""
    if address.startswith(MEMORY_SCHEME):
        return None
    if not address.startswith("unix:") and not address.rpartition(":")[2].isdigit():
        return None
    # A daemon checks the session's secret; tokens are checked by the controller alone.
    return open_channel(address, credentials)
