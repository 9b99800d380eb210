"""The session's log: numbers commands, batches them, forgets them when executed.

One lock guards the log, and what its owner keeps beside it. Three kinds of threads use it: threads
of the program that issue commands, the transport's sender thread that takes encoded batches, and
the transport's reader thread that brings acknowledgements.

A thread of the program may be entered again at any bytecode, by a signal handler or by a
finalizer that the garbage collector runs, and an exception may come out of any bytecode. So
a thread that holds the lock puts a second command aside, and it follows the first one. A
change is one step of those that nothing interrupts (:mod:`disco_client.reentry`). Between
two of them the log is consistent, and the next thread goes on from there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from disco_client.call_sites import Site, call_site, locate
from disco_client.clock import monotonic_ns
from disco_client.errors import (
    EncodingError,
    IssuedAt,
    Reentered,
    SessionError,
    WouldBlock,
)
from disco_client.locks import check_no_lock_held, make_lock
from disco_client.reentry import move, owned
from disco_client.registers import Owners, RegisterIds
from disco_client.scopes import Scope, current_owner, current_scope, in_event_loop
from disco_client.sender_wakeup import SenderWakeup
from disco_client.session_end import SessionEnd
from disco_client.transport.progress import Progress
from disco_client.waiting import Deadline, LongWaits
from disco_client.wire.batch import Entry, OutgoingBatch, plain_call, write_column
from disco_client.wire.codec import Action, EncodedCommand
from disco_client.wire.limits import WINDOW_BYTES, WINDOW_COMMANDS

_Made = TypeVar("_Made")

__all__ = [
    "Abandoned",
    "CommandLog",
    "Fill",
    "LogWatcher",
]


MAX_BATCH_COMMANDS = 2048
MAX_BATCH_BYTES = 128 << 10
"""Of arrays in commands. Other sessions' commands wait behind a batch wherever it is
read, copied and written in one go."""

MAX_COMMAND_BYTES = 32 << 20
"""What one command may hold, so that a batch with it passes every relay."""

WINDOW_ARRAY_BYTES = 256 << 20
"""The window for arrays that travel beside the log, and are buffered on the workers' nodes."""

_LOOK_ROOM_S = 1.0
"""How often a call that waits for room looks whether that is to be reported."""

_FULL = (
    "as many commands or bytes are under way as may be, and the call would stop the event loop"
    " until workers have executed some; before it, `await session.ready()`"
)

_Entry: TypeAlias = "tuple[Site, Entry]"

Fill: TypeAlias = Callable[[EncodedCommand], int]
"""Writes a command's arguments; returns how many bytes of bulk are among them."""


class _Batch:
    """Commands that are sent together, each with the line that issued it.

    Args:
        first_seq: The number of the first of them.
        before: How many bytes all commands before them have together.
        beside_before: How many bytes of arrays travel beside those.

    Attributes:
        entries: The commands that have not left, each with the position that issued it. One
            append makes a command part of the log, so a call that is interrupted has either
            happened or not.
        sites: The positions, once they have left.
        nbytes: How many bytes of arrays and the like are in them.
        beside: How many bytes of arrays travel beside them.
        leaving: What is sent.
        next: The batch that follows.
    """

    __slots__ = (
        "before",
        "beside",
        "beside_before",
        "entries",
        "first_seq",
        "leaving",
        "nbytes",
        "next",
        "sites",
    )

    next: _Batch

    def __init__(self, first_seq: int, before: int = 0, beside_before: int = 0) -> None:
        self.first_seq = first_seq
        self.before = before
        self.beside_before = beside_before
        self.entries: list[_Entry] = []
        self.sites: list[Site] = []
        self.nbytes = 0
        self.beside = 0
        self.leaving: OutgoingBatch | None = None

    @property
    def next_seq(self) -> int:
        """The number of the command after the last one."""
        return self.first_seq + (len(self.entries) or len(self.sites))

    def follow(self) -> _Batch:
        """Makes the batch that follows."""
        return _Batch(self.next_seq, self.before + self.nbytes, self.beside_before + self.beside)

    def leave(self) -> OutgoingBatch:
        """Returns the commands for sending; only the lines that issued them are kept."""
        if self.leaving is not None:
            return self.leaving
        sites, entries = map(list, zip(*self.entries, strict=True))
        calls, commands = write_column(entries)
        last = self.next_seq - 1
        leaving = OutgoingBatch(self.first_seq, last, calls, commands, self.nbytes)
        left: list[_Entry] = []
        self.sites = sites
        self.entries = left
        self.leaving = leaving
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
        num_workers: How many workers acknowledge.
        first_seq: The number of the first command.
        window: How many commands may be under way.
        lock: A reentrant lock that guards the log; its owner may guard more with it.
        ending: How far the session has come to its end; its owner may know it, too.

    Attributes:
        window: As above.
        on_expect: Called with (seq, workers) under the log's lock, before a
            command that will be answered can be sent.
        sender: Wakes the thread that sends.
        entered: Says whether the calling thread is in the middle of issuing a command.
        in_transport: Says whether the calling thread is in the middle of sending or reading.
        ending: As above.
        asynchronous: Whether calls must not wait in an event loop.
        barred: Asked, if set, under the lock and by each call that issues a command, whether
            the call has to wait; may raise.
        long_waits: Is notified each second of waits for room.
        timeline: Takes notes, if set; calls that need not wait never ask for it.
    """

    # Without these Python reads each of more than thirty fields more slowly.
    __slots__ = (
        "__weakref__",
        "_aside",
        "_before_kills",
        "_beside_unmarked",
        "_dead",
        "_done",
        "_filling",
        "_for_room",
        "_for_turn",
        "_ids",
        "_last_kill",
        "_leaving",
        "_lock",
        "_makers",
        "_noticed",
        "_oldest",
        "_room",
        "_seq",
        "asynchronous",
        "barred",
        "ending",
        "entered",
        "in_transport",
        "long_waits",
        "on_expect",
        "sender",
        "timeline",
        "window",
    )

    def __init__(
        self,
        num_workers: int,
        first_seq: int = 1,
        window: int = WINDOW_COMMANDS,
        lock: threading.RLock | None = None,
        ending: SessionEnd | None = None,
    ) -> None:
        self.window: int = window
        self.on_expect: Callable[[int, int], None] = lambda _seq, _answers: None
        self._lock = make_lock("session") if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self._for_turn: deque[Callable[[], object]] = deque()  # called when there may be room
        self._ids = RegisterIds()
        self._makers: dict[int, Site] = {}
        self._dead = self._ids.dead
        # Issued inside of another command by the same thread; they follow that one.
        self._aside: deque[_Entry] = deque()
        self._seq = first_seq - 1
        self._last_kill = self._before_kills = 0
        # A chain: the oldest batch that workers may not have executed, the oldest that may
        # not have left, and the one that grows.
        self._oldest = self._leaving = self._filling = _Batch(first_seq)
        self._beside_unmarked = 0
        self._done = Progress(num_workers, first_seq - 1)
        # Commands up to this number need not ask for room; set back where that may be over.
        self._room = 0
        self._for_room: deque[Callable[[], None]] = deque()
        self._noticed = first_seq - 1  # as executed, by all who wait for it
        self.asynchronous: bool = False
        self.barred: Bar | None = None
        self.sender: SenderWakeup = SenderWakeup(self)
        self.in_transport: Callable[[], bool] = lambda: False
        self.ending: SessionEnd = SessionEnd() if ending is None else ending
        self.long_waits: LongWaits = LongWaits()
        self.timeline: LogWatcher | None = None

    # The program's side ----------------------------------------------------

    def issue(
        self,
        action: Action,
        fill: Fill | None = None,
        *,
        func: int = 0,
        reg: int | Callable[[int], object],
        workers: Sequence[int] = (),
        answers: int = 0,
        beside: Callable[[], int] | None = None,
        deadline: Deadline | None = None,
    ) -> tuple[int, Any]:
        """Appends one command.

        Args:
            action: What it does.
            fill: Writes the arguments; where it raises, nothing was appended.
            func: The register of the function to call.
            reg: The register it is about; or makes the reference of a new one, for its result.
            workers: The workers that act; none means all.
            answers: How many workers will answer it.
            beside: Says, once the arguments are written, how many bytes of arrays
                travel beside it to a worker.
            deadline: When to end a wait for room.

        Returns:
            Its sequence number, and its register, or the new reference.

        Raises:
            DiscoTimeout: There is no room yet; nothing was appended.
            Reentered: This thread is in the middle of another command, and this one has an
                answer or large arrays; or it is sending or reading, and there is no room.
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
        outside = beside() if beside is not None else 0
        if answers or outside:
            self.check_entered()
        if self.entered():
            made = self._take_register(site, command, reg, ())
            self._put_aside((site, command))
            return 0, made
        try:
            waiting = None
            while True:
                with self._lock:
                    if self._seq < self._room or self._has_room():
                        released = self._release_dead(command)
                        made = self._take_register(site, command, reg, released)
                        seq = self._append_command(site, command, nbytes, answers, outside)
                        if released:
                            self._ids.told(len(released) - (command.reg == released[-1]))
                        break
                    turn = self._await_notice()
                waiting = self._wait_for(turn, deadline, waiting)
            if waiting is not None:
                self._note_wait(waiting)
            if not (answers and self.sender.pump is not None):
                self.sender.pass_on(answered=answers > 0)
        except BaseException:
            self.sender.wake(always=True)  # it may have been appended
            raise
        return seq, made

    def _take_register(
        self,
        site: Site,
        command: EncodedCommand,
        reg: int | Callable[[int], object],
        released: Sequence[int],
    ) -> object:
        """Writes the register of a command, perhaps a new one; returns what stands for it.

        A new one is among those of which the command tells workers that they are free, if there
        are any: a worker that the command does not concern would keep what is in there.
        """
        made: object = reg
        if not isinstance(reg, int):
            ids, make = self._ids, reg
            reg = ids.reuse(len(released)) if released else ids.allocate()
            # First, so that a call that is interrupted leaves nothing behind.
            made = make(reg)
            self._makers[reg] = site
        command.reg = reg
        return made

    def _release_dead(self, command: EncodedCommand) -> Sequence[int]:
        """Lets a command tell the workers which registers are free; the lock is held."""
        released = [*self._dead]
        if self._aside:  # looked at last: what is put aside from now on uses none of these
            self._take_aside()
        command.released.extend(released)
        return released

    def _append_command(
        self, site: Site, command: EncodedCommand, nbytes: int, answers: int, outside: int
    ) -> int:
        """Appends a command, and returns its number; the lock is held."""
        batch = self._filling
        if nbytes or outside:
            batch.nbytes += nbytes
            batch.beside += outside
            self._room = 0
        seq = batch.next_seq
        self._append(site, command)
        if answers:
            self.on_expect(seq, answers)
        if outside:
            self._mark_beside(site, outside)
        return seq

    def issue_call(self, func: int, args: list[int], make: Callable[[int], _Made]) -> _Made:
        """Appends a call with nothing but references and small integers.

        Args:
            func: The register of the function.
            args: As of :func:`~disco_client.wire.batch.plain_call`.
            make: Makes the reference of its result, from the register.

        Returns:
            The reference.

        Raises:
            SessionError: The session is closed or lost; or as for :meth:`issue`.
        """
        site = call_site(current_scope(self))
        ids = self._ids
        if self.entered():
            reg = ids.allocate()
            made = make(reg)
            self._makers[reg] = site
            self._put_aside((site, plain_call((), func, reg, args)))
            return made
        try:
            waiting = None
            while True:
                with self._lock:
                    if self._seq < self._room or self._has_room():
                        released = [*ids.dead]
                        if self._aside:  # looked at last, as above
                            self._take_aside()
                        reg = ids.reuse(len(released)) if released else ids.allocate()
                        made = make(reg)
                        self._makers[reg] = site
                        # As plain_call writes it; calling that would cost a fortieth of this.
                        row = (len(released), *released, func, reg, len(args), *args)
                        self._append(site, row)
                        if len(released) > 1:
                            ids.told(len(released) - 1)
                        break
                    turn = self._await_notice()
                waiting = self._wait_for(turn, None, waiting)
            if waiting is not None:
                self._note_wait(waiting)
            self.sender.pass_on()
        except BaseException:
            self.sender.wake(always=True)  # it may have been appended
            raise
        return made

    def allocate(self, count: int) -> list[int]:
        """Takes registers, for a command that has several results."""
        site = call_site()
        with self._lock:
            # Of which the workers know that they are free.
            registers = [self._ids.allocate() for _ in range(count)]
            self._makers.update(dict.fromkeys(registers, site))
        return registers

    def _append(self, site: Site, entry: Entry) -> None:
        batch = self._filling
        entries = batch.entries
        entries.append((site, entry))
        self._seq = batch.first_seq + len(entries) - 1
        if len(entries) >= MAX_BATCH_COMMANDS or batch.nbytes >= MAX_BATCH_BYTES:
            self._seal()

    def _take_aside(self) -> None:
        """Appends what was put aside; the lock is held."""
        move(self._aside, len(self._aside), self._filling.entries)
        self._seq = self.last_seq

    def _put_aside(self, entry: _Entry) -> None:
        """Keeps a command that this thread issues in the middle of another one."""
        self.check_open()
        self._aside.append(entry)
        self.sender.wake(always=True)

    def check_entered(self) -> None:
        """Makes sure that this thread is not in the middle of issuing a command.

        Raises:
            Reentered: It is.
        """
        if self.entered():
            raise Reentered

    def _mark_beside(self, site: Site, nbytes: int) -> None:
        """Lets workers answer now and then while arrays travel beside commands."""
        self._beside_unmarked += nbytes
        if self._beside_unmarked >= WINDOW_ARRAY_BYTES // 4:
            # Workers answer this one, so a call that waits for room learns how far they are.
            self._beside_unmarked = 0
            self._append_mark(site)

    def _append_mark(self, site: Site) -> None:
        mark = EncodedCommand(action=Action.SYNC_WORKER)  # type: ignore[arg-type]  (as above)
        self._append(site, mark)

    def mark(self) -> None:
        """Makes every worker acknowledge what it has executed; never waits."""
        with self._lock:
            if self.ending.refused is None:
                self._append_mark(call_site())
        self.sender.wake()

    def release(self, register: int) -> None:
        """Notes that a reference died; safe inside the garbage collector."""
        owners = self._ids.owners
        if register not in owners.several:
            self._dead.append(register)
        elif ended := owners.remove(register):
            self._dead.extend(ended)
        else:
            return
        self.sender.note_freed()

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Lets no other task or thread issue commands while a block runs; they wait."""
        self.check_entered()
        waiting = None
        try:
            while True:
                with self._lock:
                    if not self.is_full():
                        self.check_open()
                        self.barred, self._room = _OneOwner(current_owner()), 0
                        break
                    turn = self._await_notice()
                waiting = self._wait_for(turn, None, waiting)
            yield
        finally:
            self.barred = None
            self.wake_callers()

    def restart(self, barred: Bar) -> Abandoned:
        """Forgets what was issued, because other workers take the place of those it was for.

        What is issued from now on has the numbers after that, and registers that references
        stand for are not used again.

        Args:
            barred: See the attribute; it counts from this moment on.
        """
        with self._lock:
            self.barred, self._room = barred, 0
            issuers = {scope for batch in self._batches() for scope in batch.scopes()}
            issuers |= {site[2] for site, _ in self._aside}
            last = self.last_seq + len(self._aside)
            self._aside.clear()
            self._ids.told(len(self._dead))
            live = self._ids.live()
            makers = {self._makers[register][2] for register in live if register in self._makers}
            self._oldest = self._leaving = self._filling = _Batch(last + 1)
            self._seq = last
            self._beside_unmarked = 0
            self._done = Progress(len(self._done.each), last)
        self.wake_callers()
        return Abandoned(last, live, issuers, makers)

    def _batches(self) -> Generator[_Batch]:
        """Those that workers may not have executed; the lock is held."""
        batch = self._oldest
        while True:
            yield batch
            if batch is self._filling:
                return
            batch = batch.next

    def wake_callers(self) -> None:
        """Lets calls that wait ask again whether they have to."""
        self._notify()
        self._tell_of_room()

    def _notify(self) -> None:
        try:
            while True:
                self._for_turn.popleft()()
        except IndexError:
            pass

    def watch(self, watcher: LogWatcher | None) -> None:
        """Lets something be notified of what happens here, or nothing."""
        self.sender.on_wake = None if watcher is None else watcher.wake
        self.timeline = watcher

    def live_registers(self) -> set[int]:
        """The registers that references stand for."""
        with self._lock:
            return self._ids.live()

    @property
    def owners(self) -> Owners:
        """Whose the registers are."""
        return self._ids.owners

    @property
    def last_seq(self) -> int:
        """The number of the newest command."""
        return self._filling.next_seq - 1

    @property
    def last_call(self) -> int:
        """The number of the newest command that does more than free registers."""
        with self._lock:
            last = self.last_seq
            return self._before_kills if self._last_kill == last else last

    @property
    def closed(self) -> SessionError | None:
        """What later calls raise, once the log is closed."""
        return self.ending.refused

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        return self._done.slowest

    @property
    def high_water(self) -> int:
        """The largest register ever used."""
        return self._ids.high_water

    def origin(self, seq: int) -> tuple[IssuedAt, Scope] | None:
        """The line and the scope that issued a command not yet executed everywhere."""
        with self._lock:
            return self._origin(seq)

    def _origin(self, seq: int) -> tuple[IssuedAt, Scope] | None:
        for batch in self._batches():
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
        self.ending.check_open()

    def is_full(self) -> bool:
        """Whether the caller would wait for room."""
        oldest, filling = self._oldest, self._filling
        return self.ending.refused is None and (
            self._seq - self._done.slowest >= self.window
            or filling.before - oldest.before > WINDOW_BYTES
            or filling.beside_before + filling.beside - oldest.beside_before > WINDOW_ARRAY_BYTES
            or (self.barred is not None and self.barred())
        )

    def _has_room(self) -> bool:
        """Whether the caller may append a command, and those behind it; the lock is held.

        Raises:
            SessionError: The session is closed or lost.
        """
        if self.is_full():
            return False
        self.check_open()
        limit = self._done.slowest + self.window
        # Without a call, so that nothing closes the log in between.
        if self.barred is None and self.ending.refused is None:
            self._room = limit
        return True

    @property
    def has_much_room(self) -> bool:
        """Whether a quarter of the window is free, so that a caller can issue many commands."""
        return self.ending.refused is not None or (
            self._seq - self._done.slowest <= self.window * 3 // 4
            and self._bytes_under_way() <= WINDOW_BYTES * 3 // 4
            and self._beside_under_way() <= WINDOW_ARRAY_BYTES * 3 // 4
            and not (self.barred is not None and self.barred.exclusive)
        )

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls something, once, when a quarter of the window is free; it must not wait.

        Where an exception interrupts the call, it may be repeated.
        """
        with self._lock:
            self._for_room.append(call)
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        with self._lock:
            self._call_while_room()

    def _call_while_room(self) -> None:
        calls = self._for_room
        while calls and self.has_much_room:
            call = calls[0]
            call()
            if calls and calls[0] is call:  # else this thread was here again meanwhile
                calls.popleft()

    def _bytes_under_way(self) -> int:
        """How many bytes are in commands that left, or wait to, and are not executed."""
        return self._filling.before - self._oldest.before

    def _beside_under_way(self) -> int:
        """The same for arrays beside them."""
        filling = self._filling
        return filling.beside_before + filling.beside - self._oldest.beside_before

    def _await_notice(self) -> threading.Lock:
        """Returns a lock that is freed when there may be room; the lock of the log is held.

        Raises:
            WouldBlock: The caller must not wait.
            Reentered: This thread is sending or reading, so there is no room until it goes on.
        """
        if self.asynchronous and in_event_loop():
            raise WouldBlock(_FULL)
        if self.in_transport():
            raise Reentered
        turn = threading.Lock()
        turn.acquire()
        self._for_turn.append(turn.release)
        return turn

    def _wait_for(
        self, turn: threading.Lock, deadline: Deadline | None, waiting: tuple[int, Any] | None
    ) -> tuple[int, Any]:
        """Waits for room, without the lock of the log.

        Args:
            turn: As :meth:`_await_notice` returned it.
            deadline: When to end the wait.
            waiting: What it returned before, in the same call.

        Raises:
            DiscoTimeout: The wait has taken too long.
        """
        began, since = waiting or (monotonic_ns(), None)
        if self.sender.batching:  # what the caller waits for may not have left
            self.sender.wake()
        # The transport calls close() when the session is lost, so this ends.
        if not turn.acquire(timeout=_LOOK_ROOM_S if deadline is None else deadline.left()):
            if deadline is not None:
                deadline.check()
            check_no_lock_held()
            with self._lock:
                self._trim()
            since = self.long_waits.look(since)
        return began, since

    def _note_wait(self, waiting: tuple[int, Any]) -> None:
        if self.timeline is not None:
            self.timeline.note("wait for room", "wait", waiting[0])

    def _seal(self) -> None:
        batch = self._filling
        if batch.entries:
            following = batch.follow()
            batch.next = following
            self._filling = following

    # The transport's side ---------------------------------------------------

    def nudge_on_progress(self) -> None:
        """Wakes that thread when workers have executed more."""
        self._for_turn.append(self.sender.nudge)

    @property
    def dead(self) -> deque[int]:
        """The registers that were freed, of which no command tells yet."""
        return self._dead

    @property
    def newest(self) -> int:
        """The number of the newest command, perhaps without those put aside."""
        return self._seq

    @property
    def refuses(self) -> bool:
        """Whether no more commands are taken."""
        return self.ending.refused is not None

    def has_commands(self) -> bool:
        """Whether there are commands that have not left."""
        leaving = self._leaving
        return leaving is not self._filling or bool(leaving.entries or self._aside)

    def take_batch(self, kills: bool = True) -> OutgoingBatch | None:
        """Returns the next commands, or None where there are none; never waits.

        It returns the same ones until :meth:`left` was called for them. The caller must keep
        other threads from calling it until the batch is sent, or commands would overtake one
        another.

        Args:
            kills: Whether registers whose references died are reason enough; the
                next command takes them along anyway.
        """
        with self._lock:
            if self._aside:
                self._take_aside()
            if kills and self._dead and not self.has_commands():
                self._issue_kill()
            batch = self._leaving
            if batch is self._filling:
                self._seal()
            if batch is self._filling:
                return None
            leaving = batch.leave()
            if self.timeline is not None:
                self.timeline.leave(batch.first_seq, batch.sites)
            return leaving

    def left(self, seq: int) -> None:
        """Notes that the batch up to a command is on its way; the caller took it."""
        batch = self._leaving
        if batch.leaving is not None and batch.leaving.last_seq == seq:
            self._leaving = batch.next

    def _issue_kill(self) -> None:
        if self.ending.refused is not None:
            self._dead.clear()
            return
        command = EncodedCommand(action=Action.KILL_REG)  # type: ignore[arg-type]  (as above)
        released = self._release_dead(command)
        if self._last_kill != self._seq:
            self._before_kills = self._seq
        self._append(call_site(), command)
        self._last_kill = self._seq
        self._ids.told(len(released))

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed every command up to ``seq``.

        A call that an exception interrupts is completed by the next one.
        """
        done = self._done
        if not 0 <= worker < len(done.each):
            return
        if self._noticed == done.slowest and done.knows(worker, seq):
            return
        with self._lock:
            self._done.note(worker, seq)
            slowest = self._done.slowest
            if slowest == self._noticed:
                return
            self._trim()
            self._notify()
        if self._for_room:
            self._tell_of_room()
        self._noticed = slowest

    def _trim(self) -> None:
        """Forgets what all workers have executed; the lock is held."""
        batch, done_by_all = self._oldest, self._done.slowest
        while batch is not self._filling and batch.next_seq - 1 <= done_by_all:
            batch = batch.next
        self._oldest = batch

    def close(self, why: SessionError, *, drop: bool) -> None:
        """Refuses further commands with this error; idempotent.

        Args:
            why: What every later call raises.
            drop: Whether commands not yet taken are thrown away.
        """
        with self._lock:
            self._room = 0  # first, so that an exception leaves no log that is closed and has room
            self.ending.close(why)
            if drop:
                last = self.last_seq
                self._aside.clear()
                self._oldest = self._leaving = self._filling = _Batch(last + 1)
                self._seq = last
        self.wake_callers()
        self.sender.nudge()

    def disown(self, why: SessionError, lock: threading.RLock) -> None:
        """Refuses everything in a forked child, where another lock guards it.

        A thread of the parent may have held the former one.
        """
        self._lock = lock
        self.entered = owned(self._lock)
        self._for_turn = deque()
        self.sender.disown()
        self.timeline = None
        self.close(why, drop=True)

    def statistics(self) -> dict[str, Any]:
        """How much is in flight: commands, bytes, and each worker's ack."""
        with self._lock:
            return {
                "issued": self.last_seq,
                "acked": self._done.slowest,
                "acks": list(self._done.each),
                "bytes_under_way": self._bytes_under_way(),
                "array_bytes_under_way": self._beside_under_way(),
                "registers": self._ids.high_water,
            }
