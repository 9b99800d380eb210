"""The process groups of one rank, whichever library moves their data.

They belong to one rank of one session and to the one thread that runs that rank; nothing
in them may be called from another thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Self

from disco_client.errors import ConfigError
from disco_client.text import many
from disco_server.collectives import validation
from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.group import Backend, LoneBackend, ProcessGroup, slot_of_one
from disco_server.collectives.header_exchange import NO_DATA, HeaderExchange
from disco_server.collectives.loss import Loss
from disco_server.collectives.teams import LineParts, OpenDevice, Teams
from disco_server.collectives.types import Array, MismatchError, Tag
from disco_server.devices.foreign import destination, native

if TYPE_CHECKING:
    from types import TracebackType

    from disco_server.collectives.preflight import Channel, CommandPosition
    from disco_server.collectives.validation import Lines
    from disco_server.observe.flight import FlightRecorder

__all__ = ["ProcessGroups"]


class ProcessGroups(ABC):
    """The process groups of one rank: all workers, its group, and its teams.

    What is the same for every library: ranks compare what they bring before anything
    moves, as `preflight` describes. A library adds how headers travel (`HeaderExchange`), how
    data moves (`Backend`), and both for teams.

    Attributes:
        world: All workers.
        group: This rank's group; all workers where they are not divided.
        teams: The teams that this rank is in.
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
        self._closed = False
        self.loss = loss or Loss(worker_id)
        self._agreement = Agreement(worker_id)
        self._preflight = self._agreement.preflight
        self._make_exchange, self._make_backend = make_exchange, make_backend
        self.world = self._make_group(Tag.WORLD, range(num_workers))
        self.group = self.world
        if num_groups > 1:
            size = num_workers // num_groups
            first = worker_id // size * size
            self.group = self._make_group(Tag.GROUP, range(first, first + size))
        self._pairs = {
            peer: self._add_channel(Tag.PAIR, tuple(sorted((peer, worker_id))))[0]
            for peer in self.world.members
            if peer != worker_id
        }
        self.teams = Teams(
            worker_id,
            self._agreement,
            self.world,
            open_line=self._open_line,
            transfer=self._transfer,
        )

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

    def follow(self, progress: CommandPosition) -> None:
        """Reads from now on which command runs where the executor writes it.

        So a function may hold a process group, and use it in any command.

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
        backend: Backend = LoneBackend()
        channel, exchange = None, None
        if len(members) > 1:
            backend = self._make_backend(tag, tuple(members))
            channel, exchange = self._add_channel(tag, tuple(members))
        return ProcessGroup(
            members,
            self._worker_id,
            self._agreement,
            backend,
            channel,
            exchange,
            transfer=self._transfer,
        )

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
        self.teams.add_device(open_device)

    def refuse_device(self, why: str) -> None:
        """Sets why arrays on GPUs cannot take part; the same on every rank."""
        self._agreement.no_device = why

    @abstractmethod
    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        """Builds this rank's end of a team's line; see `teams.OpenLine`."""

    @abstractmethod
    def _release(self) -> None:
        """Releases what the library holds; every rank has left its channels."""

    def _transfer(self, buf: Array, worker: int, *, receives: bool, tag: str | None = None) -> None:
        agreement = self._agreement
        buf = destination(buf) if receives else native(buf)
        signature = agreement.admit(
            validation.check_point(
                buf, worker, self._worker_id, self.world.size, receives=receives
            ),
            tag,
        )
        channel = self._pairs.get(worker)
        arrays = (None, buf) if receives else (buf, None)
        if channel is None:
            raise MismatchError((self._worker_id,), agreement.tell(signature, *arrays))
        exchange: Any = channel.exchange  # a HeaderExchange
        slot = slot_of_one(exchange, signature, buf)
        source, target = agreement.stage(signature, buf, buf)
        payload = NO_DATA
        if slot is not None and not receives:
            exchange.put(slot, source.reshape(-1))
            payload = slot.payload
        agreement.enter(channel, signature, *arrays, payload)
        if slot is not None:
            if receives:
                came: Array = exchange.part(slot, channel.members.index(worker))
                buf[...] = came.reshape(buf.shape)
        elif signature.elements:
            self._move(source, target, worker, receives=receives)
            if receives:
                unstage(target, buf)
        agreement.notes.leave()

    def _move(self, source: Array, target: Array, worker: int, *, receives: bool) -> None:
        """Moves contiguous data by a library, after both ends have agreed."""
        backend = self.world.backend_of(source)
        if receives:
            backend.recv(target, worker)
        else:
            backend.send(source, worker)
