"""What programs give up: interrupts, cancels and limits, and what has to be so afterwards.

A command that was given up may have been executed or not, and its result is right on all workers
or missing on all. Everything else is executed once, as ever.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from reentry import in_thread

from disco_client import errors
from disco_soak.program import Run, SoakProgram, WrongResult, same

if TYPE_CHECKING:
    from disco_client import DRef, RefFuture

__all__ = ["GivingUp", "InterruptWindow", "not_ended"]

_LOG = "given up"
_TOLD = "told to fail"

_MANY = 20
"""How many commands are issued together, at most."""

_FEW = 5
_PAUSE_S = 0.03
"""After so long at most something is given up, and so long at most some functions take."""

_FOR_EVER_S = 3600.0
"""What nobody waits for."""

_AMPLE_S = 600.0
"""A limit that nothing reaches which goes on, whatever stands still meanwhile."""

_LIMITS_S = (0.005, 0.02, 0.2)
_GRACE_S = 60.0
"""How long workers may take to react, and results to be the same on all, faults included."""

_LOOK_S = 0.005
_Kinds = tuple[type[errors.RemoteError], ...]
_OF_LIMITS: _Kinds = (errors.TimeLimit, errors.CollectiveAborted)
"""What is reported of a command whose limit has passed."""


@dataclass(eq=False)
class _IssuedCommand:
    """A command, and what it has to give.

    Attributes:
        ref: Its result.
        right: The value of that on all workers.
        number: What it notes; 0 for nothing.
        reads: The command whose result it reads, which nothing else reads.
        kept: Whether it was not given up.
    """

    ref: DRef
    right: Any
    number: int = 0
    reads: _IssuedCommand | None = None
    kept: bool = True


class _Requests:
    """Issues commands by chance.

    Args:
        program: Whose session it uses.
        chance: Decides what they are.
    """

    def __init__(self, program: SoakProgram, chance: random.Random) -> None:
        self._program, self._chance = program, chance
        session = program.session
        self._note_within = session.get_global_func("soak.note_within")
        self._note_late = session.get_global_func("soak.note_late")
        self._sum_late = session.get_global_func("soak.sum_late")
        with session.capture("soak: notes a number") as self._captured:
            number, seconds = self._captured.input("number"), self._captured.input("seconds")
            self._captured.output(self._note_within(number, _LOG, seconds))

    def some(self, longest: float = _PAUSE_S, most: int = _MANY) -> list[_IssuedCommand]:
        """Issues some, of which none takes longer than so many seconds."""
        kinds = (
            self._noted,
            self._noted_late,
            self.noted_within,
            self.run,
            self._sum,
            self.summed_late,
        )
        return [
            each
            for _ in range(self._chance.randint(1, most))
            for each in self._chance.choice(kinds)(self._chance.random() * longest)
        ]

    def endless(self) -> list[_IssuedCommand]:
        """Issues one that would take for ever, on all workers or on one."""
        kinds = (self.noted_within, self.run, self.summed_late)
        return self._chance.choice(kinds)(_FOR_EVER_S)

    def _noted(self, _seconds: float) -> list[_IssuedCommand]:
        number, ref = self._program.note_beside(_LOG)
        return [_IssuedCommand(ref, number, number)]

    def _noted_late(self, seconds: float) -> list[_IssuedCommand]:
        number = self._program.number_beside(_LOG)
        late = self._chance.randrange(self._program.session.num_workers)
        return [_IssuedCommand(self._note_late(number, _LOG, late, seconds), number, number)]

    def noted_within(self, seconds: float) -> list[_IssuedCommand]:
        """Issues a function that takes so long."""
        number = self._program.number_beside(_LOG)
        return [_IssuedCommand(self._note_within(number, _LOG, seconds), number, number)]

    def run(self, seconds: float) -> list[_IssuedCommand]:
        """Issues a run of a captured program that takes so long."""
        number = self._program.number_beside(_LOG)
        return [_IssuedCommand(self._captured(number, seconds), number, number)]

    def _sum(self, _seconds: float) -> list[_IssuedCommand]:
        session, number = self._program.session, self._chance.randrange(100)
        array = np.full(self._chance.choice((3, 40_000)), number)
        source = _IssuedCommand(session.broadcast(array), array)
        total = _IssuedCommand(
            session.allreduce(source.ref), array * session.num_workers, reads=source
        )
        return [source, total]

    def summed_late(self, seconds: float) -> list[_IssuedCommand]:
        """Issues a collective for which one worker is so late."""
        workers = self._program.session.num_workers
        number, late = self._chance.randrange(100), self._chance.randrange(workers)
        return [_IssuedCommand(self._sum_late(number, late, seconds), np.full(2, number * workers))]

    def limited(self, limit: float, seconds: float) -> list[_IssuedCommand]:
        """Issues a function that takes so long and has a limit of its own."""
        number = self._program.number_beside(_LOG)
        ref = self._note_within.limit(limit)(number, _LOG, seconds)
        return [_IssuedCommand(ref, number, number)]


@dataclass
class InterruptWindow:
    """When an interrupt came, by the numbers of the program's log.

    Attributes:
        first: What was issued up to this number at least was executed by then, or given up.
        last: And up to this one at most.
    """

    first: int
    last: int


class _Interrupting:
    """Interrupts a session at random moments, from a thread of its own; a context manager.

    Its end is one more interrupt, after which nothing is left of what was issued before.

    Args:
        program: Whose session it is.
        seed: Decides when.

    Attributes:
        windows: What came, and when.
    """

    def __init__(self, program: SoakProgram, seed: int) -> None:
        self._program = program
        self._chance = random.Random(seed)  # noqa: S311  (no secret)
        self._over = threading.Event()
        self.windows: list[InterruptWindow] = []

    def __enter__(self) -> Self:
        self._thread = in_thread(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._chance.random() * _PAUSE_S):
            self._interrupt()
        self._interrupt()

    def _interrupt(self) -> None:
        program = self._program
        window = InterruptWindow(program.issued - 1, 0)  # it is counted just before it is issued
        late = program.session.interrupt(grace=_GRACE_S)
        window.last = program.issued
        self.windows.append(window)
        if late:
            msg = f"workers {late} have not reacted to an interrupt for {_GRACE_S:g} s"
            raise WrongResult(msg)


class _Left(Exception):
    """What leaves a block."""


class GivingUp:
    """Gives up what a program has issued.

    Args:
        program: The program.
        chance: Decides what is given up, how and when.
        until: Repeats something until it was done often enough, or for too long.

    Attributes:
        counts: How often it was done in each way, and what became of the commands.
    """

    def __init__(
        self,
        program: SoakProgram,
        chance: random.Random,
        until: Callable[[Callable[[], bool], Callable[[], object]], None],
    ) -> None:
        self._program, self._chance, self._until = program, chance, until
        self.counts: Counter[str] = Counter()
        self._recovered = self._told = 0
        self._cancels: dict[str, Callable[[_Requests], tuple[int, list[_IssuedCommand]]]] = {
            "blocks left by an exception": self._leave_block,
            "block.cancel()": self._cancel_block,
            "ref.cancel()": self._cancel_refs,
            "future.cancel()": self._cancel_futures,
        }
        self._limits: dict[str, Callable[[_Requests], None]] = {
            "limits beyond reach": self._in_time,
            "limits passed": self._too_long,
            "limits passed by some": self._about_in_time,
        }

    def _begin(self) -> _Requests:
        self._recovered, self._told = len(self._program.session.recoveries), 0
        return _Requests(self._program, self._chance)

    @property
    def _has_recovered(self) -> bool:
        """Whether other workers have come meanwhile, which leave more out."""
        return len(self._program.session.recoveries) > self._recovered

    # Interrupts ----------------------------------------------------------------------

    def interrupted(self, times: int) -> None:
        """Takes steps, and issues other commands, while a thread interrupts the session.

        Args:
            times: How often it does, unless that takes too long.

        Raises:
            WrongResult: More is missing than interrupts explain, or something else.
            errors.DiscoError: Something failed for which they are no cause.
        """
        requests, asked = self._begin(), list[_IssuedCommand]()

        def act() -> None:
            try:
                if self._chance.randrange(2):
                    self._program.step()
                else:
                    asked.extend(requests.some())
                    if not self._chance.randrange(3):
                        asked.extend(requests.endless())
            except errors.RemoteError as error:
                self._take(error, self._is_of_interrupt)
                self._drain(self._is_of_interrupt)

        interrupting = _Interrupting(self._program, self._chance.randrange(1 << 16))
        with interrupting:
            self._until(lambda: len(interrupting.windows) >= times, act)
        self._drain(self._is_of_interrupt)
        self.counts["interrupts"] += len(interrupting.windows)
        for each in asked:
            each.kept = False
        gone = self._explain(interrupting.windows) + self._settle(asked)
        if gone and not self._told:
            msg = f"{gone} commands were interrupted, and nobody was told"
            raise WrongResult(msg)

    def _is_of_interrupt(self, error: errors.RemoteError) -> bool:
        """Whether an error is of an interrupt, or of the step that is told to fail."""
        return (
            type(error) is errors.Interrupted
            or all(_TOLD in failure.message for failure in error.failures)
            or (self._has_recovered and isinstance(error, errors.StaleReference))
        )

    def _take(
        self, error: errors.RemoteError, is_mine: Callable[[errors.RemoteError], bool]
    ) -> None:
        """Takes an error for which there is a cause; raises any other one."""
        if not is_mine(error):
            raise error
        self._told += 1

    def _drain(self, is_mine: Callable[[errors.RemoteError], bool]) -> None:
        """Waits for everything, and takes the errors for which there is a cause."""
        while True:
            try:
                self._program.session.sync_all()
            except errors.RemoteError as error:
                self._take(error, is_mine)
            else:
                return

    def _explain(self, windows: Sequence[InterruptWindow]) -> int:
        """Finds out what is missing of the program's own log; returns how many numbers.

        On each worker an interrupt leaves a run of them out, or none. Where that begins depends on
        how far the worker has come, which may be what was issued long before; it ends at the same
        number on all.

        Args:
            windows: When they came.
        """
        program = self._program
        program.note_last()
        everything, _ = program.missing()
        known = program.given_up[""]
        missing = [[run for run in each if run[1] not in known] for each in everything]
        unexplained = not_ended(missing, windows)
        if unexplained:
            msg = f"{missing} is missing, the interrupts were at {windows}, none at {unexplained}"
            raise WrongResult(msg)
        runs = {run for each in missing for run in each}
        gone = {number for first, last in runs for number in range(first, last + 1)}
        known |= gone
        self.counts["numbers of a burst missing"] += len(gone)
        return len(gone)

    # Cancels -------------------------------------------------------------------------

    def cancelled(self, times: int) -> None:
        """Cancels commands in all ways, among others.

        Args:
            times: How often, unless that takes too long.

        Raises:
            WrongResult: Something else is missing.
            errors.DiscoError: Somebody was told of what was cancelled, or something failed.
        """
        requests, ended = self._begin(), itertools.count()
        session, untold = self._program.session, self._program.session.failures().total

        def act() -> None:
            way = self._chance.choice([*self._cancels])
            before = requests.some(most=_FEW)
            count, asked = self._cancels[way](requests)
            self.counts[way] += count
            after = requests.some(most=_FEW)
            if not self._chance.randrange(3):
                self._program.step()
            self._settle([*before, *asked, *after])
            session.sync_all()  # which tells of nothing

        self._until(lambda: next(ended) >= times, act)
        if session.failures().total > untold:
            msg = f"commands were cancelled, and these failures left: {session.failures().last}"
            raise WrongResult(msg)

    def _leave_block(self, requests: _Requests) -> tuple[int, list[_IssuedCommand]]:
        session, asked = self._program.session, list[_IssuedCommand]()
        with contextlib.suppress(_Left, errors.DiscoTimeout), session.scope(cancel=True):
            asked += self._some_endless(requests)
            pause = self._pause()
            if self._chance.randrange(2):
                asked[-1].ref.get(timeout=pause)
            else:
                time.sleep(pause)
            raise _Left
        _give_up(asked, asked)
        return 1, asked

    def _cancel_block(self, requests: _Requests) -> tuple[int, list[_IssuedCommand]]:
        kept = list[_IssuedCommand]()
        with self._program.session.scope() as block:
            asked = self._some_endless(requests)
            cancelling = self._in_thread([block.cancel])
            if self._chance.randrange(2):
                cancelling.join()
                kept += requests.some(most=_FEW)  # in the block, and yet executed
        kept += requests.some(most=_FEW)
        cancelling.join()
        _give_up(asked, asked)
        return 1, asked + kept

    def _cancel_refs(self, requests: _Requests) -> tuple[int, list[_IssuedCommand]]:
        asked, chosen = self._choose(requests)
        cancelling = self._in_thread([each.ref.cancel for each in chosen])
        kept = requests.some(most=_FEW)
        cancelling.join()
        _give_up(chosen, asked)
        return len(chosen), asked + kept

    def _cancel_futures(self, requests: _Requests) -> tuple[int, list[_IssuedCommand]]:
        asked, chosen = self._choose(requests)
        futures = [self._ask(each) for each in chosen]
        cancelling = self._in_thread([future.cancel for future in futures])
        kept = requests.some(most=_FEW)
        cancelling.join()
        given_up = [
            each for each, future in zip(chosen, futures, strict=True) if future.cancelled()
        ]
        _give_up(given_up, asked)
        for each, future in zip(chosen, futures, strict=True):
            if each.kept:
                _check(future.result(), each.right)
        return len(futures), asked + kept

    def _ask(self, asked: _IssuedCommand) -> RefFuture:
        return asked.ref.future(self._chance.randrange(self._program.session.num_workers))

    def _some_endless(self, requests: _Requests) -> list[_IssuedCommand]:
        """Issues commands of which one may be endless, as all are given up."""
        some, endless = requests.some(), requests.endless() if self._chance.randrange(2) else []
        return some + endless + requests.some()

    def _choose(self, requests: _Requests) -> tuple[list[_IssuedCommand], list[_IssuedCommand]]:
        """Issues commands; returns all of them, and those that are to be given up."""
        some, endless, more = requests.some(), requests.endless(), requests.some()
        others = some + more
        chosen = self._chance.sample(others, self._chance.randint(0, len(others)))
        return some + endless + more, endless + chosen

    def _pause(self) -> float:
        return self._chance.random() * _PAUSE_S

    def _in_thread(self, cancels: Sequence[Callable[[], object]]) -> threading.Thread:
        """Calls functions a little later, in another thread."""
        pause = self._pause()

        def cancel() -> None:
            time.sleep(pause)
            for each in cancels:
                each()

        return in_thread(cancel)

    # Limits --------------------------------------------------------------------------

    def limited(self, times: int) -> None:
        """Issues commands with limits, that take longer or not.

        Args:
            times: How often, unless that takes too long.

        Raises:
            WrongResult: A limit has passed too soon, or was none.
            errors.DiscoError: Something failed for which no limit is the cause.
        """
        requests, ended = self._begin(), itertools.count()

        def act() -> None:
            kind = self._chance.choice([*self._limits])
            # In a scope of its own: what has failed there is not the program's.
            with self._program.session.scope():
                self._limits[kind](requests)
            self.counts[kind] += 1
            self._program.session.sync_all()

        self._until(lambda: next(ended) >= times, act)

    def _in_time(self, requests: _Requests) -> None:
        asked = requests.limited(_AMPLE_S, self._pause())
        with self._program.session.limit(_AMPLE_S):
            asked += requests.some()
        self._settle(asked)

    def _too_long(self, requests: _Requests) -> None:
        limit = self._chance.choice(_LIMITS_S)
        if self._chance.randrange(2):
            asked = requests.limited(limit, _FOR_EVER_S)
        else:
            with self._program.session.limit(limit):
                asked = requests.endless()
        self._see_limited(asked, requests.some(most=_FEW), may_be_right=False)

    def _about_in_time(self, requests: _Requests) -> None:
        limit, asked = self._chance.choice(_LIMITS_S[:2]), list[_IssuedCommand]()
        kinds = (requests.noted_within, requests.run, requests.summed_late)
        for _ in range(self._chance.randint(1, _FEW)):
            with self._program.session.limit(limit):
                asked += self._chance.choice(kinds)(limit * self._chance.uniform(0.5, 1.5))
        self._see_limited(asked, requests.some(most=_FEW), may_be_right=True)

    def _see_limited(
        self, asked: list[_IssuedCommand], kept: list[_IssuedCommand], *, may_be_right: bool
    ) -> None:
        """Makes sure of what has become of commands with a limit, and of others behind them."""
        self._drain(self._is_of_limit)
        for each in asked:
            found = self._outcomes(each, _OF_LIMITS)
            passed = [error for error in found if error is not None]
            if not passed and may_be_right:
                continue
            each.kept = False
            self._program.given_up[_LOG].add(each.number)
            self.counts["results missing"] += 1
            strange = None in found and not may_be_right
            if strange or not (self._has_recovered or errors.TimeLimit in passed):
                msg = f"a command has passed its limit, and workers have of it: {found}"
                raise WrongResult(msg)
        self._settle(kept)

    def _is_of_limit(self, error: errors.RemoteError) -> bool:
        recovered = self._has_recovered and type(error) is errors.Interrupted
        return type(error) in _OF_LIMITS or recovered

    # What has become of commands ---------------------------------------------------

    def _settle(self, asked: Sequence[_IssuedCommand]) -> int:
        """Makes sure of all results; returns how many are missing, of those that may be."""
        read = {id(each.reads) for each in asked if each.reads and not each.kept}
        missing = 0
        for each in asked:
            if each.kept:
                # What a command that was given up may have changed is stale on other workers.
                stale = self._has_recovered and id(each) in read
                self._outcomes(each, (errors.StaleReference,) if stale else ())
            else:
                missing += self._is_missing(each)
        return missing

    def _is_missing(self, asked: _IssuedCommand) -> bool:
        """Whether a result that was given up is missing, on all workers; or right, on all."""
        stale = (errors.StaleReference,) if self._has_recovered else ()
        ends = time.monotonic() + _GRACE_S
        while True:
            found = self._outcomes(asked, (errors.Interrupted, *stale))
            missing = [error is not None for error in found]
            if all(missing) or not any(missing):
                break
            if time.monotonic() > ends:
                msg = f"a command was given up, and workers differ in what they have: {found}"
                raise WrongResult(msg)
            time.sleep(_LOOK_S)  # until all workers know
        self.counts["results missing" if all(missing) else "results right"] += 1
        if all(missing):
            self._program.given_up[_LOG].add(asked.number)
        return all(missing)

    def _outcomes(
        self, asked: _IssuedCommand, allowed: _Kinds
    ) -> list[type[errors.RemoteError] | None]:
        """What each worker has of a command: None for the right value, or an error.

        Args:
            asked: The command.
            allowed: The errors that may be. Where limits are among them other workers may have
                left out more.
        """
        found: list[type[errors.RemoteError] | None] = []
        for worker in range(self._program.session.num_workers):
            try:
                got = asked.ref.debug_get_from_remote(worker)
            except errors.RemoteError as error:
                limited = allowed is _OF_LIMITS and self._is_of_limit(error)
                if not limited and type(error) not in allowed:
                    raise
                found.append(type(error))
            else:
                _check(got, asked.right)
                found.append(None)
        return found


def not_ended(missing: Sequence[Sequence[Run]], windows: Sequence[InterruptWindow]) -> list[int]:
    """The ends of what is missing on some worker for which there is no interrupt.

    Args:
        missing: What each worker has not noted.
        windows: When interrupts came, each of which has one end.
    """
    ends = sorted({last for runs in missing for _, last in runs})
    for window in windows:
        if ends and window.first <= ends[0] <= window.last:
            del ends[0]
    return ends


def _give_up(chosen: Sequence[_IssuedCommand], asked: Sequence[_IssuedCommand]) -> None:
    """Notes that commands were given up, and those with them that read their results."""
    for each in chosen:
        each.kept = False
    for each in asked:
        if each.reads is not None and not each.reads.kept:
            each.kept = False


def _check(got: Any, right: Any) -> None:
    if isinstance(right, np.ndarray):
        same(got, right)
    elif got != right:
        msg = f"expected {right!r}, got {got!r}"
        raise WrongResult(msg)
