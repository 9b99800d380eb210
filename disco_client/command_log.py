"""The session's log: numbers commands, batches them, forgets them when executed.

One lock guards the log. Three kinds of threads use it: threads of the program that
issue commands, the transport's sender thread that takes encoded batches, and
the transport's reader thread that brings acknowledgements. A fourth one, the
garbage collector, may run in any of them at any bytecode: what it calls
(:meth:`CommandLog.release`) takes no lock and only appends to a deque.

Batching happens by itself: a lone command wakes the sender at once; while the
sender is busy with one batch, the next one grows. Over a transport that lets the
program's threads send (:attr:`CommandLog.pump`), neither a command that a caller
waits for nor a lone one wakes another thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from types import CodeType
from typing import Any, Protocol, TypeAlias

from disco_client.clock import monotonic, monotonic_ns
from disco_client.errors import EncodingError, IssuedAt, RemoteFailure, SessionError, WouldBlock
from disco_client.replies import Deadline, LongWaits
from disco_client.scopes import NO_SCOPE, Scope, current_owner, current_scope, in_event_loop
from disco_client.transport.base import OutgoingBatch, Pump
from disco_client.transport.progress import Progress
from disco_client.wire.codec import Action, EncodedCommand

__all__ = [
    "Abandoned",
    "CommandLog",
    "Fill",
    "LogWatcher",
    "Owners",
    "RegisterIds",
    "Site",
    "StepLines",
    "call_site",
    "locate",
]


# Who owns a register: one reference, but for those of which a reference was copied, or which a
# captured program reads.


class _Shared:
    """What is to be known of a register that has not just one owner.

    Attributes:
        others: As many entries as it has owners besides one.
        kept: The registers of which it is an owner itself.
    """

    __slots__ = ("kept", "others")

    def __init__(self) -> None:
        self.others: list[None] = []
        self.kept: Sequence[int] = ()


class Owners:
    """The owners of the registers of one session; the last one frees a register.

    References are copied and end in any thread, in signal handlers and in the garbage
    collector, so no method takes a lock: each step that counts is one operation of a dict or
    a list, which nothing interrupts. Who adds an owner is one, or has one, meanwhile.

    The count is that of owners which have not ended. It does not follow who refers to whom,
    because the garbage collector ends all objects of a cycle, in any order, before any of
    them is gone.

    Attributes:
        several: The registers that have not just one.
    """

    __slots__ = ("several",)

    def __init__(self) -> None:
        self.several: dict[int, _Shared] = {}

    def add(self, register: int) -> None:
        """Notes one more owner of a register."""
        self.several.setdefault(register, _Shared()).others.append(None)

    def keep(self, register: int, kept: Sequence[int]) -> None:
        """Makes a register an owner of others, for as long as it has one itself."""
        for other in kept:
            self.add(other)
        self.several.setdefault(register, _Shared()).kept = kept

    def remove(self, register: int) -> list[int]:
        """Notes that an owner has ended; returns the registers that have none any more."""
        ended: list[int] = []
        removed = [register]
        while removed:
            register = removed.pop()
            shared = self.several.get(register)
            if shared is not None:
                try:
                    shared.others.pop()
                except IndexError:
                    # Before it is freed: its number may be taken right after that.
                    del self.several[register]
                    removed += shared.kept
                else:
                    continue
            ended.append(register)
        return ended


# Register ids: the client allocates them, so calls need no answer first.
#
# Freed ids are reused last in, first out, before the counter moves on, as in the
# original; that keeps the workers' register files as small as the program's
# largest number of live references.


class RegisterIds:
    """The free list of one session; the owner's lock guards it, but for `owners`.

    Attributes:
        owners: Whose the registers are.
    """

    __slots__ = ("_free", "_next", "owners")

    def __init__(self) -> None:
        self.owners = Owners()
        self._free: list[int] = []
        self._next = 1  # 0 is never a live register

    def allocate(self) -> int:
        """Takes an id that no live reference has."""
        if self._free:
            return self._free.pop()
        register = self._next
        self._next = register + 1
        return register

    def free(self, register: int) -> None:
        """Gives an id back; the caller has put its release into the log."""
        self._free.append(register)

    def live(self) -> set[int]:
        """The ids that are allocated at this moment."""
        return set(range(1, self._next)).difference(self._free)

    @property
    def high_water(self) -> int:
        """The largest id ever allocated."""
        return self._next - 1


# The lines of a program that issue commands, and the scopes to which they belong.


_REMEMBERED_STEPS = 1 << 17
_PACKAGE = str(Path(__file__).parent) + os.sep

Site: TypeAlias = tuple[CodeType, int, Scope]
"""A position in code, cheap to take and turned into a line on request; and the scope."""

_inside: set[str] = set()
_outside: set[str] = set()
"""File names of code seen so far, in this package and outside of it."""


def call_site(scope: Scope = NO_SCOPE) -> Site:
    """The innermost code position outside this package, with the scope that issues there."""
    frame = sys._getframe(2)  # noqa: SLF001  (the one way that costs a fraction of a microsecond)
    code = frame.f_code
    while code.co_filename in _inside or not _is_outside(code.co_filename):
        back = frame.f_back
        if back is None:
            break
        frame, code = back, back.f_code
    return code, frame.f_lasti, scope


def _is_outside(filename: str) -> bool:
    if filename in _outside:
        return True
    met = _inside if filename.startswith(_PACKAGE) else _outside
    met.add(filename)
    return met is _outside


def locate(site: Site) -> IssuedAt:
    """The file, line and function of a position."""
    code, lasti, _ = site
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
    return IssuedAt(code.co_filename, line, code.co_name)


Locate: TypeAlias = Callable[[int], IssuedAt | None]
"""Finds the line that captured a step."""


class StepLines:
    """The lines of the client's program in which the steps of programs were captured.

    They outlive a program for a while, because its failures may be reported later.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, tuple[str, int, Locate]] = {}
        self._ended: deque[int] = deque()
        self._fading: deque[int] = deque()
        self._fading_steps = 0

    def add(self, defined: int, name: str, num_steps: int, locate: Locate) -> None:
        """Remembers a program.

        Args:
            defined: The number of the command that defined it.
            name: Its name.
            num_steps: How many steps it has.
            locate: Finds a step's line.
        """
        with self._lock:
            self._known[defined] = name, num_steps, locate
            self._forget()

    def end(self, defined: int) -> None:
        """Notes that a program is gone; safe inside the garbage collector."""
        self._ended.append(defined)

    def _forget(self) -> None:
        while self._ended:
            defined = self._ended.popleft()
            self._fading.append(defined)
            self._fading_steps += self._known[defined][1] + 1
        while self._fading_steps > _REMEMBERED_STEPS:
            self._fading_steps -= self._known.pop(self._fading.popleft())[1] + 1

    def explain(self, failure: RemoteFailure) -> RemoteFailure:
        """Adds to a failure in a program which one it was, and the step's line."""
        with self._lock:
            known = self._known.get(failure.program)
        if known is None:
            return failure
        name, _, locate = known
        return replace(failure, program_name=name, captured_at=locate(failure.step))


MAX_BATCH_COMMANDS = 2048
MAX_BATCH_BYTES = 128 << 10
"""Of arrays in commands. Other sessions' commands wait behind a batch wherever it is
read, copied and written in one go."""

MAX_COMMAND_BYTES = 32 << 20
"""What one command may hold, so that a batch with it passes every relay."""

WINDOW_COMMANDS = 64 * 1024
WINDOW_BYTES = 32 << 20
"""How much may be in flight before the slowest worker has executed it; a call
beyond that waits. This bounds the memory of every relay on the way."""

WINDOW_ARRAY_BYTES = 256 << 20
"""The same for arrays that travel beside the log, and are buffered on the workers' nodes."""

_LOOK_ROOM_S = 1.0
"""How often a call that waits for room looks whether that is to be reported."""

_FULL = (
    "as many commands or bytes are under way as may be, and the call would stop the event loop"
    " until workers have executed some; before it, `await session.ready()`"
)

_LINGER_S = 0.001
"""After how long a sending thread looks for more commands, once, before it sleeps. Where
the program's threads can send, commands that are further apart leave one by one."""

_KILLS_S = 0.05
"""How long a freed register waits for a command that takes it along, where the program's
threads can send; waking the sending thread for each would take the workers' time."""

_Record: TypeAlias = tuple[int, ...]
"""A call as the column of a batch holds it; see commands.proto."""

Fill: TypeAlias = Callable[[EncodedCommand], int]
"""Writes a command's arguments; returns how many bytes of bulk are among them."""


class _Batch:
    """Commands that are sent together, each with the line that issued it."""

    __slots__ = ("beside", "entries", "first_seq", "nbytes", "sites")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        # One append makes a command part of the log, so a call that Ctrl-C
        # interrupts has either happened or not.
        self.entries: list[tuple[Site, _Record | EncodedCommand]] = []
        self.sites: list[Site] = []
        self.nbytes = 0
        self.beside = 0

    @property
    def next_seq(self) -> int:
        """The number of the command after the last one."""
        return self.first_seq + (len(self.entries) or len(self.sites))

    def leave(self, session: int) -> OutgoingBatch:
        """Returns the commands for sending; only the lines that issued them are kept."""
        commands: list[EncodedCommand] = []
        calls: list[int] = []
        for _, entry in self.entries:
            if isinstance(entry, tuple):
                calls += entry
            else:
                commands.append(entry)
                calls.append(-1)
        if len(commands) == len(self.entries):
            calls = []
        last = self.next_seq - 1
        leaving = OutgoingBatch(session, self.first_seq, last, calls, commands, self.nbytes)
        self.sites = [site for site, _ in self.entries]
        self.entries = []
        return leaving

    def scopes(self) -> set[Scope]:
        """The scopes that issued its commands."""
        return {site[2] for site, _ in self.entries} | {site[2] for site in self.sites}

    def site(self, seq: int) -> Site | None:
        """The line that issued one of its commands."""
        index = seq - self.first_seq
        if 0 <= index < len(self.entries):
            return self.entries[index][0]
        return self.sites[index] if 0 <= index < len(self.sites) else None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What is left of a log's commands when other workers take the place of those it was for.

    Attributes:
        last: The number of the last of them.
        live: The registers that references stand for.
        issuers: The scopes that issued commands that were not known to be executed.
        makers: The scopes that issued the commands whose results are in these registers.
    """

    last: int
    live: set[int]
    issuers: set[Scope]
    makers: set[Scope]


class LogWatcher(Protocol):
    """Is notified of what happens in a log while its session is traced."""

    def wake(self) -> None:
        """A command was issued, and no thread is about to send it."""
        ...

    def leave(self, first: int, sites: Sequence[Site]) -> None:
        """Commands are about to be sent; called under the log's lock."""
        ...

    def note(self, name: str, category: str, began_ns: int) -> None:
        """Notes a span that began then and ends now."""
        ...


class Bar(Protocol):
    """Decides which calls may issue commands while not all may."""

    @property
    def exclusive(self) -> bool:
        """Whether one thread or task alone may."""
        ...

    def __call__(self) -> bool:
        """Whether the call that asks has to wait; may raise."""
        ...


class _OneOwner:
    """Admits one thread or task alone."""

    exclusive = True

    def __init__(self, owner: object) -> None:
        self._owner = owner

    def __call__(self) -> bool:
        return current_owner() is not self._owner


class CommandLog:
    """The ordered commands of one session, from issue to acknowledgement.

    Args:
        session: The session's id, written into each envelope.
        num_workers: How many workers acknowledge.
        first_seq: The number of the first command.

    Attributes:
        on_expect: Called with (seq, workers) under the log's lock, before a
            command that will be answered can be sent.
        pump: Lets a thread that issues a command, or waits for its answer, send what is
            pending by itself, if set.
        told: Whether a call has raised the error that closed the log.
        asynchronous: Whether calls must not wait in an event loop.
        barred: Asked, if set, under the lock and by each call that issues a command, whether
            the call has to wait; may raise.
        long_waits: Is notified each second of waits for room.
        timeline: Takes notes, if set; calls that need not wait never ask for it.
    """

    # Of more than thirty fields Python would read each one more slowly.
    def __init__(self, session: int, num_workers: int, first_seq: int = 1) -> None:
        self._session = session
        self.on_expect: Callable[[int, int], None] = lambda _seq, _answers: None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._ids = RegisterIds()
        self._makers: dict[int, Site] = {}
        self._dead: deque[int] = deque()
        self._seq = first_seq - 1
        self._last_kill = self._before_kills = 0
        self._filling = _Batch(first_seq)
        self._sealed: deque[_Batch] = deque()
        self._under_way: deque[_Batch] = deque()
        self._bytes_under_way = 0
        self._beside_under_way = 0
        self._beside_unmarked = 0
        self._done = Progress(num_workers, first_seq - 1)
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._awake = False
        self._kills_due = False
        self._passed_on = -math.inf
        self._batching: set[Scope] = set()
        self._closed: SessionError | None = None
        self._for_room: list[Callable[[], None]] = []
        self.asynchronous = False
        self.barred: Bar | None = None
        self.pump: Pump | None = None
        self.told: bool = False
        self.long_waits: LongWaits = LongWaits()
        self.timeline: LogWatcher | None = None

    # The program's side ----------------------------------------------------

    def issue(
        self,
        action: Action,
        fill: Fill | None = None,
        *,
        func: int = 0,
        reg: int | None = None,
        workers: Sequence[int] = (),
        answers: int = 0,
        beside: Callable[[], int] | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[int, int]:
        """Appends one command.

        Args:
            action: What it does.
            fill: Writes the arguments; where it raises, nothing was appended.
            func: The register of the function to call.
            reg: The register it is about; None takes a new one for its result.
            workers: The workers that act; none means all.
            answers: How many workers will answer it.
            beside: Says, once the arguments are written, how many bytes of arrays
                travel beside it to a worker.
            deadline: When to end a wait for room.

        Returns:
            Its sequence number and its register.

        Raises:
            DiscoTimeout: There is no room yet; nothing was appended.
            SessionError: The session is closed or lost, or this would wait in an event loop.
        """
        site = call_site(current_scope(self))
        command = EncodedCommand(action=action, func=func)  # type: ignore[arg-type]  (the numbers are the same)
        nbytes = fill(command) if fill is not None else 0
        if nbytes > MAX_COMMAND_BYTES:
            msg = (
                f"expected a command of at most {MAX_COMMAND_BYTES} bytes, got {nbytes}; "
                "send large data as numpy arrays, which travel beside the commands"
            )
            raise EncodingError(msg)
        if workers:
            command.workers.extend(workers)
        with self._lock:
            self._await_room(deadline)
            if self._dead:
                command.released.extend(self._take_dead())
            if reg is None:
                reg = self._ids.allocate()
                self._makers[reg] = site
            command.reg = reg
            batch = self._filling
            seq = batch.next_seq
            if answers:
                self.on_expect(seq, answers)
            batch.nbytes += nbytes
            self._append(batch, site, command)
            if beside is not None and (nbytes := beside()):
                self._note_beside(batch, site, nbytes)
        if not (answers and self.pump is not None):
            self._pass_on(answered=answers > 0)
        return seq, reg

    def issue_call(self, func: int, args: list[int]) -> int:
        """Appends a call with nothing but references and small integers.

        Args:
            func: The register of the function.
            args: A register as ``2 * register + 1``, an integer as ``2 * integer``.

        Returns:
            The register of its result.

        Raises:
            SessionError: The session is closed or lost.
        """
        site = call_site(current_scope(self))
        with self._lock:
            self._await_room()
            released = self._take_dead() if self._dead else ()
            reg = self._ids.allocate()
            self._makers[reg] = site
            record = (len(released), *released, func, reg, len(args), *args)
            self._append(self._filling, site, record)
        self._pass_on()
        return reg

    def allocate(self, count: int) -> list[int]:
        """Takes registers, for a command that has several results."""
        site = call_site()
        with self._lock:
            registers = [self._ids.allocate() for _ in range(count)]
            self._makers.update(dict.fromkeys(registers, site))
        return registers

    def _append(self, batch: _Batch, site: Site, entry: _Record | EncodedCommand) -> None:
        entries = batch.entries
        entries.append((site, entry))
        self._seq = batch.first_seq + len(entries) - 1
        if len(entries) >= MAX_BATCH_COMMANDS or batch.nbytes >= MAX_BATCH_BYTES:
            self._seal()

    def _note_beside(self, batch: _Batch, site: Site, nbytes: int) -> None:
        """Counts arrays that travel beside a command."""
        batch.beside += nbytes
        self._beside_under_way += nbytes
        self._beside_unmarked += nbytes
        if self._beside_unmarked >= WINDOW_ARRAY_BYTES // 4:
            # Workers answer this one, so a call that waits for room learns how far they are.
            self._beside_unmarked = 0
            self._append_mark(site)

    def _append_mark(self, site: Site) -> None:
        mark = EncodedCommand(action=Action.SYNC_WORKER)  # type: ignore[arg-type]  (as above)
        self._append(self._filling, site, mark)

    def mark(self) -> None:
        """Makes every worker acknowledge what it has executed; never waits."""
        with self._lock:
            if self._closed is None:
                self._append_mark(call_site())
        self._wake_sender()

    def _pass_on(self, *, answered: bool = False) -> None:
        """Gets a command on its way: a lone one in this thread, several in the sender's.

        Args:
            answered: Whether a caller will wait for its answer.
        """
        if self._awake or (self._batching and not answered and current_owner() in self._batching):
            return
        pump = self.pump
        if pump is None or not pump.sends_lone:
            self._wake_sender()
        elif (now := monotonic()) - self._passed_on > _LINGER_S:
            self._passed_on = now
            pump.flush()
        else:
            self._wake_sender()

    def _wake_sender(self) -> None:
        if not self._awake:
            self._awake = True
            if self.timeline is not None:
                self.timeline.wake()
            self._wake.put(True)

    def release(self, register: int) -> None:
        """Notes that a reference died; safe inside the garbage collector."""
        owners = self._ids.owners
        if register not in owners.several:
            self._dead.append(register)
        elif ended := owners.remove(register):
            self._dead.extend(ended)
        else:
            return
        if self.pump is None:
            self._wake_sender()
        elif not (self._awake or self._kills_due):
            self._kills_due = True
            self._wake.put(False)

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Lets what this task or thread issues in a block leave together.

        It leaves when the block ends, or before with a command that is answered.
        """
        owner = current_owner()
        if owner in self._batching:  # a block within a block
            yield
            return
        self._batching.add(owner)
        try:
            yield
        finally:
            self._batching.discard(owner)
            if self._has_commands():
                self._pass_on()

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Lets no other task or thread issue commands while a block runs; they wait."""
        with self._lock:
            self._await_room()
            self.barred = _OneOwner(current_owner())
        try:
            yield
        finally:
            with self._lock:
                self.barred = None
                self._room.notify_all()
            self._tell_of_room()

    def restart(self, barred: Bar) -> Abandoned:
        """Forgets what was issued, because other workers take the place of those it was for.

        What is issued from now on has the numbers after that, and registers that references
        stand for are not used again.

        Args:
            barred: See the attribute; it counts from this moment on.
        """
        with self._lock:
            self.barred = barred
            batches = (*self._under_way, *self._sealed, self._filling)
            issuers = {scope for batch in batches for scope in batch.scopes()}
            self._take_dead()
            live = self._ids.live()
            makers = {self._makers[register][2] for register in live if register in self._makers}
            self._under_way.clear()
            self._sealed.clear()
            self._filling = _Batch(self._seq + 1)
            self._bytes_under_way = self._beside_under_way = self._beside_unmarked = 0
            self._done = Progress(len(self._done.each), self._seq)
            self._room.notify_all()
            return Abandoned(self._seq, live, issuers, makers)

    def wake_callers(self) -> None:
        """Lets calls that wait ask again whether they have to."""
        with self._lock:
            self._room.notify_all()
        self._tell_of_room()

    def live_registers(self) -> set[int]:
        """The registers that references stand for."""
        with self._lock:
            return self._ids.live() - set(self._dead)

    @property
    def owners(self) -> Owners:
        """Whose the registers are."""
        return self._ids.owners

    @property
    def last_seq(self) -> int:
        """The number of the newest command."""
        return self._seq

    @property
    def last_call(self) -> int:
        """The number of the newest command that does more than free registers."""
        with self._lock:
            return self._before_kills if self._last_kill == self._seq else self._seq

    @property
    def closed(self) -> SessionError | None:
        """What later calls raise, once the log is closed."""
        return self._closed

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        return self._done.slowest

    @property
    def high_water(self) -> int:
        """The largest register ever used."""
        return self._ids.high_water

    def site(self, seq: int) -> IssuedAt | None:
        """The line that issued a command not yet executed everywhere."""
        origin = self.origin(seq)
        return None if origin is None else origin[0]

    def origin(self, seq: int) -> tuple[IssuedAt, Scope] | None:
        """The line and the scope that issued a command not yet executed everywhere."""
        with self._lock:
            for batch in (*self._under_way, *self._sealed, self._filling):
                site = batch.site(seq)
                if site is not None:
                    return locate(site), site[2]
        return None

    def maker(self, register: int) -> IssuedAt | None:
        """The line that issued the command whose result is in a register."""
        with self._lock:
            site = self._makers.get(register)
        return None if site is None else locate(site)

    def check_open(self) -> None:
        """Raises the error that closed the log, if it is closed.

        Raises:
            SessionError: The session is closed or lost.
        """
        if self._closed is not None:
            self.told = True
            # The same error is raised each time, with the traceback of this time.
            raise self._closed.with_traceback(None)

    def _await_room(self, deadline: Deadline | None = None) -> None:
        if self.is_full():
            if self.asynchronous and in_event_loop():
                raise WouldBlock(_FULL)
            began = monotonic_ns()
            self._await_more_room(deadline)
            if self.timeline is not None:
                self.timeline.note("wait for room", "wait", began)
        self.check_open()

    def is_full(self) -> bool:
        """Whether the caller would wait for room."""
        return self._closed is None and (
            self._seq - self._done.slowest >= WINDOW_COMMANDS
            or self._bytes_under_way > WINDOW_BYTES
            or self._beside_under_way > WINDOW_ARRAY_BYTES
            or (self.barred is not None and self.barred())
        )

    @property
    def has_much_room(self) -> bool:
        """Whether a quarter of the window is free, so that a caller can issue many commands."""
        return self._closed is not None or (
            self._seq - self._done.slowest <= WINDOW_COMMANDS * 3 // 4
            and self._bytes_under_way <= WINDOW_BYTES * 3 // 4
            and self._beside_under_way <= WINDOW_ARRAY_BYTES * 3 // 4
            and not (self.barred is not None and self.barred.exclusive)
        )

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls something, once, when a quarter of the window is free; it must not wait."""
        with self._lock:
            self._for_room.append(call)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        calls: list[Callable[[], None]] = []
        with self._lock:
            if self.has_much_room:
                calls, self._for_room = self._for_room, calls
        for call in calls:
            call()

    def _await_more_room(self, deadline: Deadline | None) -> None:
        since = None
        if self._batching:  # what the caller waits for may not have left
            self._wake_sender()
        while self.is_full():
            # The transport calls close() when the session is lost, so this ends.
            if not self._room.wait(_LOOK_ROOM_S if deadline is None else deadline.left()):
                if deadline is not None:
                    deadline.check()
                self._lock.release()  # others acknowledge meanwhile, and may make room
                try:
                    since = self.long_waits.look(since)
                finally:
                    self._lock.acquire()

    def _take_dead(self) -> list[int]:
        """The registers whose references died; their ids are free from now on."""
        dead, ids = self._dead, self._ids
        released: list[int] = []
        while dead:
            register = dead.popleft()
            released.append(register)
            ids.free(register)
        return released

    def _seal(self) -> None:
        batch = self._filling
        if batch.entries:
            self._sealed.append(batch)
            self._bytes_under_way += batch.nbytes
            self._filling = _Batch(batch.next_seq)

    # The transport's side ---------------------------------------------------

    def await_commands(self) -> bool:
        """Waits until there may be commands to take; False once there never will be."""
        if self._closed is not None:
            return self._has_commands()
        if self.pump is not None and self._linger():
            return True
        self._sleep()
        self._awake = False
        return True

    def nudge(self) -> None:
        """Wakes the thread that waits for commands, whether there are some or not."""
        self._wake.put(True)

    def _linger(self) -> bool:
        """Looks for commands a while, so that issuing one need not wake this thread.

        A woken thread takes the interpreter from the one that issues and often soon
        waits for what it issued.
        """
        self._awake = True
        with contextlib.suppress(Empty):
            self._wake.get(timeout=_LINGER_S)
        if self._closed is not None or self._has_commands():
            return True
        self._awake = False
        return self._has_commands() or bool(self._dead)

    def _sleep(self) -> None:
        """Waits until this thread is woken, or has to send freed registers on their own."""
        if self.pump is None:
            self._wake.get()
            return
        while True:
            # Mostly the next command takes them along. While commands come, this thread looks
            # now and then by itself, and no freed register wakes it.
            self._kills_due, newest = True, self._seq
            with contextlib.suppress(Empty):
                if self._wake.get(timeout=_KILLS_S):
                    return
            if self._dead:
                return
            if self._seq == newest:
                self._kills_due = False  # before the look, as a register may be freed meanwhile
                if self._dead or self._wake.get():
                    return

    def _has_commands(self) -> bool:
        return bool(self._sealed or self._filling.entries)

    def take_batch(self, kills: bool = True) -> OutgoingBatch | None:
        """Returns the next commands, or None where there are none; never waits.

        The caller must keep other threads from calling it until the batch is sent,
        or commands would overtake one another.

        Args:
            kills: Whether registers whose references died are reason enough; the
                next command takes them along anyway.
        """
        with self._lock:
            if kills and self._dead and not self._has_commands():
                self._issue_kill()
            if not self._sealed:
                self._seal()
            if not self._sealed:
                return None
            batch = self._sealed.popleft()
            self._under_way.append(batch)
            leaving = batch.leave(self._session)
            if self.timeline is not None:
                self.timeline.leave(batch.first_seq, batch.sites)
            return leaving

    def _issue_kill(self) -> None:
        if self._closed is not None:
            self._dead.clear()
            return
        command = EncodedCommand(action=Action.KILL_REG)  # type: ignore[arg-type]  (as above)
        command.released.extend(self._take_dead())
        if self._last_kill != self._seq:
            self._before_kills = self._seq
        self._append(self._filling, call_site(), command)
        self._last_kill = self._seq

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed every command up to ``seq``."""
        if not 0 <= worker < len(self._done.each) or seq <= self._done.each[worker]:
            return
        with self._lock:
            if not self._done.note(worker, seq):
                return
            under_way, done_by_all = self._under_way, self._done.slowest
            while under_way and under_way[0].next_seq - 1 <= done_by_all:
                done = under_way.popleft()
                self._bytes_under_way -= done.nbytes
                self._beside_under_way -= done.beside
            self._room.notify_all()
        if self._for_room:
            self._tell_of_room()

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
        self._tell_of_room()
        self._wake.put(True)

    def disown(self, why: SessionError) -> None:
        """Refuses everything in a forked child, even if a thread of the parent held the lock."""
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._wake = SimpleQueue()
        self.timeline = None
        self.close(why, drop=True)

    def statistics(self) -> dict[str, Any]:
        """How much is in flight: commands, bytes, and each worker's ack."""
        with self._lock:
            return {
                "issued": self._seq,
                "acked": self._done.slowest,
                "acks": list(self._done.each),
                "bytes_under_way": self._bytes_under_way,
                "array_bytes_under_way": self._beside_under_way,
                "registers": self._ids.high_water,
            }
