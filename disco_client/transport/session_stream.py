"""The stream of one session at its controller, and the next one if it broke.

The session outlives its connection for its lease. A client that reconnects sends the
session's id and secret and which replies it has, and each node reports which commands it
has; what is missing on either side is sent again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from disco_client import errors
from disco_client.backoff import Backoff
from disco_client.clock import monotonic
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.reentry import Event
from disco_client.telemetry import spans
from disco_client.threads import ThreadRefused
from disco_client.transport.base import ClientEnd, Expiry, QueuePosition, Wish
from disco_client.transport.carriers import OpenStream, StreamBroken, open_stream
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.endings import error_before, error_of_end
from disco_client.transport.outgoing import Outgoing
from disco_client.transport.received import ReceivedReplies
from disco_client.transport.refusals import why_refused
from disco_client.transport.run_clock import RunClock
from disco_client.transport.stream_reader import StreamReader
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EncodedEnvelope, EncodedReply, EnvelopeKind, envelope
from disco_client.wire.overview import describe_wait, limit_name
from disco_client.wire.printed import LineCounter

__all__ = ["SessionStream"]

_SERVICE = "/disco.v1.SessionService/"
_SILENCE_S = 30.0
"""If a controller sends nothing for this long, no heartbeats either, the client reconnects."""

_ASK_AGAIN_S = 5.0
"""How long a wait lasts before the client asks the nodes for missing messages."""

_LOOK_S = 2.0
"""A waiting thread checks more often; a longer gap means that this process stood still."""

_WORTH_SAYING_S = 1.0
_MAX_WHY = 500

_logger = logger_of(__name__)


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
        self._reader = StreamReader(self._receive)
        self._early: deque[EncodedEnvelope] = deque()
        self._client: ClientEnd | None = None
        # Counts only time with checks: what arrived while no thread ran is not read yet.
        self._clock = RunClock(_LOOK_S)
        self._heard = self._asked = self._clock()
        self._replies = ReceivedReplies(())
        self._lines = LineCounter()
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
                self._replies.numbers[worker] = number
        return self._ready, newest.pop()

    def _begin_count(self) -> None:
        """Begins to count the replies of each worker."""
        self._replies = ReceivedReplies([rank.node for rank in self._ready.ranks])

    def _open(self, first: bytes) -> None:
        for former in self._streams:
            former.close()
        trace = tuple(spans.active_headers().items())
        stream = open_stream(self._line, _SERVICE, first, self._out.stream(first), trace)
        # Other threads look at the last one at any time.
        left = [former for former in self._streams if not former.join(0.0)]
        self._streams = [*left, stream]
        if self._over:  # since it began to be opened
            stream.close()
        self._reader.begin(stream)

    @property
    def carrier(self) -> str:
        """What carries the present stream: ``frames`` or ``grpc``."""
        return self._streams[-1].carrier if self._streams else ""

    def _await_ready(self, name: str, on_queued: Callable[[QueuePosition], None]) -> None:
        """Reads until the session is ready."""
        try:
            for received in self._reader:
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
            for received in self._reader:
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
        self._client = client
        self._reader.start(client)
        self._out.start(client, envelope(EnvelopeKind.CLOSE, session=session))
        while True:
            self._heard = self._clock()
            self.connected = True
            while self._early:
                self._receive(self._early.popleft(), client)
            try:
                ended = self._reader.read_to_end(client)
                why = f"the controller at {self._address} ended the stream"
            except StreamBroken as broke:
                ended, why = None, self._broken(broke)
            self.connected = False
            if ended is None and not self._leaving.is_set():
                ended = self._come_back(why)
            if ended is not None or self._leaving.is_set():
                return ended or errors.SessionClosed(f"session {self._ready.name!r} was shut down")

    def _receive(self, received: EncodedEnvelope, client: ClientEnd) -> errors.SessionError | None:
        """Handles a message; returns the session's end if this is it."""
        self._heard = self._clock()
        kind = received.kind
        if kind == EnvelopeKind.REPLY:
            worker = received.worker_plus_one - 1
            number, payload = received.first_seq, received.payload
            if self._replies.is_next(worker, number):
                client.reply(worker, EncodedReply.FromString(payload))
                # Only now, as the reply is handled again where an exception comes before.
                enough = self._replies.handled(worker, number, len(payload))
                self._asked = self._heard
                if enough:
                    self._out.say(self._received(EnvelopeKind.RECEIVED))
            elif self._replies.opens_gap(worker, number):
                self._ask(worker)
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

    def _received(
        self,
        kind: EnvelopeKind,
        unwanted: Sequence[controller_pb2.Transfer] = (),
        worker: int | None = None,
    ) -> bytes:
        received = controller_pb2.Received(
            replies=self._replies.numbers, given_up=self._still_given_up(), unwanted=unwanted
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

    def flush(self) -> None:
        """Sends what was issued, as far as that need not wait."""
        self._streams[-1].flush()

    def attend(self) -> None:
        """Lets what comes be read though no thread waits for it."""
        self._reader.attend()

    def wait(self, waiter: threading.Lock, seconds: float) -> bool:
        """Sends what was issued, and waits for a lock that a reply will free; whether it has it."""
        return self._reader.wait(waiter, seconds, self.flush)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        return self._reader.entered or self._out.entered() or self._streams[-1].entered

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
