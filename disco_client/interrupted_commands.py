"""What workers have ended or left out of commands, and that it is so on all of them.

What one of them has not executed counts as interrupted on all: results that others have are taken
back, and a replay leaves the same commands out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.errors import DiscoTimeout, RemoteFailure
from disco_client.waiting import Deadline
from disco_client.wire.codec import Action, EncodedCommand, FailureKind, InterruptedAt

if TYPE_CHECKING:
    from disco_client.call_sites import Site
    from disco_client.core import DRef, SessionCore
    from disco_client.failed_commands import Report
    from disco_client.scopes import Scope

__all__ = ["Inquiry"]

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
"""How long after an interrupt workers are told once more: one may have come between two calls."""

_TELL = "runtime.disco._tell_interrupted"
_TAKE_BACK = "runtime.disco._interrupt_registers"
_ENDED = "this command was interrupted (interrupt, cancel or Ctrl-C)"
_LEFT_OUT = "this command was interrupted before it began (interrupt, cancel or Ctrl-C)"

_Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Inquiry:
    """Asks the workers what they have ended or left out of some commands, for one thread.

    Args:
        core: The session's.
        scope: That in which the thread asks.
        after: The command before the first of them, which all workers have executed.
        until: The last of them.
        site: Finds the position that issued one of them.

    Attributes:
        told: What workers have told so far.
    """

    def __init__(
        self,
        core: SessionCore,
        scope: Scope,
        after: int,
        until: int,
        site: Callable[[int], Site | None],
    ) -> None:
        self._core, self._scope = core, scope
        self._after, self._until, self._site = after, until, site
        self._answer: DRef | None = None
        self._asked: list[int] = []
        self.told: dict[int, Mapping[str, Any]] = {}

    def ask(self, again: Callable[[], object]) -> None:
        """Asks each worker, and waits for the answers, which come when it is past the commands.

        Args:
            again: Called now and then meanwhile: tells the workers of the interrupt once more.

        Raises:
            WorkersReplaced: What was interrupted is gone with the workers.
            SessionError: The session is closed or lost.
        """
        patience = _Patience(again)
        patience.wait(self._put)
        for worker, seq in enumerate(self._asked):
            self.told[worker] = patience.wait(
                lambda deadline, worker=worker, seq=seq: self._core.answered(
                    seq, worker, deadline=deadline, scope=self._scope, forget=False
                )
            )

    def _put(self, deadline: Deadline) -> None:
        """Issues the questions, as far as there is room; may be called again."""
        core = self._core

        def fill(command: EncodedCommand) -> int:
            command.args.add().int = self._after
            command.args.add().int = self._until
            return 0

        func = core.check_ref(core.builtin(_TELL, deadline))
        # Now, as its register may not be one of those that are told to be missing.
        core.builtin(_TAKE_BACK, deadline)
        answer = self._answer
        if answer is None:
            call = Action.CALL_PACKED
            _, answer = core.log.issue(call, fill, func=func, reg=core.refer, deadline=deadline)
            self._answer = answer
        for worker in range(len(self._asked), core.num_workers):
            get = Action.DEBUG_GET_FROM_REMOTE
            self._asked.append(core.question(get, answer, worker, deadline=deadline))

    def forget(self) -> None:
        """Expects no more answers."""
        for seq in self._asked:
            self._core.inbox.forget(seq)

    def settle(self, tells: Callable[[Scope], bool]) -> None:
        """Makes what one worker has ended or left out interrupted on all.

        Args:
            tells: Whether a scope that issued such commands learns of it.
        """
        core, told = self._core, [self.told[worker] for worker in sorted(self.told)]
        nodes = [rank.node for rank in core.welcome.ranks]
        found = _Commands(self._after, self._until, self._site, told, nodes, tells)
        if not found.some:
            return
        replaying = core.replaying
        if replaying is not None:
            replaying.leave_out(found.marks())
        results = [_pairs(each["registers"]) for each in told]
        live = core.log.live_registers()
        taken_back = {reg: seq for pairs in results for reg, seq in pairs if reg in live}
        if any(not taken_back.keys() <= dict(pairs).keys() for pairs in results):
            flat = np.asarray([*taken_back.items()], np.int64).reshape(-1)
            core.call_now(_TAKE_BACK, flat)
        core.renew_parts()
        core.inbox.interrupt(found)


class _Patience:
    """Waits that end, and begin again when the workers were told once more."""

    def __init__(self, again: Callable[[], object]) -> None:
        self._again = again
        self._pause = _FIRST_PAUSE_S

    def wait(self, step: Callable[[Deadline], Any]) -> Any:
        """Takes a step that raises `DiscoTimeout` until it is possible."""
        while True:
            try:
                return step(Deadline(self._pause))
            except DiscoTimeout:
                self._again()
                self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)


class _Commands:
    """The commands that an interrupt has ended or had left out, on whichever worker.

    Args:
        after: The command before the first of those that it is about.
        until: The last of them.
        site: Finds the position that issued one of them.
        told: What each worker has told.
        nodes: The node of each worker.
        tells: As the attribute.

    Attributes:
        some: Whether there are any.
        tells: Whether a scope that issued some learns of it.
    """

    def __init__(
        self,
        after: int,
        until: int,
        site: Callable[[int], Site | None],
        told: Sequence[Mapping[str, Any]],
        nodes: Sequence[str],
        tells: Callable[[Scope], bool],
    ) -> None:
        self._after, self._site, self._nodes = after, site, nodes
        self.tells: Callable[[Scope], bool] = tells
        count = until - after
        # Of each command: the first worker that has not executed it, and whether one began.
        self._worker = np.full(count, -1, np.int32)
        self._begun: _Mask = np.zeros(count, np.bool_)
        for worker, each in enumerate(told):
            left: _Mask = np.zeros(count, np.bool_)
            for first, last in _pairs(each["left"]):
                left[self._place(first) : self._place(last) + 1] = True
            self._worker[left & (self._worker < 0)] = worker
            left[each["begun"] - after - 1] = False
            self._begun |= ~left
        self.some: bool = bool((self._worker >= 0).any())

    def firsts(self, is_known: Callable[[int], bool]) -> Mapping[Scope, int]:
        """The first of them that each scope has issued, without those that are known."""
        found: dict[Scope, int] = {}
        for seq in self._numbers():
            site = self._site(seq)
            if site is not None and site[2] not in found and not is_known(seq):
                found[site[2]] = seq
        return found

    def _place(self, seq: int) -> int:
        return seq - self._after - 1

    def _numbers(self) -> Iterator[int]:
        after = self._after + 1
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
