"""The session's log: numbers commands, batches them, forgets them when executed.

One lock guards the log. Three parties meet here: threads of the program that
issue commands, the transport's sender thread that takes encoded batches, and
the transport's reader thread that brings acknowledgements. A fourth one, the
garbage collector, may run in any of them at any bytecode: what it calls
(:meth:`CommandLog.release`) takes no lock and only appends to a deque.

Batching happens by itself: a lone command wakes the sender at once; while the
sender is busy with one batch, the next one grows.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from types import CodeType
from typing import Any, TypeAlias

from disco_client.errors import EncodingError, IssuedAt, SessionError
from disco_client.registers import RegisterIds
from disco_client.wire.codec import Action, EncodedBatch, EncodedCommand, Kind, envelope

__all__ = ["CommandLog", "Fill"]

MAX_BATCH_COMMANDS = 2048
MAX_BATCH_BYTES = 1 << 20
MAX_COMMAND_BYTES = 32 << 20
"""What one command may hold, so that a batch with it passes every relay."""

WINDOW_COMMANDS = 64 * 1024
WINDOW_BYTES = 32 << 20
"""How much may be under way before the slowest worker has executed it; a call
beyond that waits. This bounds the memory of every relay on the way."""

_PACKAGE = str(Path(__file__).parent) + os.sep
_COMMAND_BYTES = 64  # an ordinary command's size, for the window's sake

Site: TypeAlias = tuple[CodeType, int]
Fill: TypeAlias = Callable[[EncodedCommand], int]
"""Writes a command's arguments; returns how many bytes of bulk are among them."""


class _Batch:
    """Commands that leave together, and the lines that issued them."""

    __slots__ = ("commands", "first_seq", "message", "nbytes", "sites")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.message = EncodedBatch()
        self.commands = self.message.commands
        self.sites: list[Site] = []
        self.nbytes = 0

    def drop_half_commands(self) -> None:
        """Forgets what a call left that Ctrl-C interrupted: it never happened."""
        del self.commands[len(self.sites) :]


def call_site() -> Site:
    """The innermost code position outside this package."""
    frame = sys._getframe(1)  # noqa: SLF001  (the one way that costs a fraction of a microsecond)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def _locate(site: Site) -> IssuedAt:
    code, lasti = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
    return IssuedAt(code.co_filename, line, code.co_name)


class CommandLog:
    """The ordered commands of one session, from issue to acknowledgement.

    Args:
        session: The session's id, written into each envelope.
        num_workers: How many workers acknowledge.

    Attributes:
        on_expect: Called with (seq, workers) under the log's lock, before a
            command that will be answered can leave.
        told: Whether a call has raised the error that closed the log.
    """

    def __init__(self, session: int, num_workers: int) -> None:
        self._session = session
        self.on_expect: Callable[[int, int], None] = lambda _seq, _answers: None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ids = RegisterIds()
        self._dead: deque[int] = deque()
        self._seq = 0
        self._filling = _Batch(1)
        self._sealed: deque[_Batch] = deque()
        self._under_way: deque[_Batch] = deque()
        self._bytes_under_way = 0
        self._acks = [0] * num_workers
        self._acked = 0
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._awake = False
        self._closed: SessionError | None = None
        self.told = False

    # The program's side ----------------------------------------------------

    def issue(
        self,
        action: Action,
        fill: Fill | None = None,
        *,
        func: int = 0,
        reg: int | None = None,
        worker: int | None = None,
        answers: int = 0,
    ) -> tuple[int, int]:
        """Appends one command.

        Args:
            action: What it does.
            fill: Writes the arguments; where it raises, nothing was appended.
            func: The register of the function to call.
            reg: The register it is about; None takes a new one for its result.
            worker: The one worker that acts; None means all.
            answers: How many workers will answer it.

        Returns:
            Its sequence number and its register.

        Raises:
            SessionError: The session is closed or lost.
        """
        site = call_site()
        with self._lock:
            if self._seq - self._acked >= WINDOW_COMMANDS or self._bytes_under_way > WINDOW_BYTES:
                self._wait_for_room()
            if self._closed is not None:
                self.told = True
                # The same error is raised each time, with the traceback of this time.
                raise self._closed.with_traceback(None)
            batch = self._filling
            sites = batch.sites
            if len(batch.commands) != len(sites):
                batch.drop_half_commands()
            command = batch.commands.add()
            if fill is not None:
                self._fill(batch, command, fill)
            if self._dead:
                self._release_into(command)
            if reg is None:
                reg = self._ids.allocate()
            command.action = action  # type: ignore[assignment]  (the numbers are the same)
            command.reg = reg
            if func:
                command.func = func
            if worker is not None:
                command.worker_plus_one = worker + 1
            seq = batch.first_seq + len(sites)
            if answers:
                self.on_expect(seq, answers)
            sites.append(site)  # from here on the command is part of the log
            self._seq = seq
            if len(sites) >= MAX_BATCH_COMMANDS or batch.nbytes >= MAX_BATCH_BYTES:
                self._seal()
        if not self._awake:
            self._awake = True
            self._wake.put(None)
        return seq, reg

    def _fill(self, batch: _Batch, command: EncodedCommand, fill: Fill) -> None:
        try:
            nbytes = fill(command)
        except BaseException:
            del batch.commands[-1]
            raise
        if nbytes > MAX_COMMAND_BYTES:
            del batch.commands[-1]
            msg = (
                f"expected a command of at most {MAX_COMMAND_BYTES} bytes, got {nbytes}; "
                "send large data as numpy arrays, which travel beside the commands"
            )
            raise EncodingError(msg)
        batch.nbytes += nbytes

    def release(self, register: int) -> None:
        """Notes that a reference died; safe inside the garbage collector."""
        self._dead.append(register)
        if not self._awake:
            self._awake = True
            self._wake.put(None)

    @property
    def last_seq(self) -> int:
        """The number of the newest command."""
        return self._seq

    @property
    def closed(self) -> SessionError | None:
        """What later calls raise, once the log is closed."""
        return self._closed

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        return self._acked

    @property
    def high_water(self) -> int:
        """The largest register ever used."""
        return self._ids.high_water

    def site(self, seq: int) -> IssuedAt | None:
        """The line that issued a command not yet executed everywhere."""
        with self._lock:
            for batch in (*self._under_way, *self._sealed, self._filling):
                index = seq - batch.first_seq
                if 0 <= index < len(batch.sites):
                    return _locate(batch.sites[index])
        return None

    def _wait_for_room(self) -> None:
        while self._closed is None and (
            self._seq - self._acked >= WINDOW_COMMANDS or self._bytes_under_way > WINDOW_BYTES
        ):
            # The transport calls close() when the session is lost, so this ends.
            self._room.wait(1.0)

    def _release_into(self, command: EncodedCommand) -> None:
        dead = self._dead
        while dead:
            register = dead.popleft()
            command.released.append(register)
            self._ids.free(register)

    def _seal(self) -> None:
        batch = self._filling
        batch.drop_half_commands()
        if batch.sites:
            self._sealed.append(batch)
            self._bytes_under_way += batch.nbytes
            self._filling = _Batch(batch.first_seq + len(batch.sites))

    # The transport's side ---------------------------------------------------

    def take(self) -> bytes | None:
        """Waits for commands and returns them as one encoded envelope.

        Only the sender thread calls this. Returns None once the log is closed
        and everything issued before has been taken.
        """
        while True:
            self._wake.get()
            self._awake = False
            with self._lock:
                if self._dead and not self._sealed and not self._filling.sites:
                    self._issue_kill()
                if not self._sealed:
                    self._seal()
                batch = self._sealed.popleft() if self._sealed else None
                if batch is not None:
                    self._under_way.append(batch)
                elif self._closed is not None:
                    return None
                waits = self._sealed or self._filling.sites or self._dead
                more = bool(waits) or self._closed is not None
            if more:
                self._wake.put(None)
            if batch is not None:
                return self._encode(batch)

    def _issue_kill(self) -> None:
        if self._closed is not None:
            self._dead.clear()
            return
        self._filling.drop_half_commands()
        command = self._filling.commands.add()
        command.action = Action.KILL_REG  # type: ignore[assignment]  (the numbers are the same)
        self._release_into(command)
        self._filling.sites.append(call_site())
        self._seq = self._filling.first_seq + len(self._filling.sites) - 1

    def _encode(self, batch: _Batch) -> bytes:
        payload = batch.message.SerializeToString()
        last = batch.first_seq + len(batch.sites) - 1
        batch.message = EncodedBatch()
        batch.commands = batch.message.commands
        return envelope(
            Kind.BATCH,
            payload,
            session=self._session,
            first_seq=batch.first_seq,
            last_seq=last,
        )

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed every command up to ``seq``."""
        if not 0 <= worker < len(self._acks) or seq <= self._acks[worker]:
            return
        with self._lock:
            self._acks[worker] = seq
            acked = min(self._acks)
            if acked == self._acked:
                return
            self._acked = acked
            under_way = self._under_way
            while under_way and under_way[0].first_seq + len(under_way[0].sites) - 1 <= acked:
                self._bytes_under_way -= under_way.popleft().nbytes
            self._room.notify_all()

    def close(self, why: SessionError, *, drop: bool) -> None:
        """Refuses further commands with this error; idempotent.

        Args:
            why: What every later call raises.
            drop: Whether commands not yet taken are thrown away.
        """
        with self._lock:
            if self._closed is None:
                self._closed = why
            if drop:
                self._sealed.clear()
                self._filling = _Batch(self._seq + 1)
            self._room.notify_all()
        self._wake.put(None)

    def statistics(self) -> dict[str, Any]:
        """How much is under way: commands, bytes, and each worker's ack."""
        with self._lock:
            return {
                "issued": self._seq,
                "acked": self._acked,
                "acks": list(self._acks),
                "bytes_under_way": self._bytes_under_way,
                "registers": self._ids.high_water,
            }
