"""What every collective library offers a rank.

A `Communicator` belongs to one rank of one session and to the one thread that
runs that rank; nothing in it may be called from another thread. Its arrays are
numpy arrays of the dtypes in `validation`, or cupy's where a library for GPUs was
started, or other libraries', which are used as such (`devices.foreign`); only element
counts matter, never shapes, and parts lie flat, one after the other, in the order of the
ranks.

The errors::

    CollectiveError
    ├── MismatchError      ranks brought different things; no rank began
    ├── AbortedError       another rank cannot enter; no rank began
    ├── UnavailableError   the library is missing or did not start
    └── CommunicatorLost   it failed in use; no operation works any more

After the first two the communicator can be used as before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from disco_client.errors import ConfigError
from disco_client.text import many
from disco_server.collectives import validation
from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.group import (
    Backend,
    LineParts,
    LoneBackend,
    OpenDevice,
    ProcessGroup,
    Teams,
)
from disco_server.collectives.loss import Loss
from disco_server.collectives.types import (
    Array,
    MismatchError,
    ReduceOp,
    Tag,
)
from disco_server.devices.foreign import destination, native

if TYPE_CHECKING:
    from types import TracebackType

    from disco_server.collectives.header_exchange import HeaderExchange
    from disco_server.collectives.preflight import Channel, CommandPosition
    from disco_server.collectives.validation import Lines
    from disco_server.observe.flight import FlightRecorder

__all__ = ["Communicator"]


class Communicator(ABC):
    """One rank's membership among the workers of its session.

    What is the same for every library: ranks compare what they bring before anything
    moves, as `preflight` describes. A library adds how headers travel (`HeaderExchange`), how
    data moves (`Backend`), and both for teams.

    Every method except `send`, `recv`, `follow`, `cannot_enter` and `poll` is collective:
    all workers, or with `in_group` all workers of the group, must call it in the
    same order. Before anything moves the ranks compare what they brought, so a
    wrong call raises `MismatchError` on all of them and no rank hangs.
    A destination may be the source itself, or the part of the source or
    destination that belongs to this rank; other overlaps are copied first.
    Arrays that are not C-contiguous work through a contiguous copy.
    A `tag` is a name that the caller gives the call, a str, such as that of the tensor; ranks
    that come with another one, or with none, do not fit, whatever their arrays are.

    Attributes:
        world: All workers.
        group: This rank's group; all workers where they are not divided.
        ccl: The name by which a session chooses this library.
        loss: Whether a library of it has failed in use.
    """

    ccl: str

    def __init__(
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        make_exchange: Callable[[Tag, tuple[int, ...]], HeaderExchange],
        make_backend: Callable[[Tag, tuple[int, ...]], Backend],
        loss: Loss | None = None,
    ) -> None:
        """Joins the workers of the session.

        Args:
            worker_id: This rank.
            num_workers: The workers of the session.
            num_groups: Their groups.
            make_exchange: Makes this rank's end of a channel of these members.
            make_backend: Makes what moves data among them; not asked for pairs, whose
                data moves as that of all workers does, nor for teams.
            loss: Is notified if a library fails in use.

        Raises:
            ConfigError: The numbers do not fit one another.
        """
        if num_workers < 1 or num_groups < 1 or num_workers % num_groups:
            raise ConfigError(
                f"{many(num_workers, 'worker')} cannot be split into {num_groups} equal groups"
            )
        if not 0 <= worker_id < num_workers:
            raise ConfigError(f"worker {worker_id} is not one of {num_workers} workers")
        self._worker_id = worker_id
        self._num_workers = num_workers
        self._num_groups = num_groups
        self._closed = False
        self.loss = loss or Loss(worker_id)
        self._agreement = Agreement(worker_id)
        self._preflight = self._agreement.preflight
        self._make_exchange, self._make_backend = make_exchange, make_backend
        self.world = self._make_group(Tag.WORLD, self.members(in_group=False))
        self.group = self.world
        if num_groups > 1:
            self.group = self._make_group(Tag.GROUP, self.members(in_group=True))
        self._pairs = {
            peer: self._add_channel(Tag.PAIR, tuple(sorted((peer, worker_id))))[0]
            for peer in self.world.members
            if peer != worker_id
        }
        self._teams = Teams(
            worker_id,
            self._agreement,
            self.world,
            open_line=self._open_line,
            transfer=self._transfer,
        )

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
    def position(self) -> int:
        """The seq of the command this rank executes, or executed last; -1 before any.

        Commands count from 0, and positions never fall. It is set right before each command,
        here or in what `follow` was given.
        """
        return self._preflight.position

    @position.setter
    def position(self, seq: int) -> None:
        self._preflight.position = seq

    def allreduce(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        *,
        in_group: bool = True,
        tag: str | None = None,
    ) -> None:
        """Combines equally long sources element by element, everywhere.

        Sums of integers wrap. AVG is the sum divided by the number of ranks; of integers it is
        exact, as if added up without limits, and cut toward zero.
        float16 and bfloat16 are combined in float32 and rounded once. Booleans have
        SUM and MAX as "or", PROD and MIN as "and".

        Args:
            src: n elements.
            dst: n elements of the same dtype; may be `src`.
            op: The operation.
            in_group: Among the group instead of all workers.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).allreduce(src, dst, op, tag=tag)

    def allgather(
        self, src: Array, dst: Array, *, in_group: bool = True, tag: str | None = None
    ) -> None:
        """Brings every rank's source to every rank.

        Args:
            src: n elements.
            dst: n elements for each rank, of the same dtype.
            in_group: Among the group instead of all workers.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).allgather(src, dst, tag=tag)

    def broadcast(
        self, src: Array | None, dst: Array, *, in_group: bool = True, tag: str | None = None
    ) -> None:
        """Copies the source of worker 0, or of each group's leader, to every rank.

        Args:
            src: n elements on the root; elsewhere not looked at.
            dst: n elements of the same dtype; may be `src`.
            in_group: From the leader to its group instead of worker 0 to all.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).broadcast(src, dst, tag=tag)

    def scatter(
        self, src: Array | None, dst: Array, *, in_group: bool = True, tag: str | None = None
    ) -> None:
        """Gives each rank its part of the root's source.

        Args:
            src: n elements for each rank, on the root; elsewhere not looked at.
            dst: n elements of the same dtype.
            in_group: From the leader to its group instead of worker 0 to all.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).scatter(src, dst, tag=tag)

    def gather(
        self, src: Array, dst: Array | None, *, in_group: bool = True, tag: str | None = None
    ) -> None:
        """Collects every rank's source at the root.

        Args:
            src: n elements.
            dst: n elements for each rank, on the root; elsewhere not looked at.
            in_group: From the group to its leader instead of all to worker 0.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).gather(src, dst, tag=tag)

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        *,
        in_group: bool = True,
        tag: str | None = None,
    ) -> None:
        """Combines sources as `allreduce` does and leaves each rank its part.

        Args:
            src: n elements for each rank.
            dst: n elements of the same dtype.
            op: The operation.
            in_group: Among the group instead of all workers.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).reduce_scatter(src, dst, op, tag=tag)

    def all_to_all(
        self, src: Array, dst: Array, *, in_group: bool = True, tag: str | None = None
    ) -> None:
        """Sends part j of every rank i to part i of rank j.

        Args:
            src: n elements for each rank.
            dst: As many elements of the same dtype; may be `src`.
            in_group: Among the group instead of all workers.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: The ranks do not fit one another; no rank began.
            AbortedError: A rank cannot enter; no rank began.
        """
        (self.group if in_group else self.world).all_to_all(src, dst, tag=tag)

    def barrier(self, *, in_group: bool = False, tag: str | None = None) -> None:
        """Waits until every rank has entered it.

        Args:
            in_group: Every rank of the group, instead of all.
            tag: The call's name, equal on all ranks.

        Raises:
            MismatchError: Another rank is in a different collective.
            AbortedError: A rank cannot enter.
        """
        (self.group if in_group else self.world).barrier(tag=tag)

    def send(self, buf: Array, worker: int, *, tag: str | None = None) -> None:
        """Gives an array to one other worker, which must be in the matching `recv`.

        It returns only when the receiver has entered, so workers that all send
        around a ring before any of them receives wait for ever.

        Args:
            buf: The array.
            worker: The receiver.
            tag: The transfer's name, equal on both.

        Raises:
            MismatchError: The receiver expects another dtype or count, or `worker`
                is not another worker of the session.
            AbortedError: The receiver cannot enter.
        """
        self._transfer(buf, worker, receives=False, tag=tag)

    def recv(self, buf: Array, worker: int, *, tag: str | None = None) -> None:
        """Fills an array from one other worker, which must be in the matching `send`.

        Args:
            buf: The array.
            worker: The sender.
            tag: The transfer's name, equal on both.

        Raises:
            MismatchError: The sender brought another dtype or count, or `worker`
                is not another worker of the session.
            AbortedError: The sender cannot enter.
        """
        self._transfer(buf, worker, receives=True, tag=tag)

    def make_teams(self, lines: Sequence[Sequence[int]]) -> ProcessGroup | None:
        """Makes teams: workers that do collectives of their own, as along an axis of a mesh.

        All workers of the session must call it, also those that are in no line. Either
        all have their teams afterwards or none has; those that were made before are
        found again. Teams live as long as the communicator.

        Args:
            lines: The workers of each team in the order of their ranks there, one or
                more; no worker may be in two of them. Equal on all workers.

        Returns:
            The team that this worker is in; None if it is in no line.

        Raises:
            ConfigError: These cannot be lines of teams; this rank did not enter.
            MismatchError: The workers want different teams, or one of them could not
                build its end; nothing was made.
            AbortedError: A worker cannot enter; nothing was made.
        """
        return self._teams.make(lines)

    @property
    def received_bytes(self) -> int:
        """How many bytes this rank's teams have received from others; see `ProcessGroup`."""
        return self._teams.received_bytes

    def follow(self, progress: CommandPosition) -> None:
        """Reads from now on which command runs where the executor writes it.

        So a function may hold the communicator or a team of it, and use it in any command.

        Args:
            progress: Has `position`.
        """
        self._preflight.progress = progress

    def record(self, flight: FlightRecorder) -> None:
        """Records from now on which collectives this rank enters, and when.

        Args:
            flight: This rank's recorder.
        """
        self._agreement.notes.begin(flight)

    def protect(self, guard: AbstractContextManager[None]) -> None:
        """Enters a context from now on for as long as this rank is in a collective.

        Args:
            guard: Keeps exceptions from outside away, for which the peers would wait or read
                what is not theirs.
        """
        self._agreement.guard = guard

    def compare_shapes(self, enabled: bool) -> None:
        """Makes ranks compare the shapes of their arrays too, not only how many elements.

        All workers of the session must call it in the same command.
        """
        self._agreement.with_shapes = enabled

    def confine(self, participants: frozenset[int] | None) -> None:
        """Says which workers execute the command; None where all do.

        Collectives that need another one raise `LeftOutError` at once.
        """
        self._preflight.participants = participants

    def cannot_enter(self, seq: int) -> None:
        """Says that this rank is done with command `seq` and all before it.

        The executor calls it for each command that failed or was skipped on this
        rank, so that peers waiting for this rank in that command stop. It never
        waits; `poll` must follow while the rank is idle.
        """
        self._preflight.cannot_enter(seq)

    def poll(self) -> bool:
        """Continues what `cannot_enter` began; to be called between commands only.

        Returns:
            Whether it should be called again, in about a millisecond.
        """
        return self._preflight.poll()

    def close(self, *, orderly: bool = True) -> None:
        """Releases everything; further calls do nothing.

        Args:
            orderly: Leave all channels with the other ranks, which must close too. Without
                it nothing is waited for, and the process should end.
        """
        if self._closed:
            return
        self._closed = True
        self._agreement.close(orderly=orderly)
        if orderly:
            self._release()

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

    def _make_group(self, tag: Tag, members: range) -> ProcessGroup:
        if len(members) == 1:
            return ProcessGroup(members, self._worker_id, self._agreement, LoneBackend())
        backend = self._make_backend(tag, tuple(members))
        channel, exchange = self._add_channel(tag, tuple(members))
        return ProcessGroup(members, self._worker_id, self._agreement, backend, channel, exchange)

    def _add_channel(self, tag: Tag, members: tuple[int, ...]) -> tuple[Channel, HeaderExchange]:
        exchange = self._make_exchange(tag, members)
        return self._agreement.add_channel(members, exchange), exchange

    def add_device(
        self,
        ccl: str,
        xp: Any,
        make_backend: Callable[[Tag, tuple[int, ...], Backend], Backend],
        open_device: OpenDevice,
    ) -> None:
        """Enables arrays on GPUs from now on; to be called on every rank.

        Args:
            ccl: The name of the library that moves them.
            xp: The module of such arrays.
            make_backend: Makes what moves them among these members, given what moves host
                arrays among them.
            open_device: The same for teams.
        """
        self.ccl, self._agreement.xp, self._agreement.no_device = ccl, xp, ""
        kinds = {Tag.WORLD: self.world, Tag.GROUP: self.group}
        if self.group is self.world:
            del kinds[Tag.GROUP]
        for tag, group in kinds.items():
            group.device_backend = make_backend(tag, group.members, group.backend)
        self._teams.add_device(open_device)

    def refuse_device(self, why: str) -> None:
        """Sets why arrays on GPUs cannot take part; the same on every rank."""
        self._agreement.no_device = why

    @abstractmethod
    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        """Builds this rank's end of a team's line; see `group.OpenLine`."""

    @abstractmethod
    def _release(self) -> None:
        """Releases what the library holds; every rank has left its channels."""

    def _transfer(self, buf: Array, worker: int, *, receives: bool, tag: str | None = None) -> None:
        agreement = self._agreement
        buf = destination(buf) if receives else native(buf)
        signature = agreement.admit(
            validation.check_point(
                buf, worker, self._worker_id, self._num_workers, receives=receives
            ),
            tag,
        )
        channel = self._pairs.get(worker)
        arrays = (None, buf) if receives else (buf, None)
        if channel is None:
            raise MismatchError((self._worker_id,), agreement.tell(signature, *arrays))
        source, target = agreement.stage(signature, buf, buf)
        agreement.enter(channel, signature, *arrays)
        if signature.elements:
            backend = self.world.backend_of(buf)
            if receives:
                backend.recv(target, worker)
                unstage(target, buf)
            else:
                backend.send(source, worker)
        agreement.notes.leave()
