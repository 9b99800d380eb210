"""Reports what the ranks of a process do: read from their shared memory, not requested."""

from __future__ import annotations

import contextlib
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from disco_client.clock import monotonic, monotonic_ns
from disco_client.tracing.ring_cuts import Since, cut_memory
from disco_client.tracing.ring_end import read_now
from disco_client.wire.reports import EncodedRankReport, RankState, report_of
from disco_server.observe.processes import process_state, resident_bytes, state_letter
from disco_server.observe.rank_memory import RankMemory

__all__ = ["Subject", "cut_ranks", "inspect_ranks", "report_cut", "report_memory"]


STACK_S = 1.0
"""How long to wait for a rank's stack; a rank that can write it does so at once."""

_asking = threading.Lock()

_LOOK_S = 0.005

_SETTLED = 8
"""After this many looks at which a stack has not grown it counts as complete."""

_ASLEEP = 4
"""A thread that sleeps at this many looks in a row without an answer is inside a library."""

_PATIENCE = 50
"""So is a thread that runs without an answer for this many looks, a quarter of a second."""


@dataclass(slots=True)
class Subject:
    """One rank to look at.

    Attributes:
        worker: The rank.
        node: Its node.
        pid: Its process.
        memory: Its memory.
        ended: Whether it is known to have ended.
    """

    worker: int
    node: str
    pid: int
    memory: RankMemory
    ended: bool = False
    _stack: str = field(default="", init=False)
    _looks: int = field(default=0, init=False)
    _asleep: int = field(default=0, init=False)
    _forced: bool = field(default=False, init=False)

    def look(self) -> bool:
        """Looks at the stack that was requested; returns whether it is complete."""
        text, whole = self.memory.read_stack()
        self._looks = self._looks + 1 if text == self._stack else 0
        self._stack = text
        if text or self._forced:
            return whole or (bool(text) and self._looks >= _SETTLED)
        self._asleep = self._asleep + 1 if state_letter(self.pid) == "S" else 0
        if self._asleep >= _ASLEEP or self._looks >= _PATIENCE:
            self._forced = True
            with contextlib.suppress(OSError):  # it has ended
                self.memory.force_stack(self.pid)
        return whole

    @property
    def stack(self) -> str:
        """What has been read of the stack."""
        return self._stack


def inspect_ranks(
    subjects: Sequence[Subject], *, stacks: bool, flights: bool
) -> list[EncodedRankReport]:
    """Reports what ranks do; takes a second at most, and no time if it waits for no stack.

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
        # There is room for one stack of each rank, so another thread that asks waits.
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
    reports: list[EncodedRankReport] = []
    for s, state, note in zip(subjects, states, notes, strict=True):
        report = report_memory(s.worker, s.node, s.pid, *s.memory.read(), flights=flights)
        report.state, report.stack, report.note = state, s.stack, note
        report.memory_bytes = 0 if state is RankState.ENDED else resident_bytes(s.pid)
        reports.append(report)
    return reports


def cut_ranks(subjects: Sequence[Subject], since: Sequence[Since]) -> list[EncodedRankReport]:
    """Returns what ranks have recorded since the last look of a reader, and nothing else of them.

    Args:
        subjects: The ranks.
        since: How far the reader has followed each rank.
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
) -> EncodedRankReport:
    """Reports what is new in the memory of a rank's flight recorder.

    Args:
        worker: The rank.
        node: Where it runs.
        pid: Its process.
        read: Reads a part of the memory.
        since: How far the reader has followed ranks, this one perhaps among them.
        ended: Whether it is known to have ended.
    """
    known = (each for each in since if (each.worker, each.pid) == (worker, pid))
    follow = next(known, Since(worker, pid))
    cut = b""
    with contextlib.suppress(ValueError):  # user code wrote into it
        cut = cut_memory(read, follow.seq, follow.collectives)
    state = RankState.ENDED if ended else RankState.RUNNING
    return EncodedRankReport(worker=worker, node=node, pid=pid, state=state, flight=cut)


def _await_stacks(subjects: Sequence[Subject], waiting: list[int]) -> list[int]:
    """Waits for stacks; returns the ranks whose stacks did not come."""
    deadline = monotonic() + STACK_S
    while waiting and monotonic() < deadline:
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
) -> EncodedRankReport:
    """Makes a report from the memory of a rank's flight recorder.

    Args:
        worker: The rank.
        node: Where it runs.
        pid: Its process.
        raw: A copy of the memory.
        emptied: The second argument of ``read_flight``.
        flights: Whether the report includes the copy.
    """
    report = EncodedRankReport(state=RankState.RUNNING)
    with contextlib.suppress(ValueError):  # user code wrote into it
        found = read_now(raw, emptied)
        report = report_of(found.record, monotonic_ns())
        report.collectives = found.collectives
        report.collective_bytes = found.collective_bytes
    report.worker, report.node, report.pid = worker, node, pid
    report.emptied = emptied
    if flights:  # fast, because most of it is empty
        report.flight = zlib.compress(raw, 1)
    return report
