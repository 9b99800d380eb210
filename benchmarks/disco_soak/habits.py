"""What programs do: exceptions in a step, handlers, finalizers, an unread output, giving up."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator

from reentry import Finalizing, Handling, Interruption, OutOfTime, Raising, Stopped, watched

from disco_client import errors
from disco_soak.cluster import BREAKER
from disco_soak.giving_up import GivingUp
from disco_soak.program import SoakProgram, WrongResult

__all__ = ["Habits", "unread_standard_error"]

_TIMES = 25
"""How many exceptions a program catches, and how often a handler or a finalizer does something."""

_LONGEST_S = 5.0
"""After so long nothing more is begun: a step over a slow link seldom ends undisturbed."""

_PATIENCE_S = 150
"""How long all of it may take, faults of the cluster included, unless something hangs."""

_WAYS = (
    ("timer", signal.SIGALRM),
    ("thread", signal.SIGUSR1),
    ("child", signal.SIGTERM),
    ("thread", signal.SIGINT),
)
_RAISED = (Interruption, OutOfTime, Stopped, KeyboardInterrupt)
_INTERVALS = (0.001, 0.003, 0.01)

_BURST, _FAILURE = "_burst", "_failure"
_TOLD = "told to fail"
_BROKEN_OFF = "the upload was broken off"

_LINES = 300
"""How many lines each worker prints before a step."""

_PAGE = 4096
_WRITER = "disco-stderr"
"""The thread that writes to standard error; it ends soon when nothing is left to write."""

_WRITTEN_S = 20.0


class Habits:
    """What one program does to itself.

    Args:
        program: Whose steps are disturbed.
        seed: Decides what is done.
        unread: Whether its standard error is a full pipe that nobody reads.

    Attributes:
        giving_up: What it gives up.
    """

    def __init__(self, program: SoakProgram, seed: int, *, unread: bool) -> None:
        self._program = program
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self.giving_up = GivingUp(program, self._random, self._until)
        self._habits: dict[str, Callable[[], None]] = {
            "handler raises": lambda: self._interrupted(*self._way()),
            "asynchronous exception": lambda: self._interrupted("async", signal.SIGALRM),
            "handler uses the session": self._handled,
            "finalizer uses the session": self._finalized,
            "interrupts": lambda: self.giving_up.interrupted(_TIMES),
            "cancels": lambda: self.giving_up.cancelled(_TIMES),
            "limits": lambda: self.giving_up.limited(_TIMES),
        }
        if unread:
            self._habits["standard error unread"] = self._printed

    def choose(self) -> str:
        """Names the next one."""
        return self._random.choice(list(self._habits))

    def follow(self, name: str) -> None:
        """Takes steps under it, until it has come often enough.

        Raises:
            WrongResult: Something has another value, or was executed and never issued.
            errors.DiscoError: Something failed for which the habit is no cause.
        """
        with watched(_PATIENCE_S):
            self._habits[name]()

    def _way(self) -> tuple[str, signal.Signals]:
        return self._random.choice(_WAYS)

    def _one(self) -> None:
        """One step, or the transfer of a large array."""
        if self._random.randrange(8):
            self._program.step()
        else:
            self._program.transfer()

    def _until(self, enough: Callable[[], bool], act: Callable[[], object]) -> None:
        ends = time.monotonic() + _LONGEST_S
        while not enough() and time.monotonic() < ends:
            act()

    # What raises ---------------------------------------------------------------------

    def _interrupted(self, way: str, number: signal.Signals) -> None:
        raising = Raising(
            way,
            number,
            self._random.choice(_INTERVALS),
            self._random.randrange(1 << 16),
            self._random.choice(_RAISED),
        )

        def act() -> None:
            if raising.during(self._one):
                self._settle()

        with raising:
            self._until(lambda: raising.caught >= _TIMES, act)

    def _settle(self) -> None:
        """Finds what has become of the step that was interrupted; the program goes on there.

        A burst counts a number before it is noted, so that the last one may be missing, then on
        all workers. Whatever else is missing stays so, and is found in the end.
        """
        program = self._program
        self._drain()
        noted = program.session.get_global_func("soak.noted")()
        last = {noted.debug_get_from_remote(each)[0] for each in range(program.session.num_workers)}
        if max(last) > program.issued:
            msg = f"the numbers {last} were noted, and only {program.issued} issued"
            raise WrongResult(msg)
        if program.doing == _BURST and last == {program.issued - 1}:
            program.issued -= 1

    def _drain(self) -> None:
        """Waits for everything, and takes the errors of what the interrupted step has issued."""
        while True:
            try:
                self._program.session.sync_all()
            except errors.RemoteError as error:
                cause = _TOLD if self._program.doing == _FAILURE else _BROKEN_OFF
                if not all(cause in failure.message for failure in error.failures):
                    raise
            else:
                return

    # What uses the session -----------------------------------------------------------

    def _handled(self) -> None:
        using = _Using(self._program, self._random.randrange(1 << 16))
        with Handling(using.act, *self._way(), self._random.choice(_INTERVALS)):
            self._until(using.enough, self._one)
        using.check()

    def _finalized(self) -> None:
        using = _Using(self._program, self._random.randrange(1 << 16))
        with Finalizing(using.act):
            self._until(using.enough, self._one)
        using.check()

    # What nobody reads ---------------------------------------------------------------

    def _printed(self) -> None:
        print_lines = self._program.session.get_global_func("soak.print")
        for _ in range(_TIMES):
            print_lines(_LINES)
            self._one()
        self._program.session.sync_all()


class _Using:
    """Notes numbers in the middle of other calls, in a log for each thread that does.

    Args:
        program: Whose session it uses.
        seed: Decides of which worker it wants a value.
    """

    def __init__(self, program: SoakProgram, seed: int) -> None:
        self._program = program
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._came = 0
        self._wrong: list[str] = []

    def enough(self) -> bool:
        """Whether it has come often enough."""
        return self._came >= _TIMES

    def act(self) -> None:
        """Notes the next number, and looks at the value where it may."""
        if self.enough():  # else a call over a slow link would not end
            return
        if threading.current_thread().name == BREAKER:
            return  # what it would wait for may be what that thread is about to mend
        self._came += 1
        program = self._program
        # In a scope of its own: the failures of the program's calls are the program's.
        with program.session.scope():
            number, noted = program.note_beside(str(threading.get_ident()))
            with contextlib.suppress(errors.Reentered):
                worker = self._random.randrange(program.session.num_workers)
                got = noted.debug_get_from_remote(worker)
                if got != number:
                    self._wrong.append(f"noted {number}, got {got!r}")

    def check(self) -> None:
        """Raises what could not be raised in the middle of a call."""
        if self._wrong:
            raise WrongResult("; ".join(self._wrong))


@contextlib.contextmanager
def unread_standard_error(unread: bool = True) -> Generator[None]:
    """Gives the program a standard error that is a full pipe, which nobody reads.

    What is not written in the end is read then, and dropped.

    Args:
        unread: Whether it does.
    """
    if not unread:
        yield
        return
    ours, theirs = os.pipe()
    fcntl.fcntl(theirs, fcntl.F_SETPIPE_SZ, _PAGE)
    os.write(theirs, b"." * _PAGE)
    before = sys.stderr
    with os.fdopen(ours, "rb", buffering=0) as reader, os.fdopen(theirs, "w") as stream:
        sys.stderr = stream
        try:
            yield
        finally:
            _drop_rest(reader.fileno())
            sys.stderr = before


def _drop_rest(ours: int) -> None:
    """Reads what is written until the writer of standard error has ended."""
    ends = time.monotonic() + _WRITTEN_S
    poll = select.poll()
    poll.register(ours, select.POLLIN)
    while time.monotonic() < ends and (poll.poll(10) or _is_writing()):
        if poll.poll(0):
            os.read(ours, _PAGE)


def _is_writing() -> bool:
    return any(thread.name == _WRITER for thread in threading.enumerate())
