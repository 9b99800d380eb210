"""Reads from the system what processes do: their state, size, parents and descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from disco_client.wire.reports import RankState

__all__ = [
    "be_subreaper",
    "below",
    "living_parents",
    "process_fields",
    "process_state",
    "resident_bytes",
    "state_letter",
]


_STATES = {"T": RankState.STOPPED, "t": RankState.STOPPED, "D": RankState.UNINTERRUPTIBLE}

_GONE = frozenset("ZXx")

_PAGE = os.sysconf("SC_PAGE_SIZE")


def process_state(pid: int) -> RankState:
    """The state of a process as the system reports it."""
    letter = state_letter(pid)
    return RankState.ENDED if letter in _GONE else _STATES.get(letter, RankState.RUNNING)


def state_letter(pid: int) -> str:
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


_PR_SET_CHILD_SUBREAPER = 36


def be_subreaper() -> None:
    """Makes this process the parent of every process that one of its descendants leaves behind.

    Only Linux offers this; elsewhere init becomes their parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
