"""The client's end of a session: the commands that leave it, and where what comes goes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from disco_client.command_log import CommandLog
from disco_client.errors import RemoteFailure, SessionClosed, SessionError
from disco_client.locks import make_lock
from disco_client.output import LogSink
from disco_client.replies import Inbox
from disco_client.threads import is_helper
from disco_client.transport.base import AskedInterrupt, Transport, Welcome
from disco_client.transport.sent_log import SentLog
from disco_client.waiting import LongWaits
from disco_client.wire.batch import OutgoingBatch
from disco_client.wire.codec import EncodedReply

__all__ = ["Conversation"]


class Conversation:
    """What a session and its workers say to each other; see :class:`ClientEnd` for transports.

    It does not know the session that has it, which ends when nothing refers to it.

    Args:
        welcome: Which session it is.
        explain: Adds to a failure inside a program where the client captured it.
        print_lines: Gets what workers print.
        on_lost: Gets the error that ended the session.
        long_waits: Is notified each second of waits.

    Attributes:
        log: The commands, from issue to acknowledgement.
        inbox: The replies, and what failed.
    """

    def __init__(
        self,
        welcome: Welcome,
        *,
        explain: Callable[[RemoteFailure], RemoteFailure],
        print_lines: LogSink,
        on_lost: Callable[[SessionError], object],
        long_waits: LongWaits,
    ) -> None:
        lock = make_lock("session")
        log = self.log = CommandLog(len(welcome.ranks), welcome.first_seq, welcome.window, lock)
        self.inbox = Inbox(log, explain, welcome.first_seq, lock, long_waits)
        self._sent = SentLog(
            welcome.session,
            log.take_batch,
            log.left,
            lambda: log.acked,
            window=welcome.window,
            on_held=log.nudge_on_progress,
        )
        log.window.long_waits = long_waits
        log.sender.is_held = self._sent.is_held
        self._name = welcome.name
        self._print = print_lines
        self._on_lost = on_lost

    def start(self, transport: Transport) -> None:
        """Begins to send and to receive, where a thread that waits may do so by itself.

        Raises:
            ThreadRefused: The system starts no thread for it.
        """
        self.log.sender.pump = self.inbox.pump = transport.pump
        self.log.window.in_transport = lambda: is_helper() or transport.entered
        self.inbox.decline = transport.decline
        try:
            transport.start(self)
        except BaseException:  # there is no thread, or Ctrl-C was pressed
            self.log.close(SessionClosed(f"session {self._name!r} did not begin"), drop=True)
            raise

    # What leaves ------------------------------------------------------------------------------

    def await_commands(self) -> bool:
        """Waits until there may be commands to take; False once there never will be."""
        return self.log.sender.wait()

    def nudge(self) -> None:
        """Wakes the thread that waits for commands."""
        self.log.sender.nudge()

    def mark(self) -> None:
        """Issues a command that workers acknowledge."""
        self.log.mark()

    def next_batch(self, kills: bool) -> OutgoingBatch | None:
        """What to send now; see `CommandLog.take_batch`."""
        return self.log.take_batch(kills)

    def batch_left(self, seq: int) -> None:
        """Notes that the batch up to a command is on its way."""
        self.log.left(seq)

    def next_envelope(self) -> bytes | None:
        """The next envelope to send, which is kept until it is executed; see `SentLog.send`."""
        return self._sent.send()

    def envelope_left(self) -> None:
        """Notes that this envelope is on its way."""
        self._sent.sent()

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends everything beyond a command again; see `SentLog.rewind`."""
        self._sent.rewind(seq, worker)

    @property
    def issued(self) -> int:
        """The newest command of all."""
        return self.log.last_seq

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        return self.log.acked

    # What comes -------------------------------------------------------------------------------

    def reply(self, worker: int, reply: EncodedReply) -> None:
        """Takes a reply of a worker."""
        self.inbox.receive(worker, reply)

    def live(self, worker: int, seq: int, value: Any) -> None:
        """Takes an answer that is an object of this process."""
        self.inbox.receive_live(worker, seq, value)

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed everything up to a command."""
        self.log.acknowledge(worker, seq)

    def printed(self, worker: int, node: str, is_error: bool, lines: list[str]) -> None:
        """Takes what a worker has printed."""
        self._print(worker, node, is_error, lines)

    def interrupt_asked(self, asked: AskedInterrupt) -> None:
        """Begins an interrupt that somebody else than the program wants."""
        self.inbox.on_interrupt_asked(asked)

    @property
    def unattended(self) -> bool:
        """Whether an answer is awaited for which no thread waits."""
        return bool(self.log.answers.unattended)

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is still awaited."""
        return self.inbox.is_open(seq)

    def reopen(self) -> None:
        """Prepares for other workers to answer once more what is still awaited."""
        self.inbox.reopen()

    def lost(self, error: SessionError) -> None:
        """Ends the session with an error: every call and every wait raises it."""
        self.log.close(error, drop=True)
        self.inbox.lose(error)
        self._on_lost(error)
