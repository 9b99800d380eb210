"""The starter's end of the memory that it shares with a rank: flight records and stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections.abc import Sequence

from disco_client.tracing.ring import RING_BYTES, FlightRecord, Header
from disco_client.tracing.ring_end import read_now
from disco_server.observe.flight import (
    CANCELLED_AT,
    CAUSE_MARK,
    STACK_BYTES,
    make_memory,
    places_of,
)
from disco_server.observe.stacks import ASKED, FORCED_STACK_SIGNAL, STACK_SIGNAL

__all__ = ["INTERRUPT_SIGNAL", "RankMemory", "read_record"]

INTERRUPT_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2) + 7
"""One that neither libraries nor programs use: those at the ends have other owners. (Where there
are none of these, there are no ranks that are processes.)"""

# How a whole stack ends: this module's last frame, or the first one of `-m`, or many frames.
_LAST_LINES = ("\n\n", "in _run_module_as_main\n", "  ...\n")


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

    def interrupt(self, pid: int, until: int, ends: int) -> None:
        """Tells a process that commands are interrupted; see `CallGuard` for the numbers.

        Raises:
            OSError: There is no such process.
        """
        os.pwrite(self.fd, struct.pack("<2Q", until, ends), 8 * Header.INTERRUPTED)
        os.kill(pid, INTERRUPT_SIGNAL)

    def cancel(self, pid: int, commands: Sequence[tuple[int, int]]) -> None:
        """Tells a process that commands are cancelled.

        Args:
            pid: The process.
            commands: The first and the last of each run of them.

        Raises:
            OSError: There is no such process.
        """
        for place, numbers in places_of(commands):
            os.pwrite(self.fd, numbers, CANCELLED_AT + 8 * place)
        os.kill(pid, INTERRUPT_SIGNAL)

    def ask_for_stack(self, pid: int) -> None:
        """Requests the stack of a process; discards an earlier one.

        Raises:
            OSError: There is no such process.
        """
        os.pwrite(self.fd, ASKED.ljust(STACK_BYTES, b"\0"), RING_BYTES)
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
        if raw == ASKED:
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


def read_record(raw: bytes, emptied: int) -> FlightRecord:
    """Reads the end of a copy of the memory of a rank's flight recorder; empty if it cannot.

    Args:
        raw: A copy of the memory.
        emptied: What ``read_flight`` takes with it.
    """
    with contextlib.suppress(ValueError):  # user code wrote into it
        return read_now(raw, emptied).record
    return FlightRecord()
