"""Tells whether a process was killed because memory ran out, as far as the system shows.

The kernel ends such a process by SIGKILL, which does not show the cause. Two sources do:
the kernel's log, which names the process but may be unreadable or number processes
differently inside a container; and the counter of the process's memory cgroup, which
versions 1 and 2 keep in different files.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

__all__ = ["MemoryWatch", "memory_room", "rank_limit"]


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


def memory_room() -> tuple[int | None, int | None]:
    """How many bytes may still be allocated; None where the system does not say.

    Returns:
        By all processes of this machine together, or of the cgroup; and by this process, for
        its own limit of ``--max-memory``.
    """
    shared: list[int] = []
    with contextlib.suppress(OSError):
        shared += _numbers(Path("/proc/meminfo").read_text(), "MemAvailable")
    cgroup = _find_cgroup(os.getpid())
    if cgroup is not None:
        shared += cgroup.rooms()
    own: list[int] = []
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit not in (resource.RLIM_INFINITY, -1):
        with contextlib.suppress(OSError):
            used = _numbers(Path("/proc/self/status").read_text(), "VmData")
            own += [max(0, limit - each) for each in used]
    return max(0, min(shared)) if shared else None, own[0] if own else None


def _numbers(text: str, name: str) -> list[int]:
    """What a table of the kernel says in kB of a name, in bytes; at most one."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return [] if found is None else [int(found[1]) << 10]


class _Cgroup(NamedTuple):
    """The memory cgroup of a process.

    Attributes:
        folder: The folder of its files.
        top: The folder of the uppermost visible one.
        name: Its name in the system.
        events: The name of the file with its counter.
        limit: The name of the file with its limit.
        usage: The name of the file with what it uses.
    """

    folder: Path
    top: Path
    name: str
    events: str
    limit: str
    usage: str

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

    def rooms(self) -> list[int]:
        """How many bytes it, and each above it, may still use; pages of files count as free."""
        found: list[int] = []
        for folder in (self.folder, *self.folder.parents):
            with contextlib.suppress(OSError, ValueError):  # v2 says "max" for none
                limit = int((folder / self.limit).read_text())
                used = int((folder / self.usage).read_text())
                kept = re.search(
                    r"^(?:total_)?inactive_file (\d+)$",
                    (folder / "memory.stat").read_text(),
                    re.MULTILINE,
                )
                found.append(limit - used + (0 if kept is None else int(kept[1])))
            if folder == self.top:
                break
        return found


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
                files = "memory.oom_control", "memory.limit_in_bytes", "memory.usage_in_bytes"
            elif number == "0" and "memory" not in mounts:
                files = "memory.events", "memory.max", "memory.current"
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
