"""What a program does while its session is traced: sent commands, waits, copies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from disco_client.clock import monotonic_ns
from disco_client.tracing.clocks import Clock

if TYPE_CHECKING:
    from disco_client.answers import Answer
    from disco_client.call_sites import Site
    from disco_client.replies import Inbox
    from disco_client.transport.base import Transport

__all__ = ["ClientFlight", "Sent", "TimedArrays", "TimedInbox", "Timeline", "TimelineSpan"]


MOST = 1 << 20
"""How many notes of each kind are kept."""

_Result = TypeVar("_Result")


class Sent(NamedTuple):
    """Commands that were sent together.

    Attributes:
        first: The number of the first one.
        sites: The lines that issued them, in order.
        began_ns: When the first one was issued, or found waiting.
        ended_ns: When they were sent.
    """

    first: int
    sites: Sequence[Site]
    began_ns: int
    ended_ns: int


class TimelineSpan(NamedTuple):
    """Something that a thread of the program did or waited for.

    Attributes:
        name: What.
        category: ``wait`` or ``copy``.
        thread: The thread's name.
        began_ns, ended_ns: When.
        seq: The command that it is about, or 0.
        nbytes: How much was copied.
        worker: The worker that it was copied from or to.
    """

    name: str
    category: str
    thread: str
    began_ns: int
    ended_ns: int
    seq: int = 0
    nbytes: int = 0
    worker: int = 0


@dataclass(frozen=True)
class ClientFlight:
    """What a program did, on the common clock.

    Attributes:
        pid: Its process.
        sent: The commands, in order.
        spans: Waits and copies.
        clock_offset_ns: What was added to its times.
        clock_error_ns: By how much that may be wrong.
        missing: What is missing, in words.
    """

    pid: int
    sent: tuple[Sent, ...] = field(repr=False)
    spans: tuple[TimelineSpan, ...] = field(repr=False)
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    missing: tuple[str, ...] = ()


class Timeline:
    """Takes notes; for any thread. Appending to a list needs no lock."""

    def __init__(self) -> None:
        self._sent: list[Sent] = []
        self._spans: list[TimelineSpan] = []
        self._woken_ns = 0
        self._left_out = 0

    def wake(self) -> None:
        """A command was issued, and no thread is about to send it."""
        self._woken_ns = self._woken_ns or monotonic_ns()

    def leave(self, first: int, sites: Sequence[Site]) -> None:
        """Commands are about to be sent; called under the log's lock."""
        now = monotonic_ns()
        began, self._woken_ns = self._woken_ns or now, 0
        if len(self._sent) < MOST:
            self._sent.append(Sent(first, sites, began, now))
        else:
            self._left_out += 1

    def note(
        self,
        name: str,
        category: str,
        began_ns: int,
        *,
        seq: int = 0,
        nbytes: int = 0,
        worker: int = 0,
    ) -> None:
        """Notes a span that began then and ends now."""
        now, thread = monotonic_ns(), threading.current_thread().name
        if len(self._spans) < MOST:
            self._spans.append(
                TimelineSpan(name, category, thread, began_ns, now, seq, nbytes, worker)
            )
        else:
            self._left_out += 1

    def flight(self, clock: Clock, missing: Sequence[str] = ()) -> ClientFlight:
        """All notes so far.

        Args:
            clock: Brings their times to those of the ranks.
            missing: What is missing, in words.
        """
        correct = clock.correct
        sent = tuple(
            each._replace(began_ns=correct(each.began_ns), ended_ns=correct(each.ended_ns))
            for each in list(self._sent)
        )
        spans = tuple(
            each._replace(began_ns=correct(each.began_ns), ended_ns=correct(each.ended_ns))
            for each in list(self._spans)
        )
        if self._left_out:
            missing = [*missing, f"{self._left_out} batches, waits and copies of the client"]
        offset, error = clock.offset_ns, clock.error_ns
        return ClientFlight(os.getpid(), sent, spans, offset, error, tuple(missing))


class TimedInbox:
    """An inbox whose waits are noted; stands in its place while a session is traced.

    Attributes:
        inbox: The inbox.
    """

    def __init__(self, inbox: Inbox, timeline: Timeline) -> None:
        self.inbox = inbox
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inbox, name)

    def look(self, seq: int, *args: Any) -> Answer:
        """See ``Inbox``."""
        return self._timed(seq, self.inbox.look, seq, *args)

    def wait(self, seq: int, *args: Any) -> Answer:
        """See ``Inbox``."""
        return self._timed(seq, self.inbox.wait, seq, *args)

    def reach(self, *args: Any) -> None:
        """See ``Inbox``."""
        self._timed(0, self.inbox.reach, *args)

    def _timed(self, seq: int, call: Callable[..., _Result], *args: object) -> _Result:
        began = monotonic_ns()
        try:
            return call(*args)
        finally:
            self._timeline.note("sync", "wait", began, seq=seq)


class TimedArrays:
    """A transport whose copies of arrays are noted."""

    def __init__(self, transport: Transport, timeline: Timeline) -> None:
        self._transport = transport
        self._timeline = timeline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """See ``Transport``."""
        began = monotonic_ns()
        try:
            self._transport.upload(ticket, worker, data)
        finally:
            self._note("upload", began, worker, data.nbytes)

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """See ``Transport``."""
        began = monotonic_ns()
        try:
            self._transport.download(ticket, worker, into)
        finally:
            self._note("download", began, worker, into.nbytes)

    def _note(self, name: str, began: int, worker: int, nbytes: int) -> None:
        self._timeline.note(name, "copy", began, nbytes=nbytes, worker=worker)
