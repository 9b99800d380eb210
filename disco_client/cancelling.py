"""Commands that the program has given up: workers end them, or leave them out, and go on.

Nobody waits meanwhile. One thread tells the workers, and another one finds out what they had
executed by then.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from queue import SimpleQueue
from typing import TYPE_CHECKING, Generic, TypeVar

from disco_client.command_log import CommandsUnderWay
from disco_client.errors import SessionError
from disco_client.interrupted_commands import Inquiry
from disco_client.output import logger_of
from disco_client.scopes import Block, Scope
from disco_client.threads import ThreadRefused, start_thread

if TYPE_CHECKING:
    from disco_client.call_sites import Site
    from disco_client.core import SessionCore

__all__ = ["Cancelling"]

_logger = logger_of(__name__)


_TOGETHER_S = 0.002
"""Within which time what is cancelled is cancelled together; what is executed by then stays."""


@dataclass(eq=False, slots=True)
class _Cancelled:
    """Commands that were cancelled together.

    Attributes:
        commands: They.
        runs: The first and the last of each run of them.
    """

    commands: CommandsUnderWay
    runs: list[tuple[int, int]]


class Cancelling:
    """What is cancelled in one session; for any thread, at any bytecode.

    Args:
        core: The session's.
    """

    def __init__(self, core: SessionCore) -> None:
        self._core = core
        self._open: list[_Cancelled] = []
        self._tells: _OnDemand[tuple[Callable[[Site], bool], int]]
        self._tells = _OnDemand("disco-cancel", self._tell)
        # Of its own, as workers answer only when they are past what is ahead.
        self._settles: _OnDemand[_Cancelled] = _OnDemand("disco-settle", self._settle)

    def cancel_scope(self, scope: Scope) -> None:
        """Cancels what a scope has issued so far; never waits."""
        self._tells.put((lambda site: site[2] is scope, self._core.log.last_seq))

    def cancel_result(self, register: int) -> None:
        """Cancels the command whose result is to come into a register; never waits."""
        maker = self._core.log.registers.makers.get(register)
        if maker is not None:
            self._tells.put((lambda site: site is maker, self._core.log.last_seq))

    def _tell(self, asked: list[tuple[Callable[[Site], bool], int]]) -> None:
        """Tells workers of what is cancelled, as far as they have not executed it."""
        core = self._core

        def is_meant(seq: int, site: Site) -> bool:
            return any(seq <= last and chosen(site) for chosen, last in asked)

        commands = core.log.under_way(is_meant)
        if commands.sites and core.log.closed is None:
            cancelled = _Cancelled(commands, _runs_of(commands))
            core.inbox.cancelled.append(commands.sites)
            self._open.append(cancelled)
            replaying = core.replaying
            if replaying is not None:
                replaying.begin_interrupt(cancelled, commands.sites.keys())
            core.transport.cancel(cancelled.runs)
            self._settles.put(cancelled)

    def _remind(self) -> None:
        for cancelled in [*self._open]:
            self._core.transport.cancel(cancelled.runs)

    def _settle(self, cancelled: list[_Cancelled]) -> None:
        """Finds out what workers had executed by then."""
        try:
            with Block(self._core.log) as block:
                self._ask([each.commands for each in cancelled], block.scope)
        except SessionError:
            pass  # what was cancelled is gone
        finally:
            replaying = self._core.replaying
            for each in cancelled:
                if replaying is not None:
                    replaying.end_interrupt(each)
                self._open.remove(each)
                self._core.inbox.cancelled.remove(each.commands.sites)

    def _ask(self, commands: list[CommandsUnderWay], scope: Scope) -> None:
        def site(seq: int) -> Site | None:
            return next((found for each in commands if (found := each.site(seq))), None)

        after, until = min(each.after for each in commands), max(each.until for each in commands)
        inquiry = Inquiry(self._core, scope, after, until, site)
        try:
            inquiry.ask(self._remind)
            inquiry.settle(lambda _scope: False)
        finally:
            inquiry.forget()


_Item = TypeVar("_Item")


class _OnDemand(Generic[_Item]):
    """Things to do, one after the other, in a thread that is there while there are some.

    Args:
        name: Of the thread.
        work: Does all that have come meanwhile.
    """

    def __init__(self, name: str, work: Callable[[list[_Item]], object]) -> None:
        self._name, self._work = name, work
        self._items: SimpleQueue[_Item] = SimpleQueue()
        # Its one entry is missing while there is a thread.
        self._free: deque[None] = deque((None,))

    def put(self, item: _Item) -> None:
        """Adds something; without a thread for it, it waits for the next one."""
        self._items.put(item)
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        took: list[None] = []
        try:
            # One step, so that nothing is lost where an exception comes.
            took.extend(starmap(self._free.pop, ((),)))
            start_thread(thread)
        except IndexError:
            pass
        except ThreadRefused as error:
            self._free.append(None)
            _logger.warning("what was cancelled is executed: %s", error)
        except BaseException:
            if took and thread.ident is None:
                self._free.append(None)
            raise

    def _run(self) -> None:
        while True:
            time.sleep(_TOGETHER_S)
            items = [self._items.get() for _ in range(self._items.qsize())]
            try:
                if items:
                    self._work(items)
            except Exception:
                _logger.exception("thread %s goes on after an error", self._name)
            if not self._items.empty():
                continue
            self._free.append(None)
            if self._items.empty():
                return
            try:
                self._free.pop()  # as something has come just before
            except IndexError:
                return  # another thread does it


def _runs_of(commands: CommandsUnderWay) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for seq in commands.sites:
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = runs[-1][0], seq
        else:
            runs.append((seq, seq))
    return runs
