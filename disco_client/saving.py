"""``session.save(..., wait=False)``: a checkpoint that is written while the session goes on.

The workers' threads write it and need no client. The client asks now and then how far they are, in
whatever waits next; it does not wait for that answer. What has gone wrong becomes the failure of a
command of the line that saved, so that it is raised where any error of that scope is.
"""

from __future__ import annotations

import atexit
import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, ClassVar, Self

from disco_client.clock import monotonic
from disco_client.copies import Handle
from disco_client.core import Companion
from disco_client.errors import (
    DiscoError,
    DiscoTimeout,
    Interrupted,
    NoMemory,
    Reentered,
    RemoteError,
    SavingUnderWay,
    SessionError,
    WouldBlock,
)
from disco_client.forks import leave_in_children
from disco_client.notebook import WorkProgress, WorkTable, progress
from disco_client.output import say
from disco_client.scopes import Block
from disco_client.waiting import Deadline
from disco_client.wire.codec import Action

if TYPE_CHECKING:
    from disco_client.call_sites import Site
    from disco_client.core import DRef, SessionCore
    from disco_client.futures import RefFuture

__all__ = ["Saving", "Savings", "check_memory", "check_no_saving"]

_QUIET_S = 0.05
"""How often calls that wait for something else ask how far the workers are."""

_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.25
"""How often a wait for the end asks, from its beginning on."""

_PATIENCE_S = 10.0
"""How long the end of a session waits for one answer, as workers may never give it."""

_STAYS = "the checkpoint before it stays"

_FAILED = ("failed", "dropped", "cancelled")
_ENDED = ("done", *_FAILED)
"""States of workers; see `BackgroundSave`."""


class Saving(Handle):
    """A checkpoint on its way to the disk; made by ``session.save(..., wait=False)``.

    ``await saving`` does in a task what :meth:`wait` does elsewhere.

    Attributes:
        path: Where it is saved.

    Examples:
        >>> x = session.distribute(np.ones((4, 2)), placement="S[0]")
        >>> saving = session.save("step-1", {"x": x}, wait=False)
        >>> x = x + 1  # not in the checkpoint
        >>> saving.wait(timeout=60)
        >>> saving.done
        True
        >>> float(session.load("step-1")["x"].numpy().max())
        1.0
    """

    _instead: ClassVar[str] = "session.load(saving.path) loads the checkpoint once it is done"

    def __init__(
        self, core: SessionCore, path: str, begun: DRef, nbytes: int, site: Site, shown: bool | None
    ) -> None:
        """Made by a session, never by a program.

        Args:
            core: The session's.
            path: Where it is saved.
            begun: The save on the workers.
            nbytes: Of all tensors.
            site: The line that saves, and its scope.
            shown: Whether a wait for it shows a bar; None shows one on a terminal.
        """
        self.path: str = path
        self._core = core
        self._begun: DRef | None = begun
        self._site, self._shown = site, shown
        # In the table of works as long as it is under way.
        self._listed = contextlib.ExitStack()
        name = path.rstrip("/").rpartition("/")[2]
        track = core.part(WorkTable).track("save", name, nbytes, False)
        self._work = self._listed.enter_context(track)
        # Its one entry is missing while a thread looks.
        self._free: deque[None] = deque((None,))
        self._asked: Sequence[RefFuture] = ()
        self._quiet_until = 0.0
        self._gives_up = self._over = self._cancelled = False
        self._failure: DRef | None = None
        self._lost: BaseException | None = None

    def __copy__(self) -> Self:
        # There is one save.
        return self

    # What a program asks ------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not; what workers last said of that. Never waits."""
        return self.look()

    @property
    def progress(self) -> WorkProgress:
        """How many bytes are written, as workers last said, and how many there are. Never waits."""
        self.look()
        return self._work.progress

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the checkpoint is there, and durable.

        Args:
            timeout: Seconds.

        Raises:
            BadFile: It could not be written; the checkpoint before stays.
            CancelledError: It was cancelled.
            DiscoTimeout: It is still being written; the call may be repeated.
            SessionError: The session is closed or lost, or its workers were replaced.
            WouldBlock: This is a task of an asyncio session; await it.
        """
        self._core.check_may_wait("await saving")
        deadline = Deadline.of(timeout)
        self._await_end(deadline)
        self._check_not_given_up()
        if self._failure is not None:
            left = None if deadline is None else deadline.remaining()
            self._core.get_all(self._failure, range(self._core.num_workers), left)

    def __await__(self) -> Generator[Any, None, None]:
        return self._await().__await__()

    async def _await(self) -> None:
        await self.ended()
        self._check_not_given_up()
        if self._failure is not None:
            await self._core.fetch_all(self._failure, range(self._core.num_workers))

    def cancel(self) -> None:
        """Gives it up, unless it is done; returns at once. The checkpoint before stays then.

        Raises:
            SessionError: The session is closed or lost.
        """
        if not self.look():
            self._give_up()

    def _check_not_given_up(self) -> None:
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        if self._cancelled:
            raise CancelledError(f"the save to {self.path} was cancelled")

    def __repr__(self) -> str:
        return f"<Saving to {self.path!r}: {self._state()}>"

    def _state(self) -> str:
        if not self._over:
            return str(self._work.progress).partition(": ")[2]
        if self._cancelled:
            return "cancelled"
        return "done" if self._failure is None and self._lost is None else "failed"

    # How far it is --------------------------------------------------------------------------

    def look(self, *, now: bool = False) -> bool:
        """Reads what workers have answered, or asks them; never waits, and raises no error of it.

        Args:
            now: Whether they are asked although they have answered a moment ago.

        Returns:
            Whether it has ended.
        """
        if self._over:
            return True
        try:
            self._free.pop()
        except IndexError:  # another thread looks
            return self._over
        try:
            with Block(self._core.log):  # errors of the caller's commands are left to the caller
                self._look(now=now)
        except (Reentered, WouldBlock):
            pass  # in a handler, or without room in an event loop: another look will do
        except SessionError as error:
            self._lose(error)
        finally:
            self._free.append(None)
        return self._over

    def _look(self, *, now: bool) -> None:
        if self._asked:
            if not all(each.done() for each in self._asked):
                return
            asked, self._asked = self._asked, ()
            self._read(asked)
            if now or self._over:  # who asks now has just got an answer
                return
        if now or monotonic() >= self._quiet_until:
            self._asked = self._ask()
            self._quiet_until = monotonic() + _QUIET_S

    def _read(self, asked: Sequence[RefFuture]) -> None:
        try:
            states = [each.result(0) for each in asked]
        except Interrupted:
            return  # the question was; it is put again
        except RemoteError as error:  # mostly, as other workers do not know of it
            self._lose(error)
        else:
            self._judge([state for state, _ in states], sum(count for _, count in states))

    def _ask(self) -> Sequence[RefFuture]:
        core = self._core
        asked: list[RefFuture] = []
        status = core.call_now("runtime.disco._save_status", self._begun)
        scope = core.log.scope()
        for worker in range(core.num_workers):
            seq = core.question(Action.DEBUG_GET_FROM_REMOTE, status, worker)
            asked.append(core.attend_value(seq, worker, scope))
        return asked

    def _judge(self, states: Sequence[str], written: int) -> None:
        self._work.update(written - self._work.progress.done)
        # Who was dropped has mostly lost its folder as another worker has failed.
        dropped = "dropped" in states and "failed" not in states
        if not all(state in _ENDED for state in states):
            if any(state in _FAILED for state in states) and not self._gives_up:
                self._give_up()
            return
        # Here in any case, so that workers which repeat all commands wait for the end here.
        end = self._core.call_for(self._site, "runtime.disco._save_join", self._begun, dropped)
        if dropped or "failed" in states:
            self._failure = end
        else:
            self._cancelled = states[0] != "done"  # worker 0 makes the checkpoint
        self._finish()

    def _give_up(self) -> None:
        self._gives_up = True
        with Block(self._core.log):
            self._core.call_now("runtime.disco._save_close", self._begun)

    def _lose(self, error: BaseException) -> None:
        self._lost = error.with_traceback(None)
        self._finish()

    def _finish(self) -> None:
        self._over, self._begun = True, None
        self._core.part(Savings).end(self)
        self._listed.close()

    # Waiting --------------------------------------------------------------------------------

    def _await_end(self, deadline: Deadline | None, patience: float | None = None) -> None:
        """Waits for the end, and for each answer so long at most."""
        if self.look():
            return
        begun = self._work.progress
        with contextlib.closing(progress(begun.name, begun.total, self._shown)) as bar:
            self._ask_until_over(deadline, patience, bar.update)

    def _ask_until_over(
        self,
        deadline: Deadline | None,
        patience: float | None,
        advance: Callable[[int], object],
    ) -> None:
        pause, shown = _PAUSE_S, 0
        while not self.look(now=True):
            asked = self._asked
            for each in asked:
                each.exception(patience if deadline is None else deadline.remaining())
            if not asked:
                time.sleep(pause if deadline is None else min(pause, deadline.remaining()))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
            if deadline is not None:
                deadline.check()
            advance(self._work.progress.done - shown)
            shown = self._work.progress.done

    def ask_and_wait(self) -> bool:
        """Whether it has ended; waits for an answer of now, and for what is given up to end."""
        if self._gives_up:
            self._await_end(None)
        while self._asked and not self._over:  # what was asked before is old news
            for each in self._asked:
                each.exception()
            self.look(now=True)
        self.look(now=True)
        for each in self._asked:
            each.exception()
        return self.look()

    async def ended(self) -> None:
        """Awaits the end, well or not."""
        import asyncio

        pause = _PAUSE_S
        while not self.look(now=True):
            asked = self._asked
            for each in asked:
                with contextlib.suppress(DiscoError):  # read by the next look
                    await each
            if not asked:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)

    # The end of the session -----------------------------------------------------------------

    def settle(self, *, tell: bool, patience: float | None = None) -> None:
        """Waits for the end; see `Companion`."""
        try:
            self._core.check_may_wait("await saving")
            self._await_end(None, patience)
            if tell and self._over and not self._cancelled:
                self.wait()
        except SessionError as error:
            self.leave(str(error))
        except DiscoTimeout:
            self.leave(f"workers did not answer for {patience:g} s")
        except DiscoError as error:
            say(f"disco: the save to {self.path} failed: {error}")
        except BaseException:
            self.leave("the wait for it was interrupted")
            raise

    async def settled(self) -> None:
        """The same for asyncio."""
        try:
            await self.ended()
        except BaseException:
            self.leave("the wait for it was interrupted")
            raise

    def leave(self, why: str) -> None:
        """Says that it is lost, and gives it up."""
        say(f"disco: the save to {self.path} is lost, at {self._state()}, because {why}; {_STAYS}")
        self._core.part(Savings).end(self)
        if not self._over:
            with contextlib.suppress(DiscoError):
                self._give_up()


class Savings(Companion):
    """The save that a session has under way, if any.

    Args:
        core: The session's, which this need not know.

    Attributes:
        current: The save.
    """

    def __init__(self, core: SessionCore) -> None:
        del core
        self.current: Saving | None = None
        self._dropped: weakref.finalize[..., Saving] | None = None
        _open.add(leave_in_children(self, Savings._forget))

    def _forget(self) -> None:
        """Leaves it to the process that forked this one."""
        if self.current is not None:
            self.end(self.current)

    def begin(self, saving: Saving) -> Saving:
        """Notes that one has begun."""
        self.current = saving
        why = "because its session was dropped"
        lost = f"disco: the save to {saving.path} is lost, {why}; {_STAYS}"
        self._dropped = weakref.finalize(saving, say, lost)
        self._dropped.atexit = False
        return saving

    def end(self, saving: Saving) -> None:
        """Notes that one has ended."""
        if self.current is saving:
            self.current = None
            if self._dropped is not None:
                self._dropped.detach()

    def look(self) -> None:
        """See `Companion`."""
        if self.current is not None:
            self.current.look()

    def settle(self, *, tell: bool, patience: float | None = None) -> None:
        """See `Companion`."""
        if self.current is not None:
            self.current.settle(tell=tell, patience=patience)

    async def settled(self) -> None:
        """See `Companion`."""
        if self.current is not None:
            await self.current.settled()


_open: weakref.WeakSet[Savings] = weakref.WeakSet()


@atexit.register
def _settle_all() -> None:
    for savings in [*_open]:
        savings.settle(tell=True, patience=_PATIENCE_S)


# Before one begins ------------------------------------------------------------------------------


def check_no_saving(core: SessionCore) -> None:
    """Makes sure that no save is under way; waits for the workers where one was.

    Raises:
        SavingUnderWay: One is.
    """
    saving = core.part(Savings).current
    if saving is not None and not saving.ask_and_wait():
        raise SavingUnderWay(
            f"a checkpoint is being saved to {saving.path} ({saving.progress}): wait for it by"
            " saving.wait(), or give it up by saving.cancel()",
            path=saving.path,
        )


def check_memory(core: SessionCore, needed: Mapping[int, int]) -> None:
    """Makes sure that workers have room for copies of their parts.

    Args:
        core: The session's.
        needed: How many bytes each worker copies.

    Raises:
        NoMemory: One has not, or all of a node together have not.
    """
    found = core.get_all(core.call_now("runtime.disco._save_memory"), range(core.num_workers))
    nodes: dict[str, list[int]] = {}
    for rank in core.welcome.ranks:
        nodes.setdefault(rank.node, []).append(rank.worker)
        _, own = found[rank.worker]
        _compare(f"worker {rank.worker}", needed.get(rank.worker, 0), own)
    for node, workers in nodes.items():
        shared = min(
            (each for each, _ in (found[w] for w in workers) if each is not None), default=None
        )
        _compare(f"node {node}", sum(needed.get(worker, 0) for worker in workers), shared)


def _compare(where: str, needed: int, there: int | None) -> None:
    if there is not None and needed > there:
        raise NoMemory(
            f"expected room for copies of {needed:,} bytes on {where}, where {there:,} bytes are"
            " available; a save with wait=True makes no copies",
            needed=needed,
            available=there,
        )
