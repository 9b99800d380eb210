"""Stopping processes, and what they use."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["family", "frozen", "marked", "memory"]


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stops processes for the length of a block."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def family(pid: int) -> list[psutil.Process]:
    """A process and all its descendants of this moment."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def memory(pid: int) -> int:
    """Bytes that a process alone holds in memory, what it shares with others left out."""
    return psutil.Process(pid).memory_info().rss


def marked(mark: str) -> list[psutil.Process]:
    """The live processes whose environment holds a text, wherever they hang in the tree."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes()
            if mark.encode() in environ and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
