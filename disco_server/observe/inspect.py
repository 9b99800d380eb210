"""What the ranks that a process has started do: read from their memory, not asked of them."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from disco_client.wire.flight_cuts import Since, cut_memory
from disco_client.wire.flight_now import FlightNow, read_now
from disco_client.wire.inspection import RankReport, RankState, report_of
from disco_server.observe.stacks import RankMemory, process_state, resident_bytes

__all__ = ["Subject", "cut_ranks", "inspect_ranks", "report_cut", "report_memory"]

STACK_S = 1.0
"""How long a rank's stack is waited for; one that can write it does so at once."""

_asking = threading.Lock()
_LOOK_S = 0.005
_SETTLED = 8
"""After so many looks at which a stack has not grown it is all there."""


@dataclass(slots=True)
class Subject:
    """One rank to look at.

    Attributes:
        worker: Which.
        node: Where.
        pid: Its process.
        memory: What it writes into.
        ended: Whether it is known to have ended.
    """

    worker: int
    node: str
    pid: int
    memory: RankMemory
    ended: bool = False
    _stack: str = field(default="", init=False)
    _looks: int = field(default=0, init=False)

    def look(self) -> bool:
        """Looks at the stack that was asked for; whether it is all there."""
        text, whole = self.memory.read_stack()
        self._looks = self._looks + 1 if text and text == self._stack else 0
        self._stack = text
        return whole or self._looks >= _SETTLED

    @property
    def stack(self) -> str:
        """What has come of it."""
        return self._stack


def inspect_ranks(subjects: Sequence[Subject], *, stacks: bool, flights: bool) -> list[RankReport]:
    """Finds out what ranks do; takes a second at most, and with no stack to wait for none.

    Args:
        subjects: The ranks.
        stacks: Whether to fetch their stacks.
        flights: Whether to copy the memory of their flight recorders.
    """
    states = [RankState.ENDED if s.ended else process_state(s.pid) for s in subjects]
    notes = [
        _why_no_stack(s, state) if stacks else "" for s, state in zip(subjects, states, strict=True)
    ]
    if stacks:
        # There is room for one stack of each rank, so whoever asks too waits.
        with _asking:
            waiting = [i for i, note in enumerate(notes) if not note]
            for i in list(waiting):
                try:
                    subjects[i].memory.ask_for_stack(subjects[i].pid)
                except OSError:
                    states[i], notes[i] = RankState.ENDED, "the process has ended"
                    waiting.remove(i)
            for i in _await_stacks(subjects, waiting):
                states[i] = process_state(subjects[i].pid)
                notes[i] = notes[i] or _why_silent(subjects[i], states[i])
    return [
        replace(
            report_memory(s.worker, s.node, s.pid, *s.memory.read(), flights=flights),
            state=state,
            stack=s.stack,
            note=note,
            memory_bytes=0 if state is RankState.ENDED else resident_bytes(s.pid),
        )
        for s, state, note in zip(subjects, states, notes, strict=True)
    ]


def cut_ranks(subjects: Sequence[Subject], since: Sequence[Since]) -> list[RankReport]:
    """Cuts out what ranks have recorded since somebody looked; nothing else is said of them.

    Args:
        subjects: The ranks.
        since: How far each was followed.
    """
    return [
        report_cut(s.worker, s.node, s.pid, s.memory.read_part, since, ended=s.ended)
        for s in subjects
    ]


def report_cut(
    worker: int,
    node: str,
    pid: int,
    read: Callable[[int, int], bytes],
    since: Sequence[Since],
    *,
    ended: bool = False,
) -> RankReport:
    """Reports what is new in the memory of a rank's flight recorder.

    Args:
        worker: The rank.
        node: Where it runs.
        pid: Its process.
        read: Reads a part of the memory.
        since: How far ranks were followed, this one perhaps among them.
        ended: Whether it is known to have ended.
    """
    known = (each for each in since if (each.worker, each.pid) == (worker, pid))
    follow = next(known, Since(worker, pid))
    cut = b""
    with contextlib.suppress(ValueError):  # user code wrote into it
        cut = cut_memory(read, follow.seq, follow.collectives)
    state = RankState.ENDED if ended else RankState.RUNNING
    return RankReport(worker, node, pid, state, flight=cut)


def _await_stacks(subjects: Sequence[Subject], waiting: list[int]) -> list[int]:
    """Waits for stacks; returns whose did not come."""
    deadline = time.monotonic() + STACK_S
    while waiting and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        waiting = [i for i in waiting if not subjects[i].look()]
    return waiting


def _why_no_stack(subject: Subject, state: RankState) -> str:
    if state is RankState.ENDED:
        return "the process has ended"
    if state is RankState.STOPPED:
        return f"the process is stopped; kill -CONT {subject.pid} lets it go on"
    return ""


def _why_silent(subject: Subject, state: RankState) -> str:
    if subject.stack:
        return "" if state is RankState.RUNNING else "the stack may not be whole"
    why = _why_no_stack(subject, state)
    if why:
        return why
    if state is RankState.UNINTERRUPTIBLE:
        return "the process waits inside the kernel, for a disk or a device, and takes no signal"
    return f"the process did not write its stack within {STACK_S:g} s"


def report_memory(
    worker: int, node: str, pid: int, raw: bytes, emptied: int, *, flights: bool
) -> RankReport:
    """Reports what the memory of a rank's flight recorder says.

    Args:
        worker: The rank.
        node: Where it runs.
        pid: Its process.
        raw: A copy of the memory.
        emptied: What ``read_flight`` takes with it.
        flights: Whether to hand the copy on.
    """
    found = FlightNow()
    with contextlib.suppress(ValueError):  # user code wrote into it
        found = read_now(raw, emptied)
    current, finished, collective = report_of(found.record, time.monotonic_ns())
    return RankReport(
        worker,
        node,
        pid,
        current=current,
        finished=finished,
        collective=collective,
        # Fast, because most of it is empty.
        flight=zlib.compress(raw, 1) if flights else b"",
        emptied=emptied,
        collectives=found.collectives,
        collective_bytes=found.collective_bytes,
    )
