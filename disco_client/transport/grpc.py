"""A session through a controller daemon: one gRPC stream and one reader thread.

gRPC's own thread pulls encoded batches from ``Events.take`` and sends them; while
it is busy the next batch grows. Envelopes cross gRPC as bytes: they were encoded
once and are relayed as they are.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import grpc

from disco_client import errors
from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.transport.array_client import ArrayClient, details
from disco_client.transport.base import Events, RankPlace, Waiting, Welcome, Wish
from disco_client.transport.doors import TransferFailed
from disco_client.transport.options import CHANNEL_OPTIONS, target
from disco_client.version import __version__
from disco_client.wire.codec import Kind, envelope
from disco_client.wire.protocol import PROTOCOL

__all__ = ["GrpcTransport"]

_SERVICE = "/disco.v1.SessionService/"
_SILENCE_S = 30.0
"""A controller that sends nothing for this long, heartbeats included, is lost."""

_logger = logging.getLogger(__name__)


class GrpcTransport:
    """One session of a controller.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        wish: What to ask for.
        connect_timeout: Seconds to wait for the controller to answer at all.
        on_queued: Told whenever the session's place in the queue changes.

    Raises:
        ConnectionFailed: Nobody answers there, or speaks another protocol.
        NoSlots: The cluster had no room in time.
        ConfigError: The controller refused the request as wrong.
        SessionLost: A worker process could not be started.
    """

    def __init__(
        self,
        address: str,
        wish: Wish,
        *,
        connect_timeout: float,
        on_queued: Callable[[Waiting], None],
    ) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(target(address), options=CHANNEL_OPTIONS)
        # Bytes cross it as they are, which the types of its methods do not foresee.
        self._untyped: Any = cast("Any", self._channel)
        self._started = threading.Event()
        self._helpers: set[threading.Thread] = set()
        self._call_over = threading.Event()
        self._ended = threading.Event()
        self._closing = False
        self._events: Events | None = None
        self._heard = time.monotonic()
        self._reader: threading.Thread | None = None
        try:
            self._await_controller(connect_timeout)
            # Bytes in and out; the stub's typed method would copy each payload twice.
            stream = self._untyped.stream_stream(_SERVICE + "Open")
            self._call: Any = stream(self._outgoing(wish))
            self._call.add_done_callback(_note_thread(self._helpers, self._call_over))
            self._welcome = self._await_ready(wish, on_queued)
        except BaseException:
            self._started.set()
            self._channel.close()
            raise

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    @property
    def pump(self) -> None:
        """None: gRPC has threads of its own that send and receive."""
        return None

    def _await_controller(self, timeout: float) -> None:
        # Any call that waits for the connection tells whether somebody answers; a
        # channel's own ready future would keep a polling thread for a while.
        probe = self._untyped.unary_unary(_SERVICE + "List")
        try:
            probe(b"", timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            msg = (
                f"no controller answers at {self._address} (waited up to {timeout:.0f} s, "
                f"{details(error)}); start one: 'disco-controller --listen {self._address}', "
                "or correct the address (argument of connect(), or DISCO_ADDRESS)"
            )
            raise errors.ConnectionFailed(msg) from None

    def _await_ready(
        self,
        wish: Wish,
        on_queued: Callable[[Waiting], None],
    ) -> Welcome:
        try:
            for raw in self._call:
                received = envelope_pb2.Envelope.FromString(raw)
                if received.kind == Kind.QUEUED:
                    on_queued(_waiting(received.payload))
                elif received.kind == Kind.READY:
                    ready = controller_pb2.SessionReady.FromString(received.payload)
                    doors = {rank.worker: rank.array_address for rank in ready.ranks}
                    self._arrays = ArrayClient(
                        self._channel, ready.session, ready.transfer_key, doors
                    )
                    ranks = tuple(
                        RankPlace(rank.worker, rank.node, rank.pid, rank.device)
                        for rank in ready.ranks
                    )
                    return Welcome(ready.session, ready.name, ranks)
                elif received.kind == Kind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise _end_error(ended, wish.name)
                elif received.kind == Kind.REFUSED:
                    refused = node_pb2.Refused.FromString(received.payload)
                    raise errors.ConnectionFailed(refused.message)
        except grpc.RpcError as error:
            raise errors.ConnectionFailed(self._stream_broke(error)) from None
        msg = f"the controller at {self._address} ended the session before it was ready"
        raise errors.ConnectionFailed(msg)

    def _stream_broke(self, error: grpc.RpcError) -> str:
        return f"the connection to the controller at {self._address} broke: {details(error)}"

    # The stream --------------------------------------------------------------

    def _outgoing(self, wish: Wish) -> Iterator[bytes]:
        self._helpers.add(threading.current_thread())
        yield envelope(Kind.CREATE, _encode_wish(wish))
        self._started.wait()
        events = self._events
        if events is None:  # it never became a session
            return
        while (batch := events.take()) is not None:
            yield batch
        yield envelope(Kind.CLOSE, session=self._welcome.session)

    def start(self, events: Events) -> None:
        """Begins to send what ``events.take`` yields and to deliver what comes."""
        self._events = events
        self._heard = time.monotonic()
        self._reader = threading.Thread(
            target=self._read, args=(events,), name="disco-replies", daemon=True
        )
        self._reader.start()
        self._started.set()

    def _read(self, events: Events) -> None:
        error: errors.SessionError
        try:
            error = self._read_until_end(events)
        except grpc.RpcError as broke:
            error = errors.ControllerLost(self._stream_broke(broke))
        except Exception as broke:
            _logger.exception("the reader of session %s failed", self._welcome.name)
            error = errors.ControllerLost(f"the session's reader failed: {broke!r}")
        if self._closing:
            error = errors.SessionClosed(f"session {self._welcome.name!r} was shut down")
        self._ended.set()
        events.lost(error)
        self._call.cancel()
        # Whoever waits for a daemon in another thread would not learn of it.
        self._arrays.close()

    def _read_until_end(self, events: Events) -> errors.SessionError:
        for raw in self._call:
            self._heard = time.monotonic()
            received = envelope_pb2.Envelope.FromString(raw)
            kind = received.kind
            if kind == Kind.REPLY:
                events.reply(received.worker_plus_one - 1, received.payload)
            elif kind == Kind.LOG:
                lines = controller_pb2.LogLines.FromString(received.payload)
                events.log(lines.worker, lines.node, lines.stderr, list(lines.lines))
            elif kind == Kind.ENDED:
                ended = controller_pb2.SessionEnded.FromString(received.payload)
                return _lost_error(ended, self._welcome.name)
        return errors.ControllerLost(f"the controller at {self._address} ended the stream")

    def check_alive(self) -> None:
        """Raises when the controller has been silent for too long.

        Raises:
            ControllerLost: Nothing was heard for half a minute.
        """
        silence = time.monotonic() - self._heard
        if silence > _SILENCE_S and not self._ended.is_set():
            msg = f"the controller at {self._address} has been silent for {silence:.0f} s"
            error = errors.ControllerLost(msg)
            if self._events is not None:
                self._events.lost(error)
            raise error

    # Arrays --------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        try:
            self._arrays.upload(ticket, worker, data)
        except TransferFailed as error:
            raise self._transfer_failed("upload", error) from None

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        try:
            at = self._arrays.download(ticket, worker, into)
        except TransferFailed as error:
            raise self._transfer_failed("download", error) from None
        if at != len(into):
            msg = f"expected an array of {len(into)} bytes from worker {worker}, got {at}"
            raise errors.SessionError(msg)

    def _transfer_failed(self, what: str, error: TransferFailed) -> errors.SessionError:
        # When the session is gone its own error says more; it may be on its way.
        if self._ended.wait(2.0):
            return errors.SessionLost(f"the {what} ended with its session")
        return errors.SessionError(f"the {what} of an array failed: {error}")

    # The end ---------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Waits until what was sent has left, then ends; idempotent."""
        self._closing = True
        self._started.set()
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            self._ended.wait(timeout)
            with contextlib.suppress(Exception):
                self._call.cancel()
            reader.join(timeout)
        self._arrays.close()
        self._channel.close()
        # Python may exit right after this, and stops gRPC's threads wherever they are.
        # One that held the call's lock would never give it back, and the destructor
        # of the call waits for that lock: the program would not end.
        self._call_over.wait(timeout)
        for helper in self._helpers - {threading.current_thread()}:
            helper.join(timeout)


def _note_thread(threads: set[threading.Thread], over: threading.Event) -> Callable[[Any], None]:
    """Makes a callback for the end of a call; it runs in gRPC's own thread."""

    def note(_call: Any) -> None:
        threads.add(threading.current_thread())
        over.set()

    return note


def _encode_wish(wish: Wish) -> bytes:
    return controller_pb2.CreateSession(
        protocol=PROTOCOL,
        num_workers=wish.num_workers,
        num_groups=wish.num_groups,
        ccl=wish.ccl,
        name=wish.name,
        timeout_s=wish.timeout,
        owner=wish.owner,
        version=__version__,
    ).SerializeToString()


def _waiting(payload: bytes) -> Waiting:
    queued = controller_pb2.Queued.FromString(payload)
    return Waiting(queued.ahead, queued.total_slots, queued.free_slots)


def _end_error(ended: controller_pb2.SessionEnded, name: str) -> errors.DiscoError:
    """The error of a session that never began."""
    if ended.reason == controller_pb2.END_REASON_NO_SLOTS:
        return errors.NoSlots(
            ended.message,
            total_slots=ended.slots.total_slots,
            free_slots=ended.slots.free_slots,
        )
    if ended.reason == controller_pb2.END_REASON_REFUSED:
        return errors.ConfigError(ended.message)
    return _lost_error(ended, name)


def _lost_error(ended: controller_pb2.SessionEnded, name: str) -> errors.SessionError:
    """The error of a session that ended by itself."""
    if ended.reason in (
        controller_pb2.END_REASON_RANK_LOST,
        controller_pb2.END_REASON_START_FAILED,
    ):
        return errors.worker_lost(
            ended.message,
            worker=ended.worker,
            node=ended.node,
            exit_status=ended.exit_status,
            output=ended.output,
        )
    if ended.reason == controller_pb2.END_REASON_NODE_LOST:
        return errors.NodeLost(ended.message, node=ended.node)
    if ended.reason == controller_pb2.END_REASON_DRAINED:
        return errors.ControllerLost(ended.message)
    if ended.reason == controller_pb2.END_REASON_CLOSED:
        return errors.SessionClosed(f"session {name!r} was shut down")
    return errors.SessionLost(ended.message or f"session {name!r} ended")
