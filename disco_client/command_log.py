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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from disco_client.answers import Answers
from disco_client.batches import Batches, PlacedEntry
from disco_client.call_sites import Site, call_site, locate
from disco_client.errors import EncodingError, IssuedAt, Reentered, SessionError
from disco_client.locks import make_lock
from disco_client.reentry import owned
from disco_client.registers import RegisterIds
from disco_client.scopes import Scope, current_scope
from disco_client.sender_wakeup import SenderWakeup
from disco_client.session_end import SessionEnd
from disco_client.waiting import Deadline
from disco_client.window import Bar, OneOwner, Waiting, Window
from disco_client.wire.batch import OutgoingBatch, command_of, plain_call
from disco_client.wire.codec import INTERRUPTIBLE, Action, EncodedCommand
from disco_client.wire.limits import WINDOW_COMMANDS

_Made = TypeVar("_Made")

__all__ = ["Abandoned", "CommandLog", "CommandsUnderWay", "Fill", "LogWatcher"]

MAX_COMMAND_BYTES = 32 << 20
"""What one command may hold, so that a batch with it passes every relay."""

Fill: TypeAlias = Callable[[EncodedCommand], int]
"""Writes a command's arguments; returns how many bytes of bulk are among them."""


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


@dataclass(frozen=True, slots=True)
class CommandsUnderWay:
    """The commands that an interrupt is about.

    Attributes:
        after: The newest command that all workers are known to have executed.
        until: The newest of all.
        sites: The commands, with the positions in the program that issued them.
    """

    after: int
    until: int
    sites: Mapping[int, Site]

    def site(self, seq: int) -> Site | None:
        """The position that issued a command, if it is one of these."""
        return self.sites.get(seq)


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


class CommandLog:
    """The ordered commands of one session, from issue to acknowledgement.

    Args:
        num_workers: How many workers acknowledge.
        first_seq: The number of the first command.
        window: How many commands may be under way.
        lock: A reentrant lock that guards the log; its owner may guard more with it.

    Attributes:
        window: Says how many commands may be under way, and lets calls wait for room.
        registers: The ids of registers, and who made what is in them.
        answers: The answers to come, which are expected before their commands can be sent.
        sender: Wakes the thread that sends.
        entered: Says whether the calling thread is in the middle of issuing a command.
        ending: How far the session has come to its end.
        time_limit: Says, if set, how many seconds a command of the caller's may take; 0 for
            as long as it takes.
        timeline: Takes notes, if set; calls that need not wait never ask for it.
    """

    __slots__ = (
        "__weakref__",
        "_batches",
        "_before_kills",
        "_beside_unmarked",
        "_last_kill",
        "_lock",
        "_noticed",
        "_room",
        "answers",
        "ending",
        "entered",
        "registers",
        "sender",
        "time_limit",
        "timeline",
        "window",
    )

    def __init__(
        self,
        num_workers: int,
        first_seq: int = 1,
        window: int = WINDOW_COMMANDS,
        lock: threading.RLock | None = None,
    ) -> None:
        self._lock = make_lock("session") if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self.ending: SessionEnd = SessionEnd()
        self.answers: Answers = Answers(self.ending)
        self.registers: RegisterIds = RegisterIds()
        self._batches = Batches(num_workers, first_seq)
        self._last_kill = self._before_kills = 0
        self._beside_unmarked = 0
        # Commands up to this number need not ask for room; set back where that may be over.
        self._room = 0
        self._noticed = first_seq - 1  # as executed, by all who wait for it
        self.window: Window = Window(self._batches, window, self.ending, self._lock)
        self.sender: SenderWakeup = SenderWakeup(self._batches, self.registers, self.ending)
        self.timeline: LogWatcher | None = None
        self.time_limit: Callable[[], float] | None = None

    # The program's side ----------------------------------------------------

    def issue(  # noqa: PLR0913  (what a command consists of)
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
        site: Site | None = None,
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
            site: The line and the scope that it is for; None for the caller's.

        Returns:
            Its sequence number, and its register, or the new reference.

        Raises:
            DiscoTimeout: There is no room yet; nothing was appended.
            Reentered: This thread is in the middle of another command, and this one has an
                answer or large arrays; or it is sending or reading, and there is no room.
            SessionError: The session is closed or lost, or this would wait in an event loop.
        """
        site = site or call_site(current_scope(self))
        command = EncodedCommand(action=action, func=func)  # type: ignore[arg-type]  (the numbers are the same)
        if self.time_limit is not None and action in INTERRUPTIBLE:
            command.limit_s = self.time_limit()
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
                    if self._batches.newest < self._room or self._has_room():
                        released = self._release_dead(command)
                        made = self._take_register(site, command, reg, released)
                        seq = self._append_command(site, command, nbytes, answers, outside)
                        if released:
                            self.registers.told(len(released) - (command.reg == released[-1]))
                        break
                    turn = self.window.await_notice()
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
            ids, make = self.registers, reg
            reg = ids.reuse(len(released)) if released else ids.allocate()
            # First, so that a call that is interrupted leaves nothing behind.
            made = make(reg)
            ids.makers[reg] = site
        command.reg = reg
        return made

    def _release_dead(self, command: EncodedCommand) -> Sequence[int]:
        """Lets a command tell the workers which registers are free; the lock is held."""
        released = [*self.registers.dead]
        if self._batches.aside:  # looked at last: what is put aside later uses none of these
            self._batches.take_aside()
        command.released.extend(released)
        return released

    def _append_command(
        self, site: Site, command: EncodedCommand, nbytes: int, answers: int, outside: int
    ) -> int:
        """Appends a command, and returns its number; the lock is held."""
        batch = self._batches.filling
        if nbytes or outside:
            batch.nbytes += nbytes
            batch.beside += outside
            self._room = 0
        seq = batch.next_seq
        self._batches.append(site, command)
        if command.results:
            self.registers.makers.update(dict.fromkeys(command.results, site))
        if answers:
            batch.questions.append(seq)
            self.answers.expect(seq, answers)
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
        if self.time_limit is not None and self.time_limit():
            plain = command_of(plain_call((), func, 0, args)).args

            def fill(command: EncodedCommand) -> int:
                command.args.extend(plain)
                return 0

            return self.issue(Action.CALL_PACKED, fill, func=func, reg=make)[1]  # type: ignore[no-any-return]
        site = call_site(current_scope(self))
        batches, ids = self._batches, self.registers
        if self.entered():
            reg = ids.allocate()
            made = make(reg)
            ids.makers[reg] = site
            self._put_aside((site, plain_call((), func, reg, args)))
            return made
        try:
            waiting = None
            while True:
                with self._lock:
                    if batches.newest < self._room or self._has_room():
                        released = [*ids.dead]
                        if batches.aside:  # looked at last, as above
                            batches.take_aside()
                        reg = ids.reuse(len(released)) if released else ids.allocate()
                        made = make(reg)
                        ids.makers[reg] = site
                        # As plain_call writes it; calling that would cost a fortieth of this.
                        row = (len(released), *released, func, reg, len(args), *args)
                        batches.append(site, row)
                        if len(released) > 1:
                            ids.told(len(released) - 1)
                        break
                    turn = self.window.await_notice()
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
            registers = [self.registers.allocate() for _ in range(count)]
            self.registers.makers.update(dict.fromkeys(registers, site))
        return registers

    def _put_aside(self, entry: PlacedEntry) -> None:
        """Keeps a command that this thread issues in the middle of another one."""
        self.check_open()
        self._batches.aside.append(entry)
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
        if self._beside_unmarked >= self.window.beside // 4:
            # Workers answer this one, so a call that waits for room learns how far they are.
            self._beside_unmarked = 0
            self._append_mark(site)

    def _append_mark(self, site: Site) -> None:
        mark = EncodedCommand(action=Action.SYNC_WORKER)  # type: ignore[arg-type]  (as above)
        self._batches.append(site, mark)

    def mark(self) -> None:
        """Makes every worker acknowledge what it has executed; never waits."""
        with self._lock:
            if self.ending.refused is None:
                self._append_mark(call_site())
        self.sender.wake()

    def release(self, register: int) -> None:
        """Notes that a reference died; safe inside the garbage collector."""
        registers = self.registers
        if register not in registers.owners.several:
            registers.dead.append(register)
        elif ended := registers.owners.remove(register):
            registers.dead.extend(ended)
        else:
            return
        self.sender.note_freed()

    @contextlib.contextmanager
    def alone(self) -> Generator[None]:
        """Lets no other task or thread issue commands while a block runs; they wait."""
        self.check_entered()
        bar = OneOwner()
        try:
            self._bar_others(bar, self.is_full)
            yield
        finally:
            self.lift(bar)

    def _bar_others(self, bar: OneOwner, has_to_wait: Callable[[], bool]) -> None:
        """Admits the caller alone, once nobody else does and it does not have to wait."""
        waiting = None
        while True:
            with self._lock:
                if not has_to_wait():
                    self.check_open()
                    bar.former = self.window.bar
                    self.window.bar, self._room = bar, 0
                    break
                turn = self.window.await_notice()
            waiting = self._wait_for(turn, None, waiting)

    def lift(self, bar: OneOwner) -> None:
        """Admits others again, unless another bar has taken the place of this one."""
        bar.lifted, former = True, bar.former
        if self.window.bar is bar:
            over = isinstance(former, OneOwner) and former.lifted
            self.window.bar = None if over else former
        self.window.wake_callers()

    def begin_interrupt(self) -> tuple[CommandsUnderWay, OneOwner]:
        """Lets nobody else issue commands until the bar is lifted; returns what is under way.

        Raises:
            SessionError: The session is closed or lost.
        """
        self.check_entered()
        bar, window = OneOwner(over=True), self.window
        try:
            self._bar_others(bar, lambda: window.bar is not None and window.bar.over)
            return self.under_way(), bar
        except BaseException:
            self.lift(bar)
            raise

    def under_way(
        self, chosen: Callable[[int, Site], bool] = lambda _seq, _site: True
    ) -> CommandsUnderWay:
        """What is not known to be executed everywhere, without questions.

        Args:
            chosen: Whether a command is meant, of its number and position.
        """
        batches = self._batches
        with self._lock:
            if batches.aside:
                batches.take_aside()
            after, until = batches.done.slowest, self.last_seq
            sites, questions = batches.sites(after), batches.questions()
        found = {
            seq: site
            for seq, site in enumerate(sites, after + 1)
            if seq not in questions and chosen(seq, site)
        }
        commands = CommandsUnderWay(after, until, found)
        if found:
            batches.interrupted.append(found)
        return commands

    def restart(self, bar: Bar, num_workers: int) -> Abandoned:
        """Forgets what was issued, because other workers take the place of those it was for.

        What is issued from now on has the numbers after that, and registers that references
        stand for are not used again.

        Args:
            bar: See :class:`~disco_client.window.Window`; it counts from this moment on.
            num_workers: How many workers there are from now on.
        """
        with self._lock:
            self.window.bar, self._room = bar, 0
            issuers = self._batches.scopes()
            registers = self.registers
            registers.told(len(registers.dead))
            live = registers.live()
            makers = {site[2] for site in registers.sites_of(live)}
            last = self._batches.restart(num_workers)
            self._beside_unmarked = 0
        self.window.wake_callers()
        return Abandoned(last, live, issuers, makers)

    def watch(self, watcher: LogWatcher | None) -> None:
        """Lets something be notified of what happens here, or nothing."""
        self.sender.on_wake = None if watcher is None else watcher.wake
        self.timeline = watcher

    def live_registers(self) -> set[int]:
        """The registers that references stand for."""
        with self._lock:
            return self.registers.live()

    @property
    def last_seq(self) -> int:
        """The number of the newest command."""
        return self._batches.last_seq

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
        return self._batches.done.slowest

    def origin(self, seq: int) -> tuple[IssuedAt, Scope] | None:
        """The line and the scope that issued a command not yet executed everywhere."""
        with self._lock:
            site = self._batches.site(seq)
        return None if site is None else (locate(site), site[2])

    def scope(self) -> Scope:
        """The caller's scope, which is a block of this log if it is in one."""
        return current_scope(self)

    def check_open(self) -> None:
        """Raises the error that closed the log, if it is closed.

        Raises:
            SessionError: The session is closed or lost.
        """
        self.ending.check_open()

    def is_full(self) -> bool:
        """Whether the caller would wait for room."""
        return self.window.is_full()

    def _has_room(self) -> bool:
        """Whether the caller may append a command, and those behind it; the lock is held.

        Raises:
            SessionError: The session is closed or lost.
        """
        if self.is_full():
            return False
        self.check_open()
        limit = self.window.limit
        # Without a call, so that nothing closes the log in between.
        if self.window.bar is None and self.ending.refused is None:
            self._room = limit
        return True

    def _wait_for(
        self, turn: threading.Lock, deadline: Deadline | None, waiting: Waiting | None
    ) -> Waiting:
        """Waits for room; see `Window.wait`."""
        if self.sender.batching:  # what the caller waits for may not have left
            self.sender.wake()
        return self.window.wait(turn, deadline, waiting)

    def _note_wait(self, waiting: Waiting) -> None:
        if self.timeline is not None:
            self.timeline.note("wait for room", "wait", waiting[0])

    # The transport's side ---------------------------------------------------

    def nudge_on_progress(self) -> None:
        """Wakes that thread when workers have executed more."""
        self.window.call_on_progress(self.sender.nudge)

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
            batches = self._batches
            if batches.aside:
                batches.take_aside()
            if kills and self.sender.kills and self.registers.dead and not batches.some_to_send:
                self._issue_kill()
            batch = batches.next_to_leave()
            if batch is None:
                return None
            leaving = batch.leave()
            if self.timeline is not None:
                self.timeline.leave(batch.first_seq, batch.sites)
            return leaving

    def left(self, seq: int) -> None:
        """Notes that the batch up to a command is on its way; the caller took it."""
        self._batches.left(seq)

    def _issue_kill(self) -> None:
        if self.ending.refused is not None:
            self.registers.dead.clear()
            return
        command = EncodedCommand(action=Action.KILL_REG)  # type: ignore[arg-type]  (as above)
        released = self._release_dead(command)
        if self._last_kill != self._batches.newest:
            self._before_kills = self._batches.newest
        self._batches.append(call_site(), command)
        self._last_kill = self._batches.newest
        self.registers.told(len(released))

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed every command up to ``seq``.

        A call that an exception interrupts is completed by the next one.
        """
        done = self._batches.done
        if not 0 <= worker < len(done.each):
            return
        if self._noticed == done.slowest and done.knows(worker, seq):
            return
        with self._lock:
            done = self._batches.done  # anew, as other workers may have come
            done.note(worker, seq)
            slowest = done.slowest
            if slowest == self._noticed:
                return
            self._batches.trim()
            self.window.notify()
        self.window.tell_of_room()
        self._noticed = slowest

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
                self._batches.drop(self.last_seq)
        self.window.wake_callers()
        self.sender.nudge()

    def disown(self, why: SessionError, lock: threading.RLock) -> None:
        """Refuses everything in a forked child, where another lock guards it.

        A thread of the parent may have held the former one.
        """
        self._lock = lock
        self.entered = owned(self._lock)
        self.window.disown(lock)
        self.sender.disown()
        self.timeline = None
        self.close(why, drop=True)

    def statistics(self) -> dict[str, Any]:
        """How much is in flight: commands, bytes, and each worker's ack."""
        with self._lock:
            return {
                "issued": self.last_seq,
                "acked": self.acked,
                "acks": list(self._batches.done.each),
                "bytes_under_way": self._batches.nbytes,
                "array_bytes_under_way": self._batches.beside,
                "registers": self.registers.high_water,
            }
