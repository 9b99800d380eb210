"""A session through a controller daemon: its stream, its arrays and one reader thread.

A thread of the stream's carrier pulls encoded batches and sends them; while it is busy the
next batch grows. Envelopes cross it as bytes: they were encoded once and are relayed as
they are.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from disco_client import errors
from disco_client.arrays.client import ArrayClient
from disco_client.backoff import Backoff
from disco_client.clock import monotonic
from disco_client.descriptors import OF_A_CONNECTION, check_descriptors
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.reentry import Condition, Event, owned
from disco_client.telemetry import spans
from disco_client.threads import ThreadRefused, start_thread
from disco_client.transport.admin import ask_for_inspection
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
from disco_client.transport.carriers import (
    SILENCE_S,
    OpenStream,
    PolledStream,
    StreamBroken,
    open_stream,
)
from disco_client.transport.channel import (
    ReloadingChannel,
    await_controller,
    check_grpc_threads,
    why_refused,
)
from disco_client.transport.credentials import NO_CREDENTIALS, Credentials
from disco_client.transport.run_clock import RunClock
from disco_client.transport.shared_reader import READABLE, SharedReader
from disco_client.version import __version__
from disco_client.wire.codec import (
    PROTOCOL,
    EncodedEnvelope,
    EncodedReply,
    EnvelopeKind,
    envelope,
    envelopes_in,
)
from disco_client.wire.limits import WINDOW_COMMANDS
from disco_client.wire.printed import LineCounter
from disco_client.wire.reports import describe_wait, limit_name

if TYPE_CHECKING:
    from disco_client.tracing.ring import Since
    from disco_client.wire.reports import Inspection

__all__ = ["GrpcTransport", "Outgoing", "SessionStream", "error_before", "error_of_end"]


# What a session sends, over one stream after another.
#
# A thread of the carrier takes what there is to send, or a thread of the program that waits for
# an answer. When a stream breaks, its thread may be waiting for commands, and another one takes
# for the next stream; so what is taken is taken for one stream, and an outdated one gets nothing
# more.
#
# The session's log keeps what was sent (:mod:`~disco_client.transport.sent_log`). What a
# worker daemon has not received is sent again.


class Outgoing:
    """Commands in their order, and messages of the transport between them.

    Attributes:
        entered: Says whether the calling thread is in the middle of taking one.
    """

    def __init__(self) -> None:
        self._lock = make_lock("stream")
        self._changed = Condition(self._lock)
        self.entered: Callable[[], bool] = owned(self._lock)
        self._client: ClientEnd | None = None
        self._held = True
        self._turn = 0
        self._said: deque[bytes] = deque()
        self._farewell = b""
        self._parted = False

    def stream(self, first: bytes) -> OutgoingTurn:
        """Returns the envelopes for a new stream; the former one gets nothing more.

        Commands are held back until :meth:`release`.

        Args:
            first: The envelope that begins the stream.
        """
        return OutgoingTurn(self, self._begin(), first)

    def _begin(self) -> int:
        with self._changed:
            self._turn += 1
            self._held = True
            self._parted = False
            self._said.clear()
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()
        return self._turn

    def start(self, client: ClientEnd, farewell: bytes) -> None:
        """Starts sending commands.

        Args:
            client: The source of the commands.
            farewell: The envelope to send after the last of them.
        """
        self._client, self._farewell = client, farewell
        self.release()

    def part_with(self, farewell: bytes) -> None:
        """Changes the envelope to send after the last command."""
        self._farewell = farewell

    def say(self, raw: bytes) -> None:
        """Sends an envelope ahead of waiting commands."""
        with self._lock:
            self._said.append(raw)
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()

    def release(self) -> None:
        """Sends the commands that were held back."""
        with self._changed:
            self._held = False
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends every batch again that goes beyond a command, as far as it is still kept.

        Args:
            seq: The command.
            worker: The worker whose node alone lacks them; None for all nodes.
        """
        if self._client is not None:
            self._client.rewind(seq, worker)
            self._client.nudge()

    def end(self) -> None:
        """Lets the iterator of the present stream end; idempotent."""
        self._begin()

    def nudge(self) -> None:
        """Wakes the thread that waits for commands."""
        if self._client is not None:
            self._client.nudge()

    def await_some(self, turn: int) -> bool:
        """Waits until there may be something to take; False once a stream gets nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: turn != self._turn or self._said or not self._held)
            if turn != self._turn:
                return False
            if self._said or self._client is None:
                return True
        if self._client.await_commands():
            return True
        with self._changed:
            if turn != self._turn or self._parted:
                return False
            self._parted = True
            self._said.append(self._farewell)
            return True

    def take(self, turn: int) -> bytes | None:
        """Returns the next envelope of a stream, the same until it left; None without one."""
        with self._lock:
            if turn != self._turn:
                return None
            if self._said:
                return self._said[0]
            return None if self._held or self._client is None else self._client.next_envelope()

    def left(self, turn: int, raw: bytes) -> None:
        """Notes that an envelope that was taken is on its way."""
        with self._lock:
            if turn != self._turn:
                return
            if self._said and self._said[0] is raw:
                self._said.popleft()
            elif self._client is not None:
                self._client.envelope_left()


class OutgoingTurn:
    """What is sent over one stream; see :class:`~disco_client.transport.carriers.Messages`.

    Args:
        outgoing: What the session sends.
        turn: The number of this stream.
        first: The envelope that begins it.
    """

    def __init__(self, outgoing: Outgoing, turn: int, first: bytes) -> None:
        self._outgoing = outgoing
        self._turn = turn
        self._first: bytes | None = first
        self.nudge: Callable[[], None] = outgoing.nudge

    def wait(self) -> bool:
        """Waits until there may be something to take; False once nothing will follow."""
        if self._first is not None or self._outgoing.await_some(self._turn):
            return True
        self.nudge()  # what woke this thread may have been meant for the next stream's
        return False

    def take(self) -> bytes | None:
        """Returns the next envelope, the same until it left; None where there is none now."""
        return self._outgoing.take(self._turn) if self._first is None else self._first

    def left(self, raw: bytes) -> None:
        """Notes that an envelope that was taken is on its way."""
        if self._first is None:
            self._outgoing.left(self._turn, raw)
        else:
            self._first = None

    def __iter__(self) -> Iterator[bytes]:
        while self.wait():
            while (raw := self.take()) is not None:
                self.left(raw)
                yield raw


# The errors of sessions that ended, from the controller's messages.


def error_before(ended: controller_pb2.SessionEnded, name: str) -> errors.DiscoError:
    """The error of a session that never began."""
    if ended.reason == controller_pb2.END_REASON_QUOTA:
        return errors.QuotaExceeded(
            ended.message,
            quota=ended.quota.name,
            limit=ended.quota.limit,
            used=ended.quota.used,
            sessions=ended.quota.sessions,
            total_slots=ended.slots.total_slots,
            free_slots=ended.slots.free_slots,
        )
    if ended.reason == controller_pb2.END_REASON_NO_SLOTS:
        return errors.NoSlots(
            ended.message,
            total_slots=ended.slots.total_slots,
            free_slots=ended.slots.free_slots,
        )
    if ended.reason == controller_pb2.END_REASON_REFUSED:
        return errors.ConfigError(ended.message)
    return error_of_end(ended, name)


def error_of_end(ended: controller_pb2.SessionEnded, name: str) -> errors.SessionError:
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
    if ended.reason in (controller_pb2.END_REASON_EXPIRED, controller_pb2.END_REASON_IDLE):
        return errors.SessionExpired(
            ended.message, limit=limit_name(ended.reason), limit_s=ended.limit_s
        )
    if ended.reason == controller_pb2.END_REASON_WINDOW:
        return errors.WindowExceeded(ended.message)
    if ended.reason == controller_pb2.END_REASON_DRAINED:
        return errors.ControllerLost(ended.message)
    if ended.reason == controller_pb2.END_REASON_CLOSED:
        return errors.SessionClosed(f"session {name!r} was shut down")
    return errors.SessionLost(ended.message or f"session {name!r} ended")


# The stream of one session at its controller, and the next one if it broke.
#
# The session outlives its connection for its lease. A client that reconnects sends the
# session's id and secret and which replies it has, and each node reports which commands it
# has; what is missing on either side is sent again.


_SERVICE = "/disco.v1.SessionService/"
_SILENCE_S = 30.0
"""If a controller sends nothing for this long, no heartbeats either, the client reconnects."""

_ASK_AGAIN_S = 5.0
"""How long a wait lasts before the client asks the nodes for missing messages."""

_LOOK_S = 2.0
"""A waiting thread checks more often; a longer gap means that this process stood still."""

_JOIN_S = 1.0
"""How long the threads of a stream that was broken off may take to end."""

_WORTH_SAYING_S = 1.0
_RECEIVED_EVERY = 256
_RECEIVED_BYTES = 1 << 20
_MAX_WHY = 500

_logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How reading a stream has ended: with the session's end, an error, or neither.

    Attributes:
        ended: The session's end.
        error: What reading raised.
    """

    ended: errors.SessionError | None = None
    error: Exception | None = None


class SessionStream:
    """Opened once, by :meth:`create` or :meth:`attach`, and then read by :meth:`run`.

    Args:
        line: The channel to the controller.
        address: Its address, for messages.

    Attributes:
        draining: The session's nodes that take no new sessions.
        expiry: When a limit of the controller's will end the session, as far as it was told.
        connected: Whether a stream is there that is read, as far as is known.
    """

    def __init__(self, line: ReloadingChannel, address: str) -> None:
        self._line = line
        self._address = address
        self._out = Outgoing()
        self._streams: list[OpenStream] = []
        self._over = False
        self._incoming: Iterator[EncodedEnvelope] = iter(())
        self._arrived: deque[EncodedEnvelope] = deque()
        self._early: deque[EncodedEnvelope] = deque()
        # At once, as the session would be lost where there is no descriptor for it later.
        self._reader = SharedReader(self._take_in) if hasattr(select, "epoll") else None
        self._source: PolledStream | None = None
        self._client: ClientEnd | None = None
        self._outcome: _Outcome | None = None
        self._runner = 0
        # Counts only time with checks: what arrived while no thread ran is not read yet.
        self._clock = RunClock(_LOOK_S)
        self._heard = self._asked = self._clock()
        self._numbers: list[int] = []
        self._gaps: dict[int, int] = {}
        self._lines = LineCounter()
        self._nodes: list[str] = []
        self._unconfirmed: Counter[int] = Counter()
        self._unconfirmed_bytes: Counter[str] = Counter()
        self._awaited: set[str] = set()
        self._low = 0
        self._leaving = Event()
        self._ready = controller_pb2.SessionReady()
        self._given_up_lock = make_lock()
        self._given_up: list[tuple[int, controller_pb2.Transfer]] = []
        self.draining: tuple[str, ...] = ()
        self.expiry: Expiry | None = None
        self.connected = False

    # Opening ------------------------------------------------------------------------

    def create(
        self, wish: Wish, on_queued: Callable[[QueuePosition], None]
    ) -> controller_pb2.SessionReady:
        """Requests a session and waits until its ranks run.

        Raises:
            ConnectionFailed: The connection broke, or the controller speaks another protocol.
            NoSlots: The cluster had no room in time.
            QuotaExceeded: Its owner may not have it.
            ConfigError: The controller refused the request as wrong.
            SessionLost: A worker process could not be started.
        """
        self._open(envelope(EnvelopeKind.CREATE, _encode_wish(wish)))
        self._await_ready(wish.name, on_queued)
        self._begin_count()
        return self._ready

    def attach(self, name: str, owner: str) -> tuple[controller_pb2.SessionReady, int]:
        """Attaches to a session that another program has left, by its name or id.

        Returns:
            The controller's answer, and the newest command that its ranks have.

        Raises:
            ConnectionFailed: The connection broke, or the controller speaks another protocol.
            ConfigError: There is no such session, or a program is connected to it.
            SessionLost: The session cannot be continued.
        """
        attach = controller_pb2.AttachSession(
            protocol=PROTOCOL, version=__version__, name=name, owner=owner
        )
        self._open(envelope(EnvelopeKind.ATTACH, attach.SerializeToString()))
        self._await_ready(name, lambda _waiting: None)
        self._begin_count()
        self._lines = LineCounter(from_first=False)
        have = self._ask_nodes(name)
        newest = {each.last_seq for each in have}
        if len(newest) > 1:
            msg = (
                f"session {name!r} cannot be gone on with: its former program broke off when"
                " some of its nodes had commands that others have not"
            )
            raise errors.SessionLost(msg)
        for each in have:
            for worker, number in zip(each.workers, each.replies, strict=True):
                self._numbers[worker] = number
        return self._ready, newest.pop()

    def _begin_count(self) -> None:
        """Begins to count the replies of each worker."""
        self._numbers = [0] * len(self._ready.ranks)
        self._nodes = [rank.node for rank in self._ready.ranks]

    def _open(self, first: bytes) -> None:
        for former in self._streams:
            former.close()
        trace = tuple(spans.active_carrier().items())
        stream = open_stream(self._line, _SERVICE, first, self._out.stream(first), trace)
        # Other threads look at the last one at any time.
        left = [former for former in self._streams if not former.join(0.0)]
        self._streams = [*left, stream]
        if self._over:  # since it began to be opened
            stream.close()
        self._arrived.clear()
        self._incoming = self._each(stream)

    def _each(self, stream: OpenStream) -> Iterator[EncodedEnvelope]:
        for raw in stream:
            self._arrived.extend(each for _, each in envelopes_in(raw))
            while self._arrived:
                yield self._arrived.popleft()

    @property
    def carrier(self) -> str:
        """What carries the present stream: ``frames`` or ``grpc``."""
        return self._streams[-1].carrier if self._streams else ""

    def _await_ready(self, name: str, on_queued: Callable[[QueuePosition], None]) -> None:
        """Reads until the session is ready."""
        try:
            for received in self._incoming:
                if received.kind == EnvelopeKind.QUEUED:
                    queued = controller_pb2.Queued.FromString(received.payload)
                    on_queued(_position(queued))
                elif received.kind == EnvelopeKind.READY:
                    self._ready = controller_pb2.SessionReady.FromString(received.payload)
                    self.draining = ()  # those that do are told again
                    return
                elif received.kind == EnvelopeKind.LOG:
                    self._early.append(received)  # what ranks print as they start
                elif received.kind == EnvelopeKind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
                elif received.kind == EnvelopeKind.REFUSED:
                    raise _refusal(node_pb2.Refused.FromString(received.payload))
        except StreamBroken as error:
            raise error.refused or errors.ConnectionFailed(self._broken(error)) from None
        msg = f"the controller at {self._address} ended the session before it was ready"
        raise errors.ConnectionFailed(msg)

    def _ask_nodes(self, name: str) -> list[controller_pb2.Have]:
        """Asks the nodes which commands of a session they have, after attaching to it."""
        self._out.say(envelope(EnvelopeKind.RESUME, session=self._ready.session))
        nodes = {rank.node for rank in self._ready.ranks}
        have: dict[str, controller_pb2.Have] = {}
        try:
            for received in self._incoming:
                if received.kind == EnvelopeKind.HAVE:
                    told = controller_pb2.Have.FromString(received.payload)
                    have[told.node] = told
                    if set(have) >= nodes:
                        return list(have.values())
                elif received.kind == EnvelopeKind.CORDON:
                    self._note_draining(received)
                elif received.kind == EnvelopeKind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
        except StreamBroken as error:
            raise errors.ConnectionFailed(self._broken(error)) from None
        msg = f"the controller at {self._address} ended the stream"
        raise errors.ConnectionFailed(msg)

    def _broken(self, error: StreamBroken) -> str:
        return f"the connection to the controller at {self._address} broke: {error}"

    # Receiving -------------------------------------------------------------------------

    def run(self, client: ClientEnd) -> errors.SessionError:
        """Sends and delivers until the session is over; says how it ended."""
        session = self._ready.session
        self._runner = threading.get_ident()
        self._client = client
        if self._reader is not None:
            self._reader.unattended = lambda: client.unattended
        self._out.start(client, envelope(EnvelopeKind.CLOSE, session=session))
        while True:
            self._heard = self._clock()
            self.connected = True
            while self._early:
                self._receive(self._early.popleft(), client)
            try:
                ended = self._read_to_end(client)
                why = f"the controller at {self._address} ended the stream"
            except StreamBroken as broke:
                ended, why = None, self._broken(broke)
            self.connected = False
            if ended is None and not self._leaving.is_set():
                ended = self._come_back(why)
            if ended is not None or self._leaving.is_set():
                return ended or errors.SessionClosed(f"session {self._ready.name!r} was shut down")

    def _read_to_end(self, client: ClientEnd) -> errors.SessionError | None:
        """Reads one stream to its end; returns the session's end if it came."""
        source = self._streams[-1].polled
        if self._reader is None or source is None:
            return next(
                filter(None, (self._receive(each, client) for each in self._incoming)), None
            )
        while self._arrived:
            if (ended := self._receive(self._arrived.popleft(), client)) is not None:
                return ended
        self._outcome, self._source = None, source
        self._reader.replies.register(source.fileno(), READABLE)
        self._reader.read()  # what came before it was registered
        while (outcome := self._outcome) is None:
            self._reader.keep(SILENCE_S / 4)
            if source.is_silent:
                self._reader.read()
        if outcome.error is not None:
            raise outcome.error
        return outcome.ended

    def _take_in(self, _ready: list[tuple[int, int]]) -> None:
        """Handles what has come; one thread at a time calls it, maybe one of the program."""
        source, client = self._source, self._client
        if source is None or client is None:
            return
        outcome = None
        try:
            goes_on = source.receive()
            while source.arrived:  # also what a thread that was interrupted has left
                for _, each in envelopes_in(source.arrived[0]):
                    if (ended := self._receive(each, client)) is not None:
                        outcome = _Outcome(ended)
                source.arrived.popleft()
            if not goes_on:
                outcome = outcome or _Outcome()
        except StreamBroken as error:
            outcome = _Outcome(error=error)
        except Exception as error:
            if threading.get_ident() != self._runner:
                raise  # perhaps of a signal handler; if not, the reader's thread meets it again
            outcome = _Outcome(error=error)
        if outcome is not None and self._reader is not None:
            self._source = None
            self._outcome = outcome
            with contextlib.suppress(OSError, ValueError):
                self._reader.replies.unregister(source.fileno())
            self._reader.wake()

    def _receive(self, received: EncodedEnvelope, client: ClientEnd) -> errors.SessionError | None:
        """Handles a message; returns the session's end if this is it."""
        self._heard = self._clock()
        kind = received.kind
        if kind == EnvelopeKind.REPLY:
            worker = received.worker_plus_one - 1
            if self._is_next(received):
                client.reply(worker, EncodedReply.FromString(received.payload))
                # Only now, as the reply is handled again where an exception comes before.
                self._numbers[worker] = received.first_seq
                self._asked = self._heard
                self._confirm(worker, len(received.payload))
        elif kind == EnvelopeKind.LOG:
            self._printed(controller_pb2.LogLines.FromString(received.payload), client)
        elif kind == EnvelopeKind.CORDON:
            self._note_draining(received)
        elif kind == EnvelopeKind.HAVE:
            self._have(controller_pb2.Have.FromString(received.payload))
        elif kind == EnvelopeKind.EXPIRING:
            self._note_expiring(controller_pb2.SessionExpiring.FromString(received.payload))
        elif kind == EnvelopeKind.ENDED:
            ended = controller_pb2.SessionEnded.FromString(received.payload)
            return error_of_end(ended, self._ready.name)
        return None

    def _note_expiring(self, told: controller_pb2.SessionExpiring) -> None:
        """Notes when a limit ends the session, or that none will soon."""
        if not told.reason:
            self.expiry = None
            return
        at = monotonic() + told.seconds
        # Logged first, so that a program that sees it can rely on the log.
        _logger.warning("%s", told.message)
        self.expiry = Expiry(limit_name(told.reason), told.limit_s, at)

    def _note_draining(self, received: EncodedEnvelope) -> None:
        """Notes that the node of a worker takes no new sessions, or takes them again."""
        worker = received.worker_plus_one - 1
        nodes = [rank.node for rank in self._ready.ranks if rank.worker == worker]
        known = dict.fromkeys((*self.draining, *nodes))
        if controller_pb2.Cordon.FromString(received.payload).lifted:
            known = dict.fromkeys(node for node in known if node not in nodes)
        self.draining = tuple(known)

    def _printed(self, said: controller_pb2.LogLines, client: ClientEnd) -> None:
        lines = self._lines.receive(said.worker, said.first, said.lines)
        if lines:
            client.printed(said.worker, said.node, said.stderr, lines)

    def _is_next(self, received: envelope_pb2.Envelope) -> bool:
        """Whether a reply is the next one; if not, requests the missing ones."""
        worker, number = received.worker_plus_one - 1, received.first_seq
        expected = self._numbers[worker] + 1
        if number == expected:
            return True
        if number > expected and self._gaps.get(worker) != expected:
            self._gaps[worker] = expected
            self._ask(worker)
        return False

    def _confirm(self, worker: int, nbytes: int) -> None:
        """Acknowledges replies to the nodes now and then, so that they need not keep them.

        When is a matter of one worker, and of its node: the numbers of all go to every node.
        """
        node = self._nodes[worker]
        self._unconfirmed[worker] += 1
        self._unconfirmed_bytes[node] += nbytes
        enough = self._unconfirmed[worker] >= _RECEIVED_EVERY
        if enough or self._unconfirmed_bytes[node] >= _RECEIVED_BYTES:
            self._unconfirmed.clear()
            self._unconfirmed_bytes.clear()
            self._out.say(self._received(EnvelopeKind.RECEIVED))

    def _received(
        self,
        kind: EnvelopeKind,
        unwanted: Sequence[controller_pb2.Transfer] = (),
        worker: int | None = None,
    ) -> bytes:
        received = controller_pb2.Received(
            replies=self._numbers, given_up=self._still_given_up(), unwanted=unwanted
        )
        raw = received.SerializeToString()
        return envelope(kind, raw, session=self._ready.session, worker=worker)

    # Arrays that will not be transferred -----------------------------------------------------

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str) -> None:
        """Reports arrays that will not arrive, until no worker can wait for them.

        It is sent over this stream, so no descriptor or thread is needed for it.

        Args:
            uploads: The ticket and the worker of each.
            why: The reason for the workers.
        """
        error = f"the upload was broken off: {why}" if why else "the upload was broken off"
        issued = self._client.issued if self._client is not None else 0
        with self._given_up_lock:
            self._given_up += [
                (issued, controller_pb2.Transfer(ticket=t, worker=w, error=error[:_MAX_WHY]))
                for t, w in uploads
            ]
        self._out.say(self._received(EnvelopeKind.RECEIVED))

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Reports arrays, by ticket and worker, that will not be downloaded any more."""
        unwanted = [controller_pb2.Transfer(ticket=t, worker=w) for t, w in downloads]
        self._out.say(self._received(EnvelopeKind.RECEIVED, unwanted))

    def _still_given_up(self) -> list[controller_pb2.Transfer]:
        """Those that a worker may not know of yet; the others are past their commands."""
        if not self._given_up or self._client is None:
            return []
        acked = self._client.acked
        with self._given_up_lock:
            # A report is acknowledged with the commands that wait for its arrays.
            self._given_up = [each for each in self._given_up if each[0] > acked]
            return [transfer for _, transfer in self._given_up]

    # What nodes have -------------------------------------------------------------------------

    def _have(self, have: controller_pb2.Have) -> None:
        """Sends again what a node has not received, to that node alone."""
        if have.node not in self._awaited:
            worker = next(iter(have.workers), None)
            self._out.rewind(have.last_seq, worker)
            if self._given_up:
                self._out.say(self._received(EnvelopeKind.RECEIVED, worker=worker))
            return
        self._awaited.discard(have.node)
        self._low = min(self._low, have.last_seq)
        if not self._awaited:
            self._out.rewind(self._low)
            self._out.release()

    # In threads of the program ---------------------------------------------------------------

    def flush(self) -> Callable[[], bool] | None:
        """Sends what was issued, as far as that need not wait."""
        self._streams[-1].flush()
        return None

    def attend(self) -> None:
        """Lets what comes be read though no thread waits for it."""
        if self._reader is not None:
            self._reader.attend()

    def wait(self, waiter: threading.Lock, seconds: float) -> bool:
        """Sends what was issued, and waits for a lock that a reply will free; whether it has it."""
        if self._reader is None or self._source is None:
            self.flush()
            return waiter.acquire(timeout=seconds)
        return self._reader.wait(waiter, seconds, self.flush)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        reading = self._reader is not None and self._reader.entered
        return reading or self._out.entered() or self._streams[-1].entered

    # Reconnecting --------------------------------------------------------------------------

    def _come_back(self, why: str) -> errors.SessionError | None:
        """Attaches to the session again; returns the error if it cannot, or None."""
        self._streams[-1].close()
        with self._clock.turning():
            return self._try_to_come_back(why)

    def _try_to_come_back(self, why: str) -> errors.SessionError | None:
        lease = self._ready.lease_s
        began, said, backoff = self._clock(), False, Backoff()
        refused: str | None = None
        while not self._leaving.is_set():
            away = self._clock.turn() - began
            if away > lease:
                refused = refused or why_refused(self._address, self._line.credentials)
                last = f": {refused}" if refused else ""
                msg = f"{why}; it did not come back within {lease:g} s{last}"
                return errors.ControllerLost(msg)
            if away > _WORTH_SAYING_S and not said:
                said = True
                _logger.warning(
                    "session %s: %s; trying again for %.0f s", self._ready.name, why, lease
                )
            ended = self._reattach()
            if ended is None:
                if said:
                    _logger.warning("session %s goes on after %.1f s", self._ready.name, away)
                return None
            if not isinstance(ended, errors.ConnectionFailed | ThreadRefused):
                return ended
            # Certificates and tokens may be replaced on one side before the other, and threads end.
            told = isinstance(ended, errors.AccessDenied | ThreadRefused)
            refused = str(ended) if told else None
            self._leaving.wait(backoff.pause())
            self._line.renew()
        return errors.SessionClosed(f"session {self._ready.name!r} was shut down")

    def _reattach(self) -> errors.SessionError | errors.ConnectionFailed | None:
        """One attempt; returns its error, None when the session continues."""
        ready = self._ready
        attach = controller_pb2.AttachSession(
            protocol=PROTOCOL,
            version=__version__,
            session=ready.session,
            transfer_key=ready.transfer_key,
        )
        try:
            self._open(envelope(EnvelopeKind.ATTACH, attach.SerializeToString()))
            self._await_ready(ready.name, lambda _waiting: None)
        except (errors.ConnectionFailed, errors.SessionError) as error:
            return error
        except errors.DiscoError as error:
            return errors.SessionLost(str(error))
        self._awaited = {rank.node for rank in ready.ranks}
        self._low = 1 << 62
        self._ask()
        return None

    def _ask(self, worker: int | None = None) -> None:
        """Asks the nodes, or that of one worker, for missing messages."""
        self._asked = self._clock()
        self._out.say(self._received(EnvelopeKind.RESUME, worker=worker))

    def check(self) -> None:
        """To be called each second or so while a caller waits; repairs what it can.

        Aborts a silent connection, and requests messages that were lost.
        """
        now = self._clock.turn()
        if now - self._heard > _SILENCE_S:
            self._heard = now
            self._streams[-1].close()
        elif now - self._asked > _ASK_AGAIN_S:
            self._ask()

    # The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends waits of threads that read; no thread calls :meth:`run` any more."""
        if self._reader is not None:
            self._reader.close()

    def leave(self) -> None:
        """Lets :meth:`run` end when the controller ends the stream, or it breaks."""
        self._leaving.set()
        self.attend()  # no thread of the program waits for the end of the stream

    def detach(self, lease: float) -> None:
        """Leaves the session as it is when the commands have been sent."""
        wish = controller_pb2.DetachSession(lease_s=lease).SerializeToString()
        self._out.part_with(envelope(EnvelopeKind.DETACH, wish, session=self._ready.session))
        self.attend()

    def cancel(self) -> None:
        """Breaks the present stream off; idempotent."""
        self._over = True
        self._out.end()
        for stream in self._streams:
            stream.close()

    def join(self, timeout: float) -> None:
        """Waits until no thread is left of its streams."""
        deadline = monotonic() + timeout
        for stream in self._streams:
            stream.join(max(0.0, deadline - monotonic()))

    def disown(self) -> None:
        """Closes a forked child's copies of descriptors."""
        for stream in self._streams:
            stream.disown()
        if self._reader is not None:
            self._reader.disown()


def _refusal(refused: node_pb2.Refused) -> errors.DiscoError:
    kind = errors.AccessDenied if refused.denied else errors.ConnectionFailed
    return kind(refused.message)


def _position(queued: controller_pb2.Queued) -> QueuePosition:
    reason = "; ".join(filter(None, (describe_wait(queued), queued.held_by_lost)))
    return QueuePosition(queued.ahead, queued.total_slots, queued.free_slots, reason)


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
        priority=wish.priority,
    ).SerializeToString()


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
        return self._stream.draining

    @property
    def expiry(self) -> Expiry | None:
        """When a limit of the controller's will end the session."""
        return self._stream.expiry

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

    def disown(self) -> None:
        """Closes a forked child's copies of what is not gRPC's own."""
        self._stream.disown()
        self._arrays.disown()
