"""Reports what the ranks of a process do: read from their shared memory, not requested."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import re
import resource
import signal
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from disco_client.clock import monotonic, monotonic_ns
from disco_client.tracing.ring import RING_BYTES, FlightRecord, Header, Since, cut_memory, read_now
from disco_client.wire.reports import EncodedRankReport, RankState, report_of
from disco_server.observe.flight import CAUSE_MARK, STACK_BYTES, FlightRecorder, make_memory

__all__ = [
    "FORCED_STACK_SIGNAL",
    "KEPT_LINES",
    "MEMORY_VARIABLE",
    "STACK_SIGNAL",
    "LastLines",
    "LineCutter",
    "MemoryWatch",
    "RankMemory",
    "Subject",
    "be_subreaper",
    "below",
    "cut_ranks",
    "decode_lines",
    "format_stack",
    "inspect_ranks",
    "living_parents",
    "open_flight",
    "process_fields",
    "process_state",
    "rank_limit",
    "read_record",
    "report_cut",
    "report_memory",
    "resident_bytes",
]


# The Python stack of a rank's main thread, which executes the commands: written by the rank
# whatever the thread does, and read by its starter.
#
# The starter sends a signal, whose handler in Python writes the stack as soon as the thread
# is between two instructions of Python. A thread inside a library does not get there; it
# gets another signal, which ``faulthandler`` answers inside the signal handler, in C, without
# the interpreter's lock. Other threads must not get that one: a thread whose frames change
# while they are read can crash (once in 6,000 reads of the thread's own stack, once in 400
# of another thread's), and inside a library no frame changes. The stack goes to the end of
# the memory that both share, which has room for 64 KiB of it.


STACK_SIGNAL = signal.SIGURG
FORCED_STACK_SIGNAL = signal.SIGWINCH
"""Ignored by processes without a handler, so a signal that comes too early does no harm."""

_ASKED = b"?"
"""The content of the stack's place from the request until a stack is written."""

_MOST_FRAMES = 100  # as faulthandler
_STATES = {"T": RankState.STOPPED, "t": RankState.STOPPED, "D": RankState.UNINTERRUPTIBLE}
_GONE = frozenset("ZXx")
_PAGE = os.sysconf("SC_PAGE_SIZE")
# How a whole stack ends: this module's last frame, or the first one of `-m`, or many frames.
_LAST_LINES = ("\n\n", "in _run_module_as_main\n", "  ...\n")


MEMORY_VARIABLE = "DISCO_FLIGHT_FD"
"""Names, in a rank's environment, the descriptor of the memory."""


def open_flight(environ: MutableMapping[str, str]) -> FlightRecorder:
    """Opens the flight recorder of this process, a rank.

    It writes its stack into the same memory whenever a signal requests it. Without memory in
    the environment no other process reads the records. Only the main thread may call this.

    Args:
        environ: Names the memory; the variable is removed, because children must not use it.
    """
    text = environ.pop(MEMORY_VARIABLE, "")
    if not text.isdigit():
        return FlightRecorder()
    fd = int(text)
    os.set_inheritable(fd, False)
    signal.signal(STACK_SIGNAL, lambda _, frame: _write_stack(fd, frame))
    signal.siginterrupt(STACK_SIGNAL, False)
    faulthandler.register(FORCED_STACK_SIGNAL, file=fd, all_threads=False)
    return FlightRecorder(fd)


def _write_stack(fd: int, frame: FrameType | None) -> None:
    """Answers a request for the stack; the request may have timed out by then."""
    if os.pread(fd, 1, RING_BYTES) == _ASKED:
        raw = f"{format_stack(_outward(frame))}\n".encode("utf-8", "replace")
        os.pwrite(fd, raw[: STACK_BYTES - 1], RING_BYTES)


def _outward(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def format_stack(frames: Iterable[FrameType]) -> str:
    """Writes a stack as ``faulthandler`` does: innermost first, each frame a line, at most 100."""
    lines = [
        f'  File "{each.f_code.co_filename}", line {each.f_lineno} in {each.f_code.co_name}\n'
        for each in islice(frames, _MOST_FRAMES + 1)
    ]
    more = len(lines) > _MOST_FRAMES
    return "".join(lines[:_MOST_FRAMES]) + "  ...\n" * more


def process_state(pid: int) -> RankState:
    """The state of a process as the system reports it."""
    letter = _state_letter(pid)
    return RankState.ENDED if letter in _GONE else _STATES.get(letter, RankState.RUNNING)


def _state_letter(pid: int) -> str:
    """The letter of proc(5) for the state of a process's main thread."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "X" if Path("/proc/self/stat").exists() else "R"
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]


def resident_bytes(pid: int) -> int:
    """How much of a process is in memory; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


class RankMemory:
    """The starter's end of one rank's memory: its flight recorder, and its stacks.

    Attributes:
        fd: The descriptor, which the rank inherits.

    Raises:
        OSError: There is no room.
    """

    def __init__(self) -> None:
        self._memory = make_memory()
        self.fd = self._memory.fileno()
        self._kept = b"", 0

    def read(self) -> tuple[bytes, int]:
        """Copies the records for ``read_flight``; also after the rank has ended."""
        try:
            # Read, not mapped: no holder of the descriptor can make this crash, as by truncation.
            raw = os.pread(self.fd, RING_BYTES, 0)
            return raw, int.from_bytes(os.pread(self.fd, 8, 8), "little")
        except OSError:  # closed, perhaps at this moment by another thread
            return self._kept

    def read_part(self, at: int, size: int) -> bytes:
        """Copies a part of the records for ``cut_memory``; also after the rank has ended."""
        try:
            return os.pread(self.fd, size, at)
        except OSError:
            return self._kept[0][at : at + size]

    def ask_for_stack(self, pid: int) -> None:
        """Requests the stack of a process; discards an earlier one.

        Raises:
            OSError: There is no such process.
        """
        os.pwrite(self.fd, _ASKED.ljust(STACK_BYTES, b"\0"), RING_BYTES)
        os.kill(pid, STACK_SIGNAL)

    def force_stack(self, pid: int) -> None:
        """Makes a process that did not answer write its stack; it must be inside a library.

        Raises:
            OSError: There is no such process.
        """
        os.pwrite(self.fd, b"\0", RING_BYTES)
        # Both have one position in the file, because the rank inherited the descriptor.
        os.lseek(self.fd, RING_BYTES, os.SEEK_SET)
        os.kill(pid, FORCED_STACK_SIGNAL)

    def read_stack(self) -> tuple[str, bool]:
        """What has been written of the stack, and whether that is certainly all."""
        try:
            raw = os.pread(self.fd, STACK_BYTES, RING_BYTES).rstrip(b"\0")
        except OSError:
            return "", True
        if raw == _ASKED:
            return "", False
        text = raw.decode("utf-8", "replace")
        return text.rstrip("\n"), text.endswith(_LAST_LINES)

    def lost_at(self) -> int:
        """When it lost its communicator, in ns of this machine's clock; 0 if not recorded."""
        return int.from_bytes(self.read_part(8 * Header.LOST, 8), "little")

    def read_cause(self) -> str:
        """Why the process ended, if it could record that itself; otherwise empty."""
        try:
            raw = os.pread(self.fd, STACK_BYTES, RING_BYTES)
        except OSError:
            return ""
        if not raw.startswith(CAUSE_MARK):
            return ""
        return raw[len(CAUSE_MARK) :].partition(b"\0")[0].decode("utf-8", "replace")

    def close(self, *, keep: bool = False) -> None:
        """Releases the memory; idempotent.

        Args:
            keep: Make a copy of the records first, which :meth:`read` returns.
        """
        if self.fd >= 0:
            if keep:
                self._kept = self.read()
            self.fd = -1
            self._memory.close()


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
        self._asleep = self._asleep + 1 if _state_letter(self.pid) == "S" else 0
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


def read_record(raw: bytes, emptied: int) -> FlightRecord:
    """Reads the end of a copy of the memory of a rank's flight recorder; empty if it cannot.

    Args:
        raw: A copy of the memory.
        emptied: What ``read_flight`` takes with it.
    """
    with contextlib.suppress(ValueError):  # user code wrote into it
        return read_now(raw, emptied).record
    return FlightRecord()


# Whether a process was killed because memory ran out, as far as the system shows.
#
# The kernel ends such a process by SIGKILL, which does not show the cause. Two sources do:
# the kernel's log, which names the process but may be unreadable or number processes
# differently inside a container; and the counter of the process's memory cgroup, which
# versions 1 and 2 keep in different files.


_KERNEL_LOG = Path("/dev/kmsg")
_NO_LIMIT = 1 << 60
_claimed: Counter[Path] = Counter()
"""How many kills of each cgroup have explained a death: each explains one."""


def rank_limit() -> str:
    """Says which limit of ``--max-memory`` this process is under; empty if there is none."""
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit in (resource.RLIM_INFINITY, -1):
        return ""
    return f" (the limit of this worker is {limit / (1 << 20):.0f} MiB: disco-worker --max-memory)"


class _Cgroup(NamedTuple):
    """The memory cgroup of a process.

    Attributes:
        folder: The folder of its files.
        top: The folder of the uppermost visible one.
        name: Its name in the system.
        events: The name of the file with its counter.
        limit: The name of the file with its limit.
    """

    folder: Path
    top: Path
    name: str
    events: str
    limit: str

    def kills(self) -> int | None:
        """How many of its processes were killed for memory; None if unknown."""
        with contextlib.suppress(OSError):
            found = re.search(
                r"^oom_kill (\d+)$", (self.folder / self.events).read_text(), re.MULTILINE
            )
            if found is not None:
                return int(found[1])
        return None

    def tightest(self) -> str:
        """Says which limit it is under, its own or one above it; empty if there is none."""
        best, where = _NO_LIMIT, self.folder
        for folder in (self.folder, *self.folder.parents):
            with contextlib.suppress(OSError, ValueError):  # v2 says "max" for none
                limit = int((folder / self.limit).read_text())
                if limit < best:
                    best, where = limit, folder
            if folder == self.top:
                break
        if best == _NO_LIMIT:
            return ""
        name = self.name if where == self.folder else f"above {self.name}"
        return f"the limit of its cgroup {name} is {best / (1 << 20):.0f} MiB"


class MemoryWatch:
    """Notes the system's counters at a process's start, to explain its death.

    Args:
        pid: The process, which runs.
        kernel_log: The path of the kernel's log.
    """

    def __init__(self, pid: int, kernel_log: Path = _KERNEL_LOG) -> None:
        self._pid = pid
        self._log = kernel_log
        self._began = time.clock_gettime(time.CLOCK_MONOTONIC)
        self._cgroup = _find_cgroup(pid)
        self._kills = self._unclaimed()

    def _unclaimed(self) -> int | None:
        kills = None if self._cgroup is None else self._cgroup.kills()
        if kills is None or self._cgroup is None:
            return None
        return kills - _claimed[self._cgroup.folder]

    def explain(self) -> str:
        """Says that memory ran out, if that killed the process; otherwise empty.

        To be called once, for a process that was ended by a SIGKILL not sent from here.
        """
        now = self._unclaimed()
        counted = self._kills is not None and now is not None and now > self._kills
        if not counted and not self._is_in_log():
            return ""
        limit = ""
        if self._cgroup is not None:
            limit = self._cgroup.tightest()
            if counted:
                _claimed[self._cgroup.folder] += 1
        return f"was killed because memory ran out ({limit or 'the machine has no more'})"

    def _is_in_log(self) -> bool:
        """Whether the kernel's log says that it killed this process for memory."""
        killed = re.compile(rf"(\d+),[^;]*;.*Killed process {self._pid} \(".encode())
        with contextlib.suppress(OSError):
            log = os.open(self._log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                while record := _read_record(log):
                    # It may also be about an older process with the same number.
                    found = killed.search(record)
                    if found is not None and _seconds(record) >= self._began:
                        return True
            finally:
                os.close(log)
        return False


def _read_record(log: int) -> bytes:
    """The next record of the kernel's log; empty after the last one."""
    while True:
        try:
            return os.read(log, 8192)
        except BrokenPipeError:  # newer ones have overwritten it
            continue
        except BlockingIOError:
            return b""


def _seconds(record: bytes) -> float:
    """When a record of the kernel's log was written: "priority,number,microseconds,..."."""
    fields = record.split(b",", 3)
    return int(fields[2]) / 1e6 if len(fields) > 2 and fields[2].isdigit() else 0.0  # noqa: PLR2004


def _find_cgroup(pid: int) -> _Cgroup | None:
    """Finds the memory cgroup of a process; None if none is visible."""
    with contextlib.suppress(OSError, ValueError):
        mounts = _mounts()
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            number, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(","):
                files = "memory.oom_control", "memory.limit_in_bytes"
            elif number == "0" and "memory" not in mounts:
                files = "memory.events", "memory.max"
            else:
                continue
            found = mounts.get("memory" if controllers else "")
            if found is not None:
                root, top = found
                inside = os.path.relpath(name, root)
                if not inside.startswith(".."):
                    return _Cgroup(top / inside, top, name, *files)
    return None


def _mounts() -> dict[str, tuple[str, Path]]:
    """The mounted cgroup hierarchies: version 1's memory, and under "" version 2.

    Each with the cgroup that is mounted there, and where.
    """
    found: dict[str, tuple[str, Path]] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, place = before.split(" ")[:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            found[""] = root, Path(place)
        elif kind == "cgroup" and "memory" in options.split(","):
            found["memory"] = root, Path(place)
    return found


# Lines of what a process prints: cut out of its stream, and the last of them kept.
#
# A process may print without end, so a block of lines stays in one piece until the
# single lines are needed.


KEPT_LINES = 20
"""How many last lines of output are kept."""

_MAX_LINE = 16 * 1024
_CRASH = b"Fatal Python error: "
_CRASH_LINES = 40


def decode_lines(block: bytes) -> list[str]:
    """Splits a block of lines."""
    text = block.decode("utf-8", "replace")
    lines = text.split("\n")
    return [line.rstrip("\r") for line in lines] if "\r" in text else lines


class LineCutter:
    """Cuts a stream of bytes behind its lines.

    Args:
        last_lines: Receives the lines too; several streams may share it.
    """

    def __init__(self, last_lines: LastLines) -> None:
        self._rest = b""
        self._last_lines = last_lines

    def feed(self, data: bytes) -> bytes | None:
        """Adds bytes; returns the lines that are complete, without the end of the last one.

        An overlong piece counts as a line before its end has come. None if there is no line.

        Args:
            data: The bytes; none at the end of the stream.
        """
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > _MAX_LINE or (rest and not data):
            lines, end, rest = lines + end + rest, b"\n", b""
        self._rest = rest
        if not end:
            return None
        self._last_lines.feed(lines)
        return lines


class LastLines:
    """Keeps the end of what a process prints, and of a crash its beginning too.

    When Python dies of a signal such as SIGSEGV it prints its stack, innermost frame
    first, so the last lines of a deep stack are the least useful ones.
    """

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._crash: list[bytes] = []

    def feed(self, block: bytes) -> None:
        """Adds lines that were printed; only those that may be kept are split."""
        wanted = _CRASH_LINES - len(self._crash) if self._crash else 0
        # The latest crash counts; user code may have printed the first.
        crash = block.rfind(b"\n" + _CRASH) + 1
        if crash or block.startswith(_CRASH):
            self._crash, block = [], block[crash:]
            self._last.clear()
            wanted = _CRASH_LINES
        if wanted:
            lines = block.split(b"\n", wanted)
            self._crash += lines[:wanted]
            if len(lines) <= wanted:
                return
            block = lines[wanted]
        self._last.extend(block.rsplit(b"\n", KEPT_LINES)[-KEPT_LINES:])

    def __iter__(self) -> Iterator[str]:
        for line in (*self._crash, *self._last):
            yield from decode_lines(line)


_PR_SET_CHILD_SUBREAPER = 36


def be_subreaper() -> None:
    """Makes this process the parent of every process that one of its descendants leaves behind.

    Only Linux offers this; elsewhere init becomes their parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# The descendants of processes.


def process_fields(pid: int | str) -> list[str]:
    """The fields of a process's status behind its name, which may hold anything.

    Raises:
        OSError: There is no such process.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def living_parents() -> dict[int, int]:
    """The processes that can be seen and have not ended, each with its parent."""
    found: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state, parent = process_fields(place.name)[:2]
            if state not in _GONE:
                found[int(place.name)] = int(parent)
    return found


def below(parents: Mapping[int, int], roots: Iterable[int]) -> list[int]:
    """The descendants of some processes.

    Args:
        parents: What :func:`living_parents` returned.
        roots: The processes, which are not among what is returned.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(roots)
    while waiting:
        here = children.get(waiting.pop(), [])
        found += here
        waiting += here
    return found
