"""The Python stack of a rank, written by the rank whatever it does, and read by its starter.

The starter sends a signal; ``faulthandler`` answers it inside the signal handler, in C,
without the interpreter's lock, so it works for a rank that holds the lock in a library
or waits for it. The stack goes to the end of the memory that both share, which has room
for 64 KiB of it.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import MutableMapping
from pathlib import Path

from disco_client.wire.flight import RING_BYTES
from disco_client.wire.inspection import RankState
from disco_server.observe.flight import STACK_BYTES, FlightRecorder, make_memory

__all__ = [
    "MEMORY_VARIABLE",
    "STACK_SIGNAL",
    "RankMemory",
    "open_flight",
    "process_state",
    "resident_bytes",
]

STACK_SIGNAL = signal.SIGURG
"""Ignored by processes that do not know it, so one that comes too early does no harm."""

_STATES = {"T": RankState.STOPPED, "t": RankState.STOPPED, "D": RankState.UNINTERRUPTIBLE}
_GONE = frozenset("ZXx")
_EMPTY = bytes(STACK_BYTES)
_PAGE = os.sysconf("SC_PAGE_SIZE")
# What Python writes last of the last thread, which is the main one: how `-m` begins.
_LAST_LINES = ("in _run_module_as_main\n", "  ...\n")


MEMORY_VARIABLE = "DISCO_FLIGHT_FD"
"""Names, in a rank's environment, the descriptor of the memory."""


def open_flight(environ: MutableMapping[str, str]) -> FlightRecorder:
    """Opens the flight recorder of this process, a rank.

    It writes its stacks into the same memory whenever the signal comes. Without memory
    in the environment the records are for nobody.

    Args:
        environ: Names the memory; forgets it, because it is no child's.
    """
    text = environ.pop(MEMORY_VARIABLE, "")
    if not text.isdigit():
        return FlightRecorder()
    fd = int(text)
    os.set_inheritable(fd, False)
    faulthandler.register(STACK_SIGNAL, file=fd, all_threads=True)
    return FlightRecorder(fd)


def process_state(pid: int) -> RankState:
    """What the system says of a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return RankState.ENDED if Path("/proc/self/stat").exists() else RankState.RUNNING
    except OSError:
        return RankState.ENDED
    letter = text.rpartition(")")[2].split()[0]
    return RankState.ENDED if letter in _GONE else _STATES.get(letter, RankState.RUNNING)


def resident_bytes(pid: int) -> int:
    """How much of a process is in memory; 0 where that is not known."""
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
        self.fd = make_memory()
        self._kept = b"", 0

    def read(self) -> tuple[bytes, int]:
        """Copies the records; what ``read_flight`` takes. Also after the rank has ended."""
        try:
            # Read, not mapped: nobody who has the descriptor can make this crash.
            raw = os.pread(self.fd, RING_BYTES, 0)
            return raw, int.from_bytes(os.pread(self.fd, 8, 8), "little")
        except OSError:  # closed, perhaps at this moment by another thread
            return self._kept

    def read_part(self, at: int, size: int) -> bytes:
        """Copies a part of the records; what ``cut_memory`` takes. Also after the rank's end."""
        try:
            return os.pread(self.fd, size, at)
        except OSError:
            return self._kept[0][at : at + size]

    def ask_for_stack(self, pid: int) -> None:
        """Asks a process for its stacks; forgets earlier ones.

        Raises:
            OSError: There is no such process.
        """
        os.pwrite(self.fd, _EMPTY, RING_BYTES)
        # Both have one position in the file, because the rank inherited the descriptor.
        os.lseek(self.fd, RING_BYTES, os.SEEK_SET)
        os.kill(pid, STACK_SIGNAL)

    def read_stack(self) -> tuple[str, bool]:
        """What has been written of the stacks, and whether that is surely all."""
        try:
            raw = os.pread(self.fd, STACK_BYTES, RING_BYTES).rstrip(b"\0")
        except OSError:
            return "", True
        text = raw.decode("utf-8", "replace")
        return text, text.endswith(_LAST_LINES)

    def close(self, *, keep: bool = False) -> None:
        """Lets go of the memory; idempotent.

        Args:
            keep: Make a copy of the records first, which :meth:`read` returns.
        """
        if self.fd >= 0:
            if keep:
                self._kept = self.read()
            fd, self.fd = self.fd, -1
            os.close(fd)
