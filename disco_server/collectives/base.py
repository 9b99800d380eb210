"""What every collective library offers a rank.

A `Communicator` belongs to one rank of one session and to the one thread that
runs that rank; nothing in it may be called from another thread. Its arrays are
numpy arrays of the dtypes in `checks`, or cupy's where a library for GPUs was
started; only element counts matter, never shapes, and parts lie flat, one after
the other, in the order of the ranks.

The errors::

    CollectiveError
    ├── MismatchError      ranks brought different things; nobody began
    ├── AbortedError       another rank cannot come; nobody began
    ├── UnavailableError   the library is missing or did not start
    └── CommunicatorLost   it failed at work; nothing goes on with it

After the first two the communicator is as good as before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Self

import numpy.typing as npt

from disco_client.errors import ConfigError

if TYPE_CHECKING:
    from types import TracebackType

    from disco_server.collectives.team import Team
    from disco_server.observe.flight import FlightRecorder

__all__ = [
    "AbortedError",
    "Array",
    "CollectiveError",
    "Communicator",
    "CommunicatorLost",
    "MismatchError",
    "ReduceOp",
    "UnavailableError",
    "name_workers",
]

Array = npt.NDArray[Any]


class ReduceOp(IntEnum):
    """How elements of several ranks become one; the numbers travel."""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4

    @classmethod
    def from_name(cls, name: str) -> ReduceOp:
        """Finds an operation by the name users write.

        Args:
            name: One of "sum", "prod", "min", "max" and "avg".

        Raises:
            ConfigError: There is no operation of that name.
        """
        found = _BY_NAME.get(name)
        if found is None:
            choices = ", ".join(repr(each) for each in _BY_NAME)
            raise ConfigError(f"no reduction is called {name!r}; the choices are {choices}")
        return found


_BY_NAME = {op.name.lower(): op for op in ReduceOp}


class CollectiveError(Exception):
    """The base of what a communicator raises."""


class MismatchError(CollectiveError):
    """Ranks brought different or wrong things to one collective.

    Every rank of the collective raises it with the same text, and none of them
    has touched its destination.

    Attributes:
        ranks: The worker ids of the odd ones, in order.
    """

    def __init__(self, ranks: Iterable[int], message: str) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class AbortedError(CollectiveError):
    """A collective cannot happen because other ranks failed before they entered it.

    Attributes:
        ranks: The worker ids of those that failed, in order.
        seq: The command in which this rank waited for them.
        op: The name of the collective it waited in.
    """

    def __init__(self, ranks: Iterable[int], seq: int, op: str) -> None:
        self.ranks = tuple(ranks)
        self.seq = seq
        self.op = op
        super().__init__(
            f"{op} of command #{seq} cannot happen: {name_workers(self.ranks)} failed before"
            " entering it"
        )


class UnavailableError(CollectiveError):
    """A collective library is not there, or it did not start; the message says what to do."""


class CommunicatorLost(CollectiveError):
    """A communicator failed or was aborted; the message says in which collective, and why."""


def name_workers(workers: Iterable[int]) -> str:
    """Lists workers as a person would: "worker 2", "workers 0, 1 and 3"."""
    names = [str(worker) for worker in sorted(workers)]
    if len(names) == 1:
        return f"worker {names[0]}"
    return f"workers {', '.join(names[:-1])} and {names[-1]}"


class Communicator(ABC):
    """One rank's place among the workers of its session.

    Every method except `send`, `recv`, `follow`, `cannot_enter` and `poll` is collective:
    all workers, or with `in_group` all workers of the group, must call it in the
    same order. Before anything moves the ranks compare what they brought, so a
    wrong call raises `MismatchError` everywhere instead of hanging someone.
    A destination may be the source itself, or the part of the source or
    destination that belongs to this rank; other overlaps are copied first.
    Arrays that are not C-contiguous work through a contiguous copy.

    Attributes:
        ccl: The name by which a session chooses this library.
    """

    ccl: str

    def __init__(self, worker_id: int, num_workers: int, num_groups: int) -> None:
        """Takes a place.

        Raises:
            ConfigError: The numbers do not fit one another.
        """
        if num_workers < 1 or num_groups < 1 or num_workers % num_groups:
            raise ConfigError(
                f"{num_workers} workers cannot be split into {num_groups} equal groups"
            )
        if not 0 <= worker_id < num_workers:
            raise ConfigError(f"worker {worker_id} is not one of {num_workers} workers")
        self._worker_id = worker_id
        self._num_workers = num_workers
        self._num_groups = num_groups

    @property
    def worker_id(self) -> int:
        """This rank among all workers, from 0."""
        return self._worker_id

    @property
    def num_workers(self) -> int:
        """How many workers the session has."""
        return self._num_workers

    @property
    def num_groups(self) -> int:
        """Into how many equal, consecutive groups they fall."""
        return self._num_groups

    @property
    def group_size(self) -> int:
        """How many workers a group has."""
        return self._num_workers // self._num_groups

    @property
    def group_id(self) -> int:
        """The group of this rank, from 0."""
        return self._worker_id // self.group_size

    @property
    def group_rank(self) -> int:
        """This rank inside its group, from 0; the leader is 0."""
        return self._worker_id % self.group_size

    def members(self, *, in_group: bool) -> range:
        """The worker ids that take part in a collective, in rank order."""
        if not in_group:
            return range(self._num_workers)
        first = self.group_id * self.group_size
        return range(first, first + self.group_size)

    @property
    @abstractmethod
    def position(self) -> int:
        """The seq of the command this rank executes, or executed last; -1 before any.

        The executor sets it right before each command. Commands count from 0, and
        positions never fall.
        """

    @position.setter
    @abstractmethod
    def position(self, seq: int) -> None: ...

    @abstractmethod
    def allreduce(self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True) -> None:
        """Combines equally long sources element by element, everywhere.

        AVG divides the sum; integers, whose sums wrap, are divided toward zero.
        float16 and bfloat16 are combined in float32 and rounded once. Booleans know
        SUM and MAX as "or", PROD and MIN as "and".

        Args:
            src: n elements.
            dst: n elements of the same dtype; may be `src`.
            op: The operation.
            in_group: Among the group instead of all workers.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def allgather(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """Brings every rank's source to every rank.

        Args:
            src: n elements.
            dst: n elements for each rank, of the same dtype.
            in_group: Among the group instead of all workers.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def broadcast(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """Copies the source of worker 0, or of each group's leader, to every rank.

        Args:
            src: n elements on the root; elsewhere not looked at.
            dst: n elements of the same dtype; may be `src`.
            in_group: From the leader to its group instead of worker 0 to all.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def scatter(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """Gives each rank its part of the root's source.

        Args:
            src: n elements for each rank, on the root; elsewhere not looked at.
            dst: n elements of the same dtype.
            in_group: From the leader to its group instead of worker 0 to all.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def gather(self, src: Array, dst: Array | None, *, in_group: bool = True) -> None:
        """Collects every rank's source at the root.

        Args:
            src: n elements.
            dst: n elements for each rank, on the root; elsewhere not looked at.
            in_group: From the group to its leader instead of all to worker 0.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def reduce_scatter(
        self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True
    ) -> None:
        """Combines sources as `allreduce` does and leaves each rank its part.

        Args:
            src: n elements for each rank.
            dst: n elements of the same dtype.
            op: The operation.
            in_group: Among the group instead of all workers.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def all_to_all(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """Sends part j of every rank i to part i of rank j.

        Args:
            src: n elements for each rank.
            dst: As many elements of the same dtype; may be `src`.
            in_group: Among the group instead of all workers.

        Raises:
            MismatchError: The ranks do not fit one another; nobody began.
            AbortedError: A rank cannot come; nobody began.
        """

    @abstractmethod
    def barrier(self, *, in_group: bool = False) -> None:
        """Waits until every rank is here.

        Raises:
            MismatchError: Another rank is in a different collective.
            AbortedError: A rank cannot come.
        """

    @abstractmethod
    def send(self, buf: Array, worker: int) -> None:
        """Gives an array to one other worker, which must be in the matching `recv`.

        It returns only when the receiver has come, so workers that all send
        around a ring before any of them receives wait for ever.

        Raises:
            MismatchError: The receiver expects another dtype or count, or `worker`
                is not another worker of the session.
            AbortedError: The receiver cannot come.
        """

    @abstractmethod
    def recv(self, buf: Array, worker: int) -> None:
        """Fills an array from one other worker, which must be in the matching `send`.

        Raises:
            MismatchError: The sender brought another dtype or count, or `worker`
                is not another worker of the session.
            AbortedError: The sender cannot come.
        """

    @abstractmethod
    def make_teams(self, lines: Sequence[Sequence[int]]) -> Team | None:
        """Lets some workers do collectives of their own, as along an axis of a mesh.

        All workers of the session must call it, those that are in no line too. Either
        all have their teams afterwards or none has; those that were made before are
        found again. Teams live as long as the communicator.

        Args:
            lines: The workers of each team in the order of their ranks there, one or
                more; no worker may be in two of them. Equal on all workers.

        Returns:
            The team that this worker is in; None if it is in no line.

        Raises:
            ConfigError: These cannot be lines of teams; this rank did not come.
            MismatchError: The workers want different teams, or one of them could not
                build its end; nothing was made.
            AbortedError: A worker cannot come; nothing was made.
        """

    @property
    @abstractmethod
    def received_bytes(self) -> int:
        """How many bytes of others this rank's teams have brought; see `Team`."""

    @abstractmethod
    def follow(self, look_up: Callable[[], int]) -> None:
        """Lets teams find out by themselves which command runs, before each operation.

        Who has a team may use it without asking for the communicator, which is when
        `position` would be set.

        Args:
            look_up: Returns what `position` should be.
        """

    @abstractmethod
    def record(self, flight: FlightRecorder) -> None:
        """Writes down from now on which collectives this rank enters, and when.

        Args:
            flight: This rank's.
        """

    @abstractmethod
    def compare_shapes(self, enabled: bool) -> None:
        """Lets ranks compare the shapes that they bring too, not only how many elements.

        All workers of the session must call it in the same command.
        """

    @abstractmethod
    def cannot_enter(self, seq: int) -> None:
        """Says that this rank is done with command `seq` and all before it.

        The executor calls it for each command that failed or was skipped on this
        rank, so that peers waiting for this rank in that command stop. It never
        waits; `poll` must follow while the rank is idle.
        """

    @abstractmethod
    def poll(self) -> bool:
        """Carries on what `cannot_enter` began; to be called between commands only.

        Returns:
            Whether it should be called again, in about a millisecond.
        """

    @abstractmethod
    def close(self, *, orderly: bool = True) -> None:
        """Gives everything back; further calls do nothing.

        Args:
            orderly: Take leave of the other ranks, which must close too. Without
                it nothing is waited for, and the process should end.
        """

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes; without waiting for the others if the block failed."""
        self.close(orderly=error is None)
