"""A random program: what a session computes, and what numpy does."""

from __future__ import annotations

import gc
import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from disco_client import DPackedFunc, DRef, Session

__all__ = ["Run", "SoakProgram", "WrongResult", "same"]

Run = tuple[int, int]
"""Numbers from the first to the last one."""

FUNCTIONS = "disco_soak.worker_functions"
_SIZES = (1, 7, 1000, 40_000, 300_000)
_LARGE = 2_000_000
"""So large, 16 MB, that a fault occurs during its transfer."""

_BURST = 400


class WrongResult(Exception):
    """What the workers computed is not what numpy does."""


class SoakProgram:
    """The steps that one session takes.

    Args:
        session: A session whose workers may import this package and numpy.
        seed: Decides what the steps are.

    Attributes:
        session: The session; another one after the program has detached and attached again.
        steps: How many were taken.
        issued: How many numbers the workers were asked to note.
        beside: The same for the logs of what comes in the middle of a step.
        given_up: The numbers of each log that may be missing, because the program gave them up.
        doing: The name of the step that was begun last.
    """

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.steps = self.issued = 0
        self.beside: Counter[str] = Counter()
        self.given_up: defaultdict[str, set[int]] = defaultdict(set)
        self.doing = ""
        self._random = random.Random(seed)  # noqa: S311  (no secret)
        self._numbers = np.random.default_rng(seed)
        self._note: DPackedFunc
        self._steps: list[Callable[[], None]] = [
            self._burst,
            self._arithmetic,
            self._collective,
            self._there_and_back,
            self._distributed,
            self._failure,
        ]
        self.begin(session)
        session.sync_all()  # an interrupt that ends the import on a worker leaves it no functions
        self._burst()

    def begin(self, session: Session) -> None:
        """Uses a session from now on, which may be the same one after attaching again."""
        self.session = session
        session.import_python_module(FUNCTIONS)
        self._note = session.get_global_func("soak.note")

    def step(self) -> None:
        """Takes one step and checks what it gave.

        Raises:
            WrongResult: It gave something else than numpy.
            errors.SessionError: The session is lost.
        """
        step = self._random.choice(self._steps)
        self.doing = step.__name__
        step()
        self.steps += 1

    def transfer(self) -> None:
        """Carries a large array there and back, through the controller half of the time.

        Raises:
            WrongResult: It came back as another one.
            errors.SessionError: The session is lost.
        """
        self.doing = "transfer"
        arrays = getattr(self.session._core.transport, "_arrays", None)  # noqa: SLF001  (only a client of a controller has these)
        addresses = getattr(arrays, "_addresses", None)
        if addresses and self._random.random() < 0.5:  # noqa: PLR2004  (half of the time)
            addresses.clear()
        array = self._numbers.random(_LARGE)
        same(self.session.copy_to_worker_0(array).numpy(), array)

    def number_beside(self, log: str) -> int:
        """The next number of another log, which the workers are about to note."""
        self.beside[log] += 1
        return self.beside[log]

    def note_beside(self, log: str) -> tuple[int, DRef]:
        """Has the workers note the next number of another log, also in the middle of a step."""
        number = self.number_beside(log)
        return number, self._note(number, log)

    def note_last(self) -> None:
        """Has the workers note one more number, so that what is missing before it is known."""
        self.issued += 1
        self._note(self.issued)

    def missing(self, log: str = "") -> tuple[list[list[Run]], int]:
        """Asks every worker what it noted.

        Args:
            log: Where.

        Returns:
            The runs of numbers that each worker has not noted, and how many were repeated.
        """
        session, issued = self.session, self.beside[log] if log else self.issued
        noted = session.get_global_func("soak.noted")(log)
        runs: list[list[Run]] = []
        repeated = 0
        for worker in range(session.num_workers):
            last, twice, *gaps = noted.debug_get_from_remote(worker)
            each = [*zip(gaps[::2], gaps[1::2], strict=True), (last + 1, issued)]
            runs.append([run for run in each if run[0] <= run[1]])
            repeated += twice
        return runs, repeated

    def check(self) -> tuple[int, int]:
        """Asks every worker what it noted; returns how many were lost and how many repeated."""
        lost = twice = 0
        for log in ("", *self.beside):
            given_up = self.given_up[log]
            runs, repeated = self.missing(log)
            twice += repeated
            for first, last in (run for each in runs for run in each):
                lost += sum(number not in given_up for number in range(first, last + 1))
        return lost, twice

    def left_behind(self) -> int:
        """Counts what registers of workers hold that nothing in the program refers to."""
        gc.collect()
        core: Any = self.session._core  # noqa: SLF001  (nothing public lists registers)
        reader = self.session.get_global_func("soak.held")
        held = reader()
        live = core.log.live_registers()
        return sum(
            len({*map(int, held.debug_get_from_remote(worker))} - live)
            for worker in range(self.session.num_workers)
        )

    # The steps ---------------------------------------------------------------------

    def _burst(self) -> None:
        for _ in range(self._random.randint(1, _BURST)):
            self.issued += 1
            self._note(self.issued)
        if self._random.random() < 0.3:  # noqa: PLR2004  (now and then)
            self.session.sync_all()

    def _array(self) -> Any:
        size = self._random.choice(_SIZES)
        return self._numbers.integers(-99, 99, size).astype(self._random.choice(("f8", "i4")))

    def _arithmetic(self) -> None:
        array = self._array()
        session = self.session
        there = session.broadcast(array)
        for name, function in (("add", np.add), ("multiply", np.multiply)):
            there = session.get_global_func(f"numpy.{name}")(there, there)
            array = function(array, array)
        worker = self._random.randrange(session.num_workers)
        same(there.debug_get_from_remote(worker), array)

    def _collective(self) -> None:
        session, workers = self.session, self.session.num_workers
        rows = self._numbers.integers(-99, 99, (workers, self._random.choice(_SIZES)))
        mine = session.empty(rows.shape[1:], rows.dtype)
        session.scatter_from_worker0(session.copy_to_worker_0(rows), mine)
        total = session.empty(rows.shape[1:], rows.dtype)
        session.allreduce(mine, total)
        whole = session.empty(rows.shape, rows.dtype, worker0_only=True, in_group=False)
        session.gather_to_worker0(mine, whole, in_group=False)
        worker = self._random.randrange(workers)
        same(total.debug_get_from_remote(worker), rows.sum(axis=0))
        same(whole.numpy(), rows)

    def _there_and_back(self) -> None:
        array = self._array()
        there = self.session.copy_to_worker_0(array)
        out = np.empty_like(array)
        self.session.copy_from_worker_0(out, there)
        same(out, array)

    def _distributed(self) -> None:
        session = self.session
        rows = self._random.choice((3, 8, 50))
        left = self._numbers.integers(-9, 9, (rows, 20)).astype("f8")
        right = self._numbers.integers(-9, 9, (20, rows)).astype("f8")
        placement = self._random.choice(("S[0]", "S[1]", "R"))
        product = session.distribute(left, None, placement) @ session.distribute(right)
        same((product.redistribute("S[0]") + 1).numpy(), left @ right + 1)

    def _failure(self) -> None:
        worker = self._random.randrange(self.session.num_workers)
        self.session.get_global_func("soak.fail_on")(worker)
        try:
            self.session.sync_all()
        except errors.RemoteException as error:
            if [failure.worker for failure in error.failures] != [worker]:
                msg = f"worker {worker} was told to fail, the error names others: {error}"
                raise WrongResult(msg) from error
        else:
            msg = f"worker {worker} was told to fail, and no error came"
            raise WrongResult(msg)


def same(got: Any, expected: Any) -> None:
    """Makes sure that an array is what numpy has.

    Raises:
        WrongResult: It is another one.
    """
    # Not np.array_equal, which takes whatever is raised in it for a difference.
    alike = (got.dtype, got.shape) == (expected.dtype, expected.shape)
    if not alike or not np.all(got == expected):
        msg = f"expected {expected.dtype}{list(expected.shape)} as numpy has it, got {got!r}"
        raise WrongResult(msg)
