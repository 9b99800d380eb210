"""A session through a controller daemon: its stream, its arrays and one reader thread.

A thread of the stream's carrier pulls encoded batches and sends them; while it is busy the
next batch grows. Envelopes cross it as bytes: they were encoded once and are relayed as
they are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from disco_client import errors
from disco_client.arrays.client import ArrayClient
from disco_client.descriptors import OF_A_CONNECTION, check_descriptors
from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_client.reentry import Event
from disco_client.threads import start_thread
from disco_client.transport.admin import ask_for_inspection, list_cluster
from disco_client.transport.base import (
    ClientEnd,
    Expiry,
    QueuePosition,
    RankPlace,
    TransferFailed,
    TransferRefused,
    Welcome,
    Wish,
)
from disco_client.transport.channel import ReloadingChannel, check_grpc_threads
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.reaching import await_controller
from disco_client.transport.session_stream import SessionStream
from disco_client.wire.limits import WINDOW_COMMANDS

if TYPE_CHECKING:
    from disco_client.tracing.ring_cuts import Since
    from disco_client.wire.reports import Inspection

__all__ = ["GrpcTransport"]

_JOIN_S = 1.0
"""How long the threads of a stream that was broken off may take to end."""

_logger = logger_of(__name__)


class GrpcTransport:
    """One session of a controller; made by :meth:`create` or :meth:`attach`.

    Args:
        address: ``HOST:PORT`` or ``unix:/path``.
        connect_timeout: Seconds to wait for the controller to answer at all.
        credentials: How to reach it.

    Raises:
        AccessDenied: A controller answers there, and one side refuses the other.
        ConfigError: The credentials do not fit, or cannot be read.
        ConnectionFailed: No controller answers there.
        ThreadRefused: The system starts too few threads.
        DescriptorRefused: It opens too few descriptors.
    """

    def __init__(
        self, address: str, connect_timeout: float, credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        check_grpc_threads("the connection of a session")
        check_descriptors(OF_A_CONNECTION, "the connection of a session")
        self._line = ReloadingChannel(address, credentials)
        try:
            self._stream = SessionStream(self._line, address)
        except BaseException:
            self._line.close()
            raise
        self._ended = Event()
        self._error: errors.SessionError | None = None
        self._reader: threading.Thread | None = None
        self._unread: ClientEnd | None = None
        try:
            await_controller(self._line, connect_timeout)
        except BaseException:
            self._stream.close()
            self._line.close()
            raise

    @classmethod
    def create(
        cls,
        address: str,
        wish: Wish,
        *,
        connect_timeout: float,
        on_queued: Callable[[QueuePosition], None],
        on_made: Callable[[GrpcTransport], object] = lambda _made: None,
        credentials: Credentials = NO_CREDENTIALS,
    ) -> Self:
        """Requests a session and waits until its ranks run.

        Args:
            address: ``HOST:PORT`` or ``unix:/path``.
            wish: What to ask for.
            connect_timeout: Seconds to wait for the controller to answer at all.
            on_queued: Called whenever the session's place in the queue changes.
            on_made: Gets it before it waits; :meth:`abandon` ends the wait.
            credentials: How to reach it.

        Raises:
            AccessDenied: The controller refuses this program, or cannot be verified.
            ConnectionFailed: No controller answers there, or it speaks another protocol.
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
            owner: The owner of the attaching program.
            connect_timeout: Seconds to wait for the controller to answer at all.
            credentials: How to reach it.

        Raises:
            AccessDenied: The session belongs to another owner, or as for :meth:`create`.
            ConnectionFailed: No controller answers there, or it speaks another protocol.
            ConfigError: There is no such session, or a program is connected to it.
            SessionLost: The session cannot be continued.
        """
        made = cls(address, connect_timeout, credentials)
        made._begin(lambda: made._stream.attach(name, owner))
        return made

    def _begin(self, opened: Callable[[], tuple[controller_pb2.SessionReady, int]]) -> None:
        try:
            ready, newest = opened()
        except BaseException:
            self._stream.cancel()
            self._stream.close()
            self._line.close()
            self._stream.join(_JOIN_S)
            raise
        addresses = {rank.worker: rank.array_address for rank in ready.ranks}
        credentials = self._line.credentials
        # A channel of its own, because its calls are aborted with the session; inspections may
        # follow afterwards. gRPC shares the connection.
        self._arrays = ArrayClient(
            ReloadingChannel(self._line.address, credentials),
            ready.session,
            ready.transfer_key,
            addresses,
            credentials,
            lambda: self._stream.connected,
        )
        ranks = tuple(
            RankPlace(rank.worker, rank.node, rank.pid, rank.device) for rank in ready.ranks
        )
        self._welcome = Welcome(
            ready.session,
            ready.name,
            ranks,
            newest + 1,
            ready.num_groups,
            ready.ccl,
            ready.window or WINDOW_COMMANDS,
        )

    def abandon(self) -> None:
        """Aborts a wait for the session to begin, from another thread."""
        self._stream.cancel()

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    @property
    def pump(self) -> Self:
        """Lets waiting threads send and, where frames carry the stream, receive by themselves."""
        return self

    @property
    def carrier(self) -> str:
        """What carries the session's stream: ``frames`` or ``grpc``."""
        return self._stream.carrier

    @property
    def draining(self) -> tuple[str, ...]:
        """The session's nodes that take no new sessions, as the controller has said."""
        return self._stream.notices.draining

    @property
    def expiry(self) -> Expiry | None:
        """When a limit of the controller's will end the session."""
        return self._stream.notices.expiry

    def room(self) -> int:
        """Asks the controller how many slots are free on nodes with such devices."""
        kind = self._welcome.ranks[0].device.partition(":")[0]
        nodes = list_cluster(self._line).nodes
        alike = [n for n in nodes if any(each.partition(":")[0] == kind for each in n.devices)]
        return sum(node.free_slots for node in alike if node.state == "ready")

    # The stream --------------------------------------------------------------

    progress = None
    """No worker of another machine can be asked without a command."""

    sends_lone = False
    """The sender's thread takes a lone command, and with it what is issued right after it."""

    def flush(self) -> None:
        """Sends what was issued."""
        self._stream.flush()

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        return self._stream.entered

    def send(self) -> None:
        """Sends what was issued; the reader's thread reads the answer if no other does."""
        self.flush()
        self._stream.attend()

    def wait(self, waiter: threading.Lock, seconds: float) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free."""
        return self._stream.wait(waiter, seconds)

    def start(self, client: ClientEnd) -> None:
        """Starts sending what ``client`` yields and delivering what arrives."""
        reader = threading.Thread(
            target=self._read, args=(client,), name="disco-replies", daemon=True
        )
        self._unread = client
        start_thread(reader, serves=True)
        self._reader, self._unread = reader, None

    def _read(self, client: ClientEnd) -> None:
        error: errors.SessionError
        try:
            error = self._stream.run(client)
        except Exception as broke:
            _logger.exception("the reader of session %s failed", self._welcome.name)
            error = errors.ControllerLost(f"the session's reader failed: {broke!r}")
        self._error = error
        self._ended.set()
        client.lost(error)
        self._stream.cancel()
        self._stream.close()
        # Wakes threads that wait for a daemon; they would not learn of the end otherwise.
        self._arrays.close()

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands, or ends the processes of these workers."""
        self._stream.interrupt(until, workers, force=force)
        return True

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands."""
        self._stream.cancel_commands(commands)

    def check_alive(self) -> None:
        """To be called while a caller waits: makes sure that the session continues or ends."""
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

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Reports arrays that will not arrive, or not completely."""
        self._stream.give_up(uploads, why)

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Reports arrays that will not be downloaded any more."""
        self._stream.decline(downloads)

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
        # If the session has ended, its own error is more precise; it may not have arrived yet.
        if not isinstance(error, TransferRefused) and self._ended.wait(2.0):
            return self._error or errors.SessionLost(f"the {what} ended with its session")
        return errors.SessionError(f"the {what} of an array failed: {error}")

    # The end ---------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Waits until pending messages are sent, then ends; idempotent."""
        self._stream.leave()
        unread, self._unread = self._unread, None
        if unread is not None:  # no thread was there to read; this one learns of the end
            self._read(unread)
        reader = self._reader
        if reader is not None and reader is not threading.current_thread():
            self._ended.wait(timeout)
            self._stream.cancel()
            reader.join(timeout)
        elif reader is None:
            self._stream.close()  # it was never read
        self._arrays.close()
        self._line.close()
        self._stream.join(timeout)
