"""``session.interrupt``: ends what workers execute, and leaves out what they have not begun.

Workers learn of it beside the log, which they may not read for long. Then each is asked what it
has ended or left out.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from disco_client.arguments import check_worker
from disco_client.command_log import CommandsUnderWay
from disco_client.errors import ConfigError, DiscoError, WorkersReplaced
from disco_client.interrupted_commands import Inquiry
from disco_client.locks import make_lock
from disco_client.reentry import Event
from disco_client.replies import Settling
from disco_client.scopes import Block, Scope
from disco_client.threads import start_thread

if TYPE_CHECKING:
    from disco_client.core import SessionCore

__all__ = ["Interrupts"]

_PATIENCE_S = 5.0
"""How long others wait to learn of an interrupt for which its own thread does not wait."""


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
        current = self._begin(chosen, math.inf if force else grace, None)
        return current.press(chosen, grace, force=force)

    def begin(self) -> None:
        """Interrupts what was issued so far on all workers, and does not wait for that.

        The calling scope is not told, as it knows.

        Raises:
            SessionError: The session is closed or lost, or the system starts no thread.
        """
        core = self._core
        self._begin(tuple(range(core.num_workers)), _PATIENCE_S, core.log.scope())

    def _begin(
        self, workers: tuple[int, ...], patience: float, knowing: Scope | None
    ) -> _Interrupt:
        self._core.log.check_open()
        with self._lock:
            # What was issued is a part of one under way: nobody has issued more since it began.
            current = self._current
            if current is None or current.over.is_set():
                current = _Interrupt(self._core, workers, patience, knowing)
                current.start()
                self._current = current
        return current


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
        patience: For how many seconds at most waits of others raise nothing, as it is not known
            what the interrupt has ended.
        knowing: The scope that is not told, if there is one.

    Attributes:
        over: Set when that is known, or the session has ended.
    """

    def __init__(
        self,
        core: SessionCore,
        workers: tuple[int, ...],
        patience: float,
        knowing: Scope | None,
    ) -> None:
        self._core = core
        self._workers, self._patience, self._knowing = workers, patience, knowing
        self._replaying = core.replaying
        self._block = Block(core.log)
        self._settling = Settling(self._block.scope)
        self._under_way: CommandsUnderWay
        self._inquiry: Inquiry
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
        self._begun.wait()
        if not set(workers) <= set(self._workers):
            self._workers = tuple(sorted({*self._workers, *workers}))
            self._send()
        if not self.over.wait(grace) and force and self._send(force=True):
            self.over.wait()
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
        told = self._inquiry.told
        return tuple(worker for worker in range(self._core.num_workers) if worker not in told)

    # In its own thread --------------------------------------------------------------------------

    def _run(self) -> None:
        core = self._core
        try:
            self._under_way, bar = core.log.begin_interrupt()
            after, until = self._under_way.after, self._under_way.until
            scope, site = self._block.scope, self._under_way.site
            self._inquiry = Inquiry(core, scope, after, until, site)
            try:
                self._settling.begin(self._patience)
                core.inbox.settling = self._settling
                if self._replaying is not None:
                    self._replaying.begin_interrupt(self, range(after + 1, until + 1))
                self._begun.set()
                with self._block:
                    self._send()
                    self._inquiry.ask(self._send)
                    self._inquiry.settle(lambda scope: scope is not self._knowing)
            finally:
                core.inbox.settling = None
                if self._replaying is not None:
                    self._replaying.end_interrupt(self)
                core.log.lift(bar)
                self._inquiry.forget()
        except WorkersReplaced:
            pass  # what was interrupted is gone with them
        except DiscoError as error:
            self._error = error
        finally:
            self._settling.end()
            self.over.set()
            self._begun.set()
