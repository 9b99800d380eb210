"""What processes hold when they are idle: memory, descriptors, processes."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

__all__ = ["Holdings", "hold_little"]

_MEMORY_GROWTH_MIB = 48
"""What a process may hold more after an hour than after a minute: caches, and Python's arenas."""

_DESCRIPTOR_GROWTH = 8
_THREAD_GROWTH = 8
_ARENAS = -8  # M_ARENA_MAX of mallopt


def hold_little() -> None:
    """Lets this process and those that it starts keep little memory that they do not use.

    glibc gives each of many threads an arena, whose holes it keeps: a process that has
    opened hundreds of sessions whose workers are threads held 100 MiB in them.
    """
    os.environ["MALLOC_ARENA_MAX"] = "1"
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_ARENAS, 1)


def _anonymous(process: psutil.Process) -> int:
    """Its bytes without those of files and shared memory: code comes and goes as others use it."""
    memory = process.memory_info()
    return memory.rss - memory.shared


def _descriptors(process: psutil.Process) -> Counter[str]:
    """What its descriptors refer to: files by their path, all else by its kind."""
    targets: Counter[str] = Counter()
    folder = Path(f"/proc/{process.pid}/fd")
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            targets[str(entry.readlink()).partition(":[")[0]] += 1
    return targets


def _give_back() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


@dataclass(frozen=True)
class Holdings:
    """What some processes hold.

    Attributes:
        memory: MiB of each that it holds alone.
        descriptors: How many each has open, by what they refer to.
        threads: How many each has.
        children: How many processes hang below them.
    """

    memory: Sequence[float]
    descriptors: Sequence[Counter[str]]
    threads: Sequence[int]
    children: int

    @classmethod
    def of(cls, processes: Iterable[psutil.Process]) -> Self:
        """Looks now."""
        each = list(processes)
        gc.collect()
        _give_back()
        family: set[int] = set()
        for process in each:
            with contextlib.suppress(psutil.NoSuchProcess):
                family |= {child.pid for child in process.children(recursive=True)}
        return cls(
            [_anonymous(process) / (1 << 20) for process in each],
            [_descriptors(process) for process in each],
            [process.num_threads() for process in each],
            len(family - {process.pid for process in each}),
        )

    def growth(self, later: Holdings) -> list[int]:
        """By how many MiB each process has grown."""
        return [round(b - a) for a, b in zip(self.memory, later.memory, strict=True)]

    def more_descriptors(self, later: Holdings) -> list[dict[str, int]]:
        """What more each process has open, by what it refers to."""
        return [dict(b - a) for a, b in zip(self.descriptors, later.descriptors, strict=True)]

    def more_threads(self, later: Holdings) -> list[int]:
        """By how many threads each process has more."""
        return [b - a for a, b in zip(self.threads, later.threads, strict=True)]

    def leaks(self, later: Holdings) -> dict[str, int]:
        """What is held later beyond what varies, by kind: 0 where nothing leaked."""
        memory = max(self.growth(later))
        descriptors = max(
            b.total() - a.total() for a, b in zip(self.descriptors, later.descriptors, strict=True)
        )
        threads = max(self.more_threads(later))
        return {
            "memory": memory if memory > _MEMORY_GROWTH_MIB else 0,
            "descriptors": descriptors if descriptors > _DESCRIPTOR_GROWTH else 0,
            "threads": threads if threads > _THREAD_GROWTH else 0,
            "processes": max(0, later.children - self.children),
        }
