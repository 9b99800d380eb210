"""``session.interrupt``: ends what workers execute, and leaves out what they have not begun.

Workers learn of it beside the log, which they may not read for long. Then each is asked what it
has ended or left out. What one of them has not executed counts as interrupted on all: results
that others have are taken back, and a replay leaves the same commands out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.arguments import check_worker
from disco_client.checkpointing import replaying_of
from disco_client.command_log import CommandsUnderWay
from disco_client.errors import (
    ConfigError,
    DiscoError,
    DiscoTimeout,
    RemoteFailure,
    WorkersReplaced,
)
from disco_client.locks import make_lock
from disco_client.reentry import Event
from disco_client.replies import Settling
from disco_client.scopes import Block, Scope
from disco_client.threads import start_thread
from disco_client.waiting import Deadline
from disco_client.wire.codec import Action, EncodedCommand, FailureKind, InterruptedAt

if TYPE_CHECKING:
    from disco_client.core import SessionCore
    from disco_client.failed_commands import Report

__all__ = ["Interrupts"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""How long after an interrupt workers are told once more: one may have come between two calls."""

_TELL = "runtime.disco._tell_interrupted"
_TAKE_BACK = "runtime.disco._interrupt_registers"
_ENDED = "the program interrupted this command (session.interrupt)"
_LEFT_OUT = "the program interrupted the session before this command began (session.interrupt)"

_Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Interrupts:
    """The interrupts of one session, one at a time.

    Args:
        core: The session's.
    """

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._lock = make_lock()
        self._current: _Interrupt | None = None

    def interrupt(
        self, workers: Iterable[int] | None, grace: float, *, force: bool
    ) -> tuple[int, ...]:
        """Interrupts what was issued so far; see ``Session.interrupt``."""
        core = self._core
        if isinstance(grace, bool) or not isinstance(grace, int | float) or not grace >= 0:
            msg = f"expected grace to be 0 or more seconds, got {grace!r}"
            raise ConfigError(msg)
        chosen = _chosen(workers, core.num_workers)
        core.check_may_wait("await asyncio.to_thread(session.interrupt)")
        core.log.check_open()
        with self._lock:
            # What was issued is a part of one under way: nobody has issued more since it began.
            current = self._current
            if current is None or current.over.is_set():
                current = _Interrupt(core, chosen)
                current.start()
                self._current = current
        return current.press(chosen, grace, force=force)


def _chosen(workers: Iterable[int] | None, count: int) -> tuple[int, ...]:
    if workers is None:
        return tuple(range(count))
    return tuple(sorted({check_worker(worker, count) for worker in workers}))


class _Interrupt:
    """One interrupt, from its beginning until it is known what it has ended.

    A thread of its own does it, as the caller's may be interrupted itself. Nobody else issues
    commands meanwhile.

    Args:
        core: The session's.
        workers: Who ends the command that it executes.

    Attributes:
        over: Set when that is known, or the session has ended.
    """

    def __init__(self, core: SessionCore, workers: tuple[int, ...]) -> None:
        self._core = core
        self._workers = workers
        self._replaying = replaying_of(core)
        self._block = Block(core.log)
        self._settling = Settling(self._block.scope)
        self._under_way: CommandsUnderWay
        self._asked: list[int] = []
        self._told: dict[int, Mapping[str, Any]] = {}
        self._error: DiscoError | None = None
        self._begun: Event = Event()
        self.over: Event = Event()

    def start(self) -> None:
        """Begins.

        Raises:
            ThreadRefused: The system starts no thread for it.
        """
        start_thread(threading.Thread(target=self._run, name="disco-interrupt", daemon=True))

    # In threads that interrupt ------------------------------------------------------------------

    def press(self, workers: tuple[int, ...], grace: float, *, force: bool) -> tuple[int, ...]:
        """Waits until workers have reacted; returns those that are late.

        Args:
            workers: Who ends the command that it executes, beside those of before.
            grace: How many seconds to wait.
            force: Whether to end the processes of those that are late then.
        """
        try:
            self._begun.wait()
            if not set(workers) <= set(self._workers):
                self._workers = tuple(sorted({*self._workers, *workers}))
                self._send()
            if not self.over.wait(grace) and force and self._send(force=True):
                self.over.wait()
        finally:
            self._settling.end()  # what is late is no reason to let others wait
        if self.over.is_set() and self._error is not None:
            raise self._error.with_traceback(None)
        return () if self.over.is_set() else self._late

    def _send(self, *, force: bool = False) -> bool:
        """Tells the workers; or ends those that are late, where that is possible."""
        workers = self._late if force else self._workers
        return self._core.transport.interrupt(self._under_way.until, workers, force=force)

    @property
    def _late(self) -> tuple[int, ...]:
        return tuple(worker for worker in range(self._core.num_workers) if worker not in self._told)

    # In its own thread --------------------------------------------------------------------------

    def _run(self) -> None:
        core = self._core
        try:
            self._under_way = core.log.begin_interrupt()
            try:
                core.inbox.settling = self._settling
                if self._replaying is not None:
                    self._replaying.begin_interrupt(self._under_way.until)
                self._begun.set()
                with self._block:
                    self._send()
                    self._ask()
                    self._wait()
                    self._settle()
            finally:
                core.inbox.settling = None
                if self._replaying is not None:
                    self._replaying.begin_interrupt(0)
                core.log.lift(self._under_way.bar)
        except WorkersReplaced:
            pass  # what was interrupted is gone with them
        except DiscoError as error:
            self._error = error
        finally:
            for seq in self._asked:
                core.inbox.forget(seq)
            self._settling.end()
            self.over.set()
            self._begun.set()

    def _ask(self) -> None:
        """Asks each worker what it will have ended or left out; the answers come when it has."""
        core, begun = self._core, self._under_way

        def fill(command: EncodedCommand) -> int:
            command.args.add().int = begun.after
            command.args.add().int = begun.until
            return 0

        func = core.check_ref(core.builtin(_TELL))
        # Now, as its register may not be one of those that are told to be missing.
        core.builtin(_TAKE_BACK)
        _, told = core.log.issue(Action.CALL_PACKED, fill, func=func, reg=core.refer)
        self._asked = [
            core.question(Action.DEBUG_GET_FROM_REMOTE, told, worker)
            for worker in range(core.num_workers)
        ]

    def _wait(self) -> None:
        """Waits for the answers; tells the workers again until they have come."""
        pause = _FIRST_PAUSE_S
        for worker, seq in enumerate(self._asked):
            while worker not in self._told:
                try:
                    self._told[worker] = self._core.answered(
                        seq, worker, deadline=Deadline(pause), scope=self._block.scope, forget=False
                    )
                except DiscoTimeout:
                    self._send()
                    pause = min(2 * pause, _LONGEST_PAUSE_S)

    # What was interrupted -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Makes what one worker has ended or left out interrupted on all."""
        core, told = self._core, [self._told[worker] for worker in sorted(self._told)]
        found = _Commands(self._under_way, told, [rank.node for rank in core.welcome.ranks])
        if not found.some:
            return
        if self._replaying is not None:
            self._replaying.leave_out(found.marks())
        results = [_pairs(each["registers"]) for each in told]
        live = core.log.live_registers()
        taken_back = {reg: seq for pairs in results for reg, seq in pairs if reg in live}
        if any(not taken_back.keys() <= dict(pairs).keys() for pairs in results):
            flat = np.asarray([*taken_back.items()], np.int64).reshape(-1)
            core.call_now(_TAKE_BACK, flat)
        core.renew_parts()
        core.inbox.interrupt(found)


class _Commands:
    """The commands that an interrupt has ended or had left out, on whichever worker.

    Args:
        under_way: Those that it is about.
        told: What each worker has told.
        nodes: The node of each worker.

    Attributes:
        some: Whether there are any.
        firsts: The first of them that each scope has issued.
    """

    def __init__(
        self, under_way: CommandsUnderWay, told: Sequence[Mapping[str, Any]], nodes: Sequence[str]
    ) -> None:
        self._under_way, self._nodes = under_way, nodes
        count = under_way.until - under_way.after
        # Of each command: the first worker that has not executed it, and whether one began.
        self._worker = np.full(count, -1, np.int32)
        self._begun: _Mask = np.zeros(count, np.bool_)
        for worker, each in enumerate(told):
            left: _Mask = np.zeros(count, np.bool_)
            for first, last in _pairs(each["left"]):
                left[self._place(first) : self._place(last) + 1] = True
            self._worker[left & (self._worker < 0)] = worker
            left[each["begun"] - under_way.after - 1] = False
            self._begun |= ~left
        self.some: bool = bool((self._worker >= 0).any())
        self.firsts: dict[Scope, int] = {}
        for seq in self._numbers():
            site = under_way.site(seq)
            if site is not None:
                self.firsts.setdefault(site[2], seq)

    def _place(self, seq: int) -> int:
        return seq - self._under_way.after - 1

    def _numbers(self) -> Iterator[int]:
        after = self._under_way.after + 1
        return (int(place) + after for place in np.flatnonzero(self._worker >= 0))

    def marks(self) -> dict[int, InterruptedAt]:
        """The commands, each with how far workers had come with it."""
        within, before = InterruptedAt.WITHIN, InterruptedAt.BEFORE
        begun = self._begun
        return {seq: within if begun[self._place(seq)] else before for seq in self._numbers()}

    def report(self, seq: int) -> Report | None:
        """What is reported of a command, if it is one of them."""
        place = self._place(seq)
        if not 0 <= place < len(self._worker) or self._worker[place] < 0:
            return None
        worker = int(self._worker[place])
        why = _ENDED if self._begun[place] else _LEFT_OUT
        return RemoteFailure(worker, seq, why, node=self._nodes[worker]), FailureKind.INTERRUPTED


def _pairs(flat: Any) -> list[tuple[int, int]]:
    return [(int(one), int(other)) for one, other in flat.reshape(-1, 2)]
