"""The stream of one session at its controller, and the next one if it broke.

The session outlives its connection for its lease. A client that reconnects sends the
session's id and secret and which replies it has, and each node reports which commands it
has; what is missing on either side is sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from disco_client import errors
from disco_client.backoff import Backoff
from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_client.reentry import Event
from disco_client.threads import ThreadRefused
from disco_client.transport.attachment import Attachment
from disco_client.transport.base import AskedInterrupt, ClientEnd, QueuePosition, Wish
from disco_client.transport.carriers import StreamBroken
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.endings import error_before, error_of_end
from disco_client.transport.notices import Notices
from disco_client.transport.received import ReceivedReplies
from disco_client.transport.reminders import Reminders
from disco_client.transport.run_clock import RunClock
from disco_client.transport.stream_reader import StreamReader
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EncodedEnvelope, EncodedReply, EnvelopeKind, envelope
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

_logger = logger_of(__name__)


class SessionStream:
    """Opened once, by :meth:`create` or :meth:`attach`, and then read by :meth:`run`.

    Args:
        line: The channel to the controller.
        address: Its address, for messages.

    Attributes:
        notices: What the controller says of the session.
        connected: Whether a stream is there that is read, as far as is known.
    """

    def __init__(self, line: ReloadingChannel, address: str) -> None:
        self._reader = StreamReader(self._receive)
        self._at = Attachment(line, address, self._reader)
        self._client: ClientEnd | None = None
        # Counts only time with checks: what arrived while no thread ran is not read yet.
        self._clock = RunClock(_LOOK_S)
        self._heard = self._asked = self._clock()
        self._replies = ReceivedReplies(())
        self._lines = LineCounter()
        self._awaited: set[str] = set()
        self._low = 0
        self._leaving = Event()
        self._reminders = Reminders()
        self.notices = Notices()
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
        self._at.open(envelope(EnvelopeKind.CREATE, _encode_wish(wish)), wish.name, on_queued)
        self._begin_count()
        return self._at.ready

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
        self._at.open(envelope(EnvelopeKind.ATTACH, attach.SerializeToString()), name)
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
        return self._at.ready, newest.pop()

    @property
    def carrier(self) -> str:
        """What carries the present stream: ``frames`` or ``grpc``."""
        return self._at.carrier

    def _begin_count(self) -> None:
        """Begins to count the replies of each worker."""
        self._replies = ReceivedReplies([rank.node for rank in self._at.ready.ranks])

    def _ask_nodes(self, name: str) -> list[controller_pb2.Have]:
        """Asks the nodes which commands of a session they have, after attaching to it."""
        self._at.out.say(envelope(EnvelopeKind.RESUME, session=self._at.ready.session))
        nodes = {rank.node for rank in self._at.ready.ranks}
        have: dict[str, controller_pb2.Have] = {}
        try:
            for received in self._reader:
                if received.kind == EnvelopeKind.HAVE:
                    told = controller_pb2.Have.FromString(received.payload)
                    have[told.node] = told
                    if set(have) >= nodes:
                        return list(have.values())
                elif received.kind == EnvelopeKind.CORDON:
                    self.notices.note_draining(received, self._at.ready)
                elif received.kind == EnvelopeKind.ENDED:
                    ended = controller_pb2.SessionEnded.FromString(received.payload)
                    raise error_before(ended, name)
        except StreamBroken as error:
            raise errors.ConnectionFailed(self._at.broken(error)) from None
        raise errors.ConnectionFailed(self._at.ended)

    # Receiving -------------------------------------------------------------------------

    def run(self, client: ClientEnd) -> errors.SessionError:
        """Sends and delivers until the session is over; says how it ended."""
        session = self._at.ready.session
        self._client = client
        self._reader.start(client)
        self._at.out.start(client, envelope(EnvelopeKind.CLOSE, session=session))
        while True:
            self._heard = self._clock()
            self.connected = True
            while self._at.early:
                self._receive(self._at.early.popleft(), client)
            try:
                ended, why = self._reader.read_to_end(client), self._at.ended
            except StreamBroken as broke:
                ended, why = None, self._at.broken(broke)
            self.connected = False
            if ended is None and not self._leaving.is_set():
                ended = self._come_back(why)
            if ended is not None or self._leaving.is_set():
                return ended or errors.SessionClosed(
                    f"session {self._at.ready.name!r} was shut down"
                )

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
                    self._at.out.say(self._received(EnvelopeKind.RECEIVED))
            elif self._replies.opens_gap(worker, number):
                self._ask(worker)
        elif kind == EnvelopeKind.LOG:
            self._printed(controller_pb2.LogLines.FromString(received.payload), client)
        elif kind == EnvelopeKind.CORDON:
            self.notices.note_draining(received, self._at.ready)
        elif kind == EnvelopeKind.HAVE:
            self._have(controller_pb2.Have.FromString(received.payload))
        elif kind == EnvelopeKind.INTERRUPT:
            self._interrupt_asked(controller_pb2.InterruptAsked.FromString(received.payload))
        elif kind == EnvelopeKind.EXPIRING:
            self.notices.note_expiring(controller_pb2.SessionExpiring.FromString(received.payload))
        elif kind == EnvelopeKind.ENDED:
            ended = controller_pb2.SessionEnded.FromString(received.payload)
            return error_of_end(ended, self._at.ready.name)
        return None

    def _interrupt_asked(self, asked: controller_pb2.InterruptAsked) -> None:
        def answer(late: Sequence[int]) -> None:
            done = controller_pb2.InterruptDone(question=asked.question, late=late)
            raw = done.SerializeToString()
            self._at.out.say(envelope(EnvelopeKind.INTERRUPT, raw, session=self._at.ready.session))

        if self._client is not None:
            self._client.interrupt_asked(
                AskedInterrupt(asked.who, asked.grace_s, asked.force, answer)
            )

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
        # Before it delivers anything, no worker waits for an upload.
        acked = 0 if self._client is None else self._client.acked
        received = controller_pb2.Received(replies=self._replies.numbers, unwanted=unwanted)
        received.MergeFrom(self._reminders.still(acked))
        raw = received.SerializeToString()
        return envelope(kind, raw, session=self._at.ready.session, worker=worker)

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool) -> None:
        """Interrupts commands, until no worker can be in one of them.

        It goes ahead of commands that wait to be sent, and is said again over the next connection.

        Args:
            until: The last of them.
            workers: Who also ends the one that it executes.
            force: The processes of these workers are ended instead.
        """
        self._reminders.interrupt(until, workers, force=force)
        self._at.out.say(self._received(EnvelopeKind.RECEIVED))

    def cancel_commands(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands, as :meth:`interrupt` does; each until no worker can be in it.

        Args:
            commands: The first and the last of each run of them.
        """
        self._reminders.cancel(commands)
        self._at.out.say(self._received(EnvelopeKind.RECEIVED))

    # Arrays that will not be transferred -----------------------------------------------------

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str) -> None:
        """Reports arrays that will not arrive, until no worker can wait for them.

        Args:
            uploads: The ticket and the worker of each.
            why: The reason for the workers.
        """
        issued = self._client.issued if self._client is not None else 0
        self._reminders.give_up(uploads, why, issued)
        self._at.out.say(self._received(EnvelopeKind.RECEIVED))

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Reports arrays, by ticket and worker, that will not be downloaded any more."""
        unwanted = [controller_pb2.Transfer(ticket=t, worker=w) for t, w in downloads]
        self._at.out.say(self._received(EnvelopeKind.RECEIVED, unwanted))

    # What nodes have -------------------------------------------------------------------------

    def _have(self, have: controller_pb2.Have) -> None:
        """Sends again what a node has not received, to that node alone."""
        if have.node not in self._awaited:
            worker = next(iter(have.workers), None)
            self._at.out.rewind(have.last_seq, worker)
            if self._reminders:
                self._at.out.say(self._received(EnvelopeKind.RECEIVED, worker=worker))
            return
        self._awaited.discard(have.node)
        self._low = min(self._low, have.last_seq)
        if not self._awaited:
            self._at.out.rewind(self._low)
            self._at.out.release()

    # In threads of the program ---------------------------------------------------------------

    def flush(self) -> None:
        """Sends what was issued, as far as that need not wait."""
        self._at.flush()

    def attend(self) -> None:
        """Lets what comes be read though no thread waits for it."""
        self._reader.attend()

    def wait(self, waiter: threading.Lock, seconds: float) -> bool:
        """Sends what was issued, and waits for a lock that a reply will free; whether it has it."""
        return self._reader.wait(waiter, seconds, self.flush)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        return self._reader.entered or self._at.entered

    # Reconnecting --------------------------------------------------------------------------

    def _come_back(self, why: str) -> errors.SessionError | None:
        """Attaches to the session again; returns the error if it cannot, or None."""
        self._at.break_off()
        with self._clock.turning():
            return self._try_to_come_back(why)

    def _try_to_come_back(self, why: str) -> errors.SessionError | None:
        lease = self._at.ready.lease_s
        began, said, backoff = self._clock(), False, Backoff()
        refused: str | None = None
        while not self._leaving.is_set():
            away = self._clock.turn() - began
            if away > lease:
                refused = refused or self._at.why_refused()
                last = f": {refused}" if refused else ""
                msg = f"{why}; it did not come back within {lease:g} s{last}"
                return errors.ControllerLost(msg)
            if away > _WORTH_SAYING_S and not said:
                said = True
                _logger.warning(
                    "session %s: %s; trying again for %.0f s", self._at.ready.name, why, lease
                )
            ended = self._reattach()
            if ended is None:
                if said:
                    _logger.warning("session %s goes on after %.1f s", self._at.ready.name, away)
                return None
            if not isinstance(ended, errors.ConnectionFailed | ThreadRefused):
                return ended
            # Certificates and tokens may be replaced on one side before the other, and threads end.
            told = isinstance(ended, errors.AccessDenied | ThreadRefused)
            refused = str(ended) if told else None
            self._leaving.wait(backoff.pause())
            self._at.renew()
        return errors.SessionClosed(f"session {self._at.ready.name!r} was shut down")

    def _reattach(self) -> errors.SessionError | errors.ConnectionFailed | None:
        """One attempt; returns its error, None when the session continues."""
        ready = self._at.ready
        attach = controller_pb2.AttachSession(
            protocol=PROTOCOL,
            version=__version__,
            session=ready.session,
            transfer_key=ready.transfer_key,
        )
        try:
            self._at.open(envelope(EnvelopeKind.ATTACH, attach.SerializeToString()), ready.name)
        except (errors.ConnectionFailed, errors.SessionError) as error:
            return error
        except errors.DiscoError as error:
            return errors.SessionLost(str(error))
        self.notices.draining = ()  # those that do are told again
        self._awaited = {rank.node for rank in ready.ranks}
        self._low = 1 << 62
        self._ask()
        return None

    def _ask(self, worker: int | None = None) -> None:
        """Asks the nodes, or that of one worker, for missing messages."""
        self._asked = self._clock()
        self._at.out.say(self._received(EnvelopeKind.RESUME, worker=worker))

    def check(self) -> None:
        """To be called each second or so while a caller waits; repairs what it can.

        Aborts a silent connection, and requests messages that were lost.
        """
        now = self._clock.turn()
        if now - self._heard > _SILENCE_S:
            self._heard = now
            self._at.break_off()
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
        self._at.out.part_with(envelope(EnvelopeKind.DETACH, wish, session=self._at.ready.session))
        self.attend()

    def cancel(self) -> None:
        """Breaks the present stream off; idempotent."""
        self._at.cancel()

    def join(self, timeout: float) -> None:
        """Waits until no thread is left of its streams."""
        self._at.join(timeout)


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
        most_workers=wish.most_workers,
        secrets=wish.secrets,
    ).SerializeToString()
