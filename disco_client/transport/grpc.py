"""A session through a controller daemon: its stream, its arrays and one reader thread.

gRPC's own thread pulls encoded batches and sends them; while it is busy the next
batch grows. Envelopes cross gRPC as bytes: they were encoded once and are relayed as
they are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Self

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.array_client import ArrayClient
from disco_client.transport.base import Events, RankPlace, Waiting, Welcome, Wish
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.doors import TransferFailed
from disco_client.transport.inspecting import ask_for_inspection
from disco_client.transport.line import Line
from disco_client.transport.reaching import await_controller
from disco_client.transport.stream import SessionStream
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection

__all__ = ["GrpcTransport"]

_logger = logging.getLogger(__name__)


class GrpcTransport:
    """One session of a controller; made by :meth:`create` or :meth:`attach`.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        connect_timeout: Seconds to wait for the controller to answer at all.
        credentials: How to reach it.

    Raises:
        AccessDenied: Somebody answers there, and one of both refuses the other.
        ConfigError: The credentials do not fit, or cannot be read.
        ConnectionFailed: Nobody answers there.
    """

    def __init__(
        self, address: str, connect_timeout: float, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        self._line = Line(address, credentials)
        self._stream = SessionStream(self._line, address)
        self._ended = threading.Event()
        self._error: errors.SessionError | None = None
        self._reader: threading.Thread | None = None
        try:
            await_controller(self._line, connect_timeout)
        except BaseException:
            self._line.close()
            raise

    @classmethod
    def create(
        cls,
        address: str,
        wish: Wish,
        *,
        connect_timeout: float,
        on_queued: Callable[[Waiting], None],
        on_made: Callable[[GrpcTransport], object] = lambda _made: None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> Self:
        """Asks for a session and waits until its ranks run.

        Args:
            address: ``HOST:PORT`` or ``unix:/path``.
            wish: What to ask for.
            connect_timeout: Seconds to wait for the controller to answer at all.
            on_queued: Told whenever the session's place in the queue changes.
            on_made: Gets it before it waits; :meth:`abandon` ends the wait.
            credentials: How to reach it.

        Raises:
            AccessDenied: This program may not, or the controller is not the right one.
            ConnectionFailed: Nobody answers there, or speaks another protocol.
            NoSlots: The cluster had no room in time.
            ConfigError: The controller refused the request as wrong.
            SessionLost: A worker process could not be started.
        """
        made = cls(address, connect_timeout, credentials)
        on_made(made)
        made._begin(lambda: (made._stream.create(wish, on_queued), 0))
        return made

    @classmethod
    def attach(
        cls,
        address: str,
        name: str,
        owner: str,
        *,
        connect_timeout: float,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> Self:
        """Attaches to a session that another program has left.

        Args:
            address: ``HOST:PORT`` or ``unix:/path``.
            name: The session's name or id.
            owner: Who attaches.
            connect_timeout: Seconds to wait for the controller to answer at all.
            credentials: How to reach it.

        Raises:
            AccessDenied: The session is somebody else's, or as for :meth:`create`.
            ConnectionFailed: Nobody answers there, or speaks another protocol.
            ConfigError: There is no such session, or somebody uses it.
            SessionLost: The session cannot be gone on with.
        """
        made = cls(address, connect_timeout, credentials)
        made._begin(lambda: made._stream.attach(name, owner))
        return made

    def _begin(self, opened: Callable[[], tuple[controller_pb2.SessionReady, int]]) -> None:
        try:
            ready, newest = opened()
        except BaseException:
            self._stream.cancel()
            self._line.close()
            raise
        doors = {rank.worker: rank.array_address for rank in ready.ranks}
        credentials = self._line.credentials
        # A channel of its own, because what goes through it is broken off with the session;
        # what the ranks did may be asked for afterwards. gRPC shares the connection.
        relay = Line(self._line.address, credentials)
        self._arrays = ArrayClient(relay, ready.session, ready.transfer_key, doors, credentials)
        ranks = tuple(
            RankPlace(rank.worker, rank.node, rank.pid, rank.device) for rank in ready.ranks
        )
        self._welcome = Welcome(
            ready.session, ready.name, ranks, newest + 1, ready.num_groups, ready.ccl
        )

    def abandon(self) -> None:
        """Breaks off a wait for the session to begin, from another thread."""
        self._stream.cancel()

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    @property
    def pump(self) -> None:
        """None: gRPC has threads of its own that send and receive."""
        return None

    # The stream --------------------------------------------------------------

    def start(self, events: Events) -> None:
        """Begins to send what ``events`` yields and to deliver what comes."""
        self._reader = threading.Thread(
            target=self._read, args=(events,), name="disco-replies", daemon=True
        )
        self._reader.start()

    def _read(self, events: Events) -> None:
        error: errors.SessionError
        try:
            error = self._stream.run(events)
        except Exception as broke:
            _logger.exception("the reader of session %s failed", self._welcome.name)
            error = errors.ControllerLost(f"the session's reader failed: {broke!r}")
        self._error = error
        self._ended.set()
        events.lost(error)
        self._stream.cancel()
        # Whoever waits for a daemon in another thread would not learn of it.
        self._arrays.close()

    def check_alive(self) -> None:
        """To be called while somebody waits: sees to it that the session goes on or ends."""
        if not self._ended.is_set():
            self._stream.check()

    def check_detachable(self) -> None:
        """Does nothing: a controller daemon keeps the session."""

    def detach(self, lease: float) -> None:
        """Lets :meth:`close` leave the session as it is, for others to attach."""
        self._stream.detach(lease)

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Asks the controller what the ranks do, or did before the session ended."""
        session = f"{self._welcome.session:016x}"
        return ask_for_inspection(self._line, session, stacks=stacks, flights=flights, since=since)

    # Arrays --------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        try:
            self._arrays.upload(ticket, worker, data)
        except TransferFailed as error:
            raise self._transfer_failed("upload", error) from None

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Says of arrays that no upload of them will begin."""
        self._arrays.give_up(uploads)

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
            return self._error or errors.SessionLost(f"the {what} ended with its session")
        return errors.SessionError(f"the {what} of an array failed: {error}")

    # The end ---------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Waits until what was sent has left, then ends; idempotent."""
        self._stream.leave()
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            self._ended.wait(timeout)
            self._stream.cancel()
            reader.join(timeout)
        self._arrays.close()
        self._line.close()
        self._stream.join(timeout)
