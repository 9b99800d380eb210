"""Enables arrays on GPUs in a session's collectives, by NCCL or RCCL.

The ranks keep the communicator of the host, MPI's or that of threads: before each
operation they compare there what they bring, so that only operations that fit one
another ever reach NCCL, which cannot recover from others. There they also exchange what
they have before NCCL begins, so that what is missing on one of them is an error on all and
not a wait for ever. NCCL's unique id then comes through the session's rendezvous, where
there is one (see `unique_ids`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from disco_client.text import name_workers
from disco_server.collectives.nccl_library import NcclLibrary, version_text
from disco_server.collectives.nccl_watch import NcclWatch, TimeLimits
from disco_server.collectives.types import CommunicatorLost, Tag, UnavailableError
from disco_server.collectives.unique_ids import HostIds
from disco_server.devices.base import address, overlap

if TYPE_CHECKING:
    from disco_server.collectives.group import Backend
    from disco_server.collectives.process_groups import ProcessGroups
    from disco_server.collectives.types import Array, ReduceOp
    from disco_server.collectives.unique_ids import UniqueIds
    from disco_server.collectives.validation import Family, Lines
    from disco_server.devices.base import Arrays
    from disco_server.devices.gpu import GpuArrays

__all__ = ["NcclBackend", "NcclHooks", "start_nccl"]


# The data operations of one NCCL communicator, once its ranks agreed to begin.
#
# Arrays here are cupy's, C-contiguous, of the right sizes and with at least one
# element. Everything is enqueued on the rank's communication stream, which begins
# when what was computed before is there; what is computed afterwards waits for it.


class _Part(NamedTuple):
    """Where a part lies in the GPU's memory, and how long it is in bytes."""

    at: int
    nbytes: int


_NOTHING = _Part(0, 0)


class NcclBackend:
    """Moves and combines arrays on GPUs; see `Backend`.

    NCCL has no operations for uneven parts, but runs sends and receives of a group at
    once, and so it does reductions that each leave their result on one rank.

    Args:
        comm: The `NcclCommunicator`, used for nothing else.
        rank: This rank in it.
        size: How many ranks it has.
        library: Where it comes from.
        arrays: This rank's device.
        watch: Is notified of what was enqueued.
    """

    def __init__(
        self,
        comm: Any,
        rank: int,
        size: int,
        *,
        library: NcclLibrary,
        arrays: GpuArrays,
        watch: NcclWatch,
    ) -> None:
        self._comm, self._rank, self._size = comm, rank, size
        self._library, self._arrays, self._watch = library, arrays, watch
        self._runtime = arrays.xp.cuda.runtime
        self._stream: int = arrays.comm.ptr

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""
        kind, call = self._library.type_of(src.dtype), self._library.reduction(op, family)
        with self._enqueue(f"allreduce({op.name.lower()})", src, dst) as (source, stream):
            count = source.size * kind.each
            self._comm.allReduce(address(source), address(dst), count, kind.number, call, stream)

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        family: Family,
        counts: Sequence[int] | None = None,
    ) -> None:
        """Combines and leaves each rank its part."""
        kind, call = self._library.type_of(src.dtype), self._library.reduction(op, family)
        name = f"reduce_scatter({op.name.lower()})"
        if counts is None:
            with self._enqueue(name, src, dst, -self._rank * dst.nbytes) as (source, stream):
                count = dst.size * kind.each
                self._comm.reduceScatter(
                    address(source), address(dst), count, kind.number, call, stream
                )
            return
        own = -_start(src, counts, self._rank)
        with self._enqueue(name, src, dst, own) as (source, stream), self._together():
            for root, (part, count) in enumerate(zip(_split(source, counts), counts, strict=True)):
                if count:
                    to = address(dst) if root == self._rank else 0
                    elements = count * kind.each
                    self._comm.reduce(part.at, to, elements, kind.number, call, root, stream)

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """Brings every source to every rank."""
        if counts is None:
            own, byte = self._rank * src.nbytes, self._library.byte
            with self._enqueue("allgather", src, dst, own) as (source, stream):
                self._comm.allGather(address(source), address(dst), source.nbytes, byte, stream)
            return
        own = _start(dst, counts, self._rank)
        with self._enqueue("allgather", src, dst, own) as (source, stream):
            self._exchange([_whole(source)] * self._size, _split(dst, counts), stream)

    def broadcast(self, src: Array, dst: Array, root: int = 0) -> None:
        """Copies the root's source to all."""
        src, byte = src if self._rank == root else dst, self._library.byte
        with self._enqueue("broadcast", src, dst) as (source, stream):
            self._comm.broadcast(address(source), address(dst), dst.nbytes, byte, root, stream)

    def scatter(
        self, src: Array | None, dst: Array, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Gives each rank its part of the root's source."""
        lengths = counts or [dst.size] * self._size
        incoming = self._only(_whole(dst), root)
        if src is None or self._rank != root:
            with self._enqueue("scatter", dst, dst) as (_, stream):
                self._exchange(self._only(_NOTHING, root), incoming, stream)
            return
        own = -_start(src, lengths, root)
        with self._enqueue("scatter", src, dst, own) as (source, stream):
            self._exchange(_split(source, lengths), incoming, stream)

    def gather(
        self, src: Array, dst: Array | None, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Collects every source at the root."""
        if dst is None or self._rank != root:
            with self._enqueue("gather", src, src) as (_, stream):
                outgoing = self._only(_whole(src), root)
                self._exchange(outgoing, self._only(_NOTHING, root), stream)
            return
        lengths = counts or [src.size] * self._size
        own = _start(dst, lengths, root)
        with self._enqueue("gather", src, dst, own) as (source, stream):
            outgoing = self._only(_whole(source), root)
            self._exchange(outgoing, _split(dst, lengths), stream)

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Sends `table[i][j]` elements from each rank i to each rank j."""
        rows = table or [[src.size // self._size] * self._size] * self._size
        sent, received = rows[self._rank], [row[self._rank] for row in rows]
        with self._enqueue("all_to_all", src, dst, None) as (source, stream):
            self._exchange(_split(source, sent), _split(dst, received), stream)

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""
        with self._enqueue("send", buf, buf) as (_, stream):
            self._comm.send(address(buf), buf.nbytes, self._library.byte, rank, stream)

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""
        with self._enqueue("recv", buf, buf) as (_, stream):
            self._comm.recv(address(buf), buf.nbytes, self._library.byte, rank, stream)

    @contextmanager
    def _enqueue(
        self, name: str, src: Array, dst: Array, own: int | None = 0
    ) -> Generator[tuple[Array, int]]:
        """Wraps the calls of one operation and orders it among what is computed.

        Args:
            name: The operation.
            src: Its source.
            dst: Its destination.
            own: Where in the destination the source may begin, in bytes; None if
                they may not overlap at all.

        Yields:
            The source, or a copy of it, and the stream.
        """
        with self._watch.launching(name):
            if overlap(src, dst) and (own is None or address(src) != address(dst) + own):
                src = src.copy()
            self._arrays.enter_comm()
            yield src, self._stream
            self._arrays.leave_comm()

    @contextmanager
    def _together(self) -> Generator[None]:
        """Wraps sends and receives that must not wait for one another."""
        binding = self._library.binding
        binding.groupStart()
        try:
            yield
        finally:
            binding.groupEnd()

    def _copy(self, to: int, source: int, nbytes: int) -> None:
        if to != source:
            kind = self._runtime.memcpyDeviceToDevice
            self._runtime.memcpyAsync(to, source, nbytes, kind, self._stream)

    def _exchange(self, outgoing: Sequence[_Part], incoming: Sequence[_Part], stream: int) -> None:
        """Sends a part to each rank and receives one from each; parts may be empty."""
        byte = self._library.byte
        with self._together():
            for peer, (there, here) in enumerate(zip(outgoing, incoming, strict=True)):
                if peer == self._rank:
                    continue
                if there.nbytes:
                    self._comm.send(there.at, there.nbytes, byte, peer, stream)
                if here.nbytes:
                    self._comm.recv(here.at, here.nbytes, byte, peer, stream)
        there, here = outgoing[self._rank], incoming[self._rank]
        if here.nbytes:
            self._copy(here.at, there.at, here.nbytes)

    def _only(self, part: _Part, rank: int) -> list[_Part]:
        """Parts that are empty but for the one of a rank."""
        return [part if each == rank else _NOTHING for each in range(self._size)]


def _start(array: Array, counts: Sequence[int], rank: int) -> int:
    """Where in an array of all parts the one of a rank begins, in bytes."""
    return sum(counts[:rank]) * array.dtype.itemsize


def _whole(array: Array) -> _Part:
    return _Part(address(array), array.nbytes)


def _split(array: Array, counts: Iterable[int]) -> list[_Part]:
    """The parts of an array."""
    sizes = [count * array.dtype.itemsize for count in counts]
    starts = accumulate(sizes, initial=address(array))
    return [_Part(at, size) for at, size in zip(starts, sizes, strict=False)]


_PROBLEM_CHARACTERS = 300
_RECORD_BYTES = 512 + 12 * _PROBLEM_CHARACTERS  # escaped, a character is at most 12 bytes
_NO_COLOR = -1  # NCCL_SPLIT_NOCOLOR: takes part in a split and gets nothing


class NcclHooks(NamedTuple):
    """The hooks of a rank's process for its watch.

    Attributes:
        on_slow: Called with what takes long.
        limits: How long operations may take.
    """

    on_slow: Callable[[str], None]
    limits: TimeLimits = TimeLimits()


class _Record(NamedTuple):
    """What one rank reports of itself before NCCL starts.

    Attributes:
        problem: Why it cannot take part; empty if it can.
        version: Of its library.
        gpu: Identifies its GPU among those of all machines.
        id_bytes: How long a unique id of its library is; 0 where it made none.
    """

    problem: str = ""
    version: int = 0
    gpu: str = ""
    id_bytes: int = 0

    def encode(self) -> np.ndarray[Any, Any]:
        """Writes it into as many bytes as every other."""
        text = json.dumps(self).encode()
        out = np.zeros(_RECORD_BYTES, np.uint8)
        out[: len(text)] = np.frombuffer(text, np.uint8)
        return out

    @classmethod
    def decode(cls, data: np.ndarray[Any, Any]) -> _Record:
        """Reads it."""
        return cls(*json.loads(data.tobytes().rstrip(b"\0")))


def start_nccl(
    groups: ProcessGroups,
    arrays: Arrays,
    name: str,
    host: str,
    hooks: NcclHooks,
    ids: UniqueIds | None = None,
) -> NcclWatch:
    """Starts the library on all ranks; every rank calls it in the same command.

    Args:
        groups: The rank's process groups; their `ccl` is `name` from now on.
        arrays: This rank's device.
        name: "nccl" or "rccl".
        host: Identifies this rank's machine.
        hooks: What to do when something takes long.
        ids: Shares unique ids; by default by a collective of host arrays.

    Returns:
        The watch of this rank's operations.

    Raises:
        UnavailableError: A rank has not what it needs, or two share a GPU; the same
            on every rank, and none has begun.
        CommunicatorLost: The library failed while it started; peers may still be in
            it, so this process should end.
        AbortedError: A rank cannot enter; no rank began.
    """
    library, mine, made = _prepare(groups, arrays, name, host)
    parts = np.empty((groups.world.size, _RECORD_BYTES), np.uint8)
    groups.world.allgather(mine.encode(), parts)
    records = [_Record.decode(part) for part in parts]
    problem = _compare(records, name)
    if problem or library is None:
        groups.refuse_device(problem)
        raise UnavailableError(problem)
    gpu = cast("GpuArrays", arrays)
    watch = NcclWatch(
        library,
        gpu,
        groups.world.rank,
        position=lambda: groups.position,
        loss=groups.loss,
        on_slow=hooks.on_slow,
        limits=hooks.limits,
    )
    shared = _SharedIds(ids or HostIds(), library, made, records[0].id_bytes)
    opened = _CommunicatorOpener(groups.world.rank, library, gpu, watch, shared)
    groups.add_device(name, gpu.xp, opened.make_backend, opened.open_device)
    return watch


def _prepare(
    groups: ProcessGroups, arrays: Arrays, name: str, host: str
) -> tuple[NcclLibrary | None, _Record, Mapping[Tag, bytes]]:
    """Finds out what this rank has; what it lacks is reported to the others, not raised.

    Returns:
        The library, what the others are told, and the ids that this rank made.
    """
    if arrays.on_host:
        return None, _Record(f"it computes on {arrays.device}"), {}
    try:
        library = NcclLibrary(name, arrays)
        # A group's id is needed where the library cannot split a communicator.
        world, group = groups.world, groups.group
        apart = group is not world and not library.splits
        leads = {Tag.WORLD: world.rank == 0, Tag.GROUP: group.rank == 0 and apart}
        ids = {tag: library.make_id() for tag, lead in leads.items() if lead}
        gpu = f"{host} {cast('GpuArrays', arrays).bus_id()}"
    except Exception as error:  # noqa: BLE001  (whatever a broken library raises)
        return None, _Record(str(error)[:_PROBLEM_CHARACTERS] or type(error).__name__), {}
    return library, _Record("", library.version, gpu, len(ids.get(Tag.WORLD, b""))), ids


def _compare(records: Sequence[_Record], name: str) -> str:
    """Says why the ranks cannot start together; empty if they can. Equal on all ranks."""
    missing: dict[str, list[int]] = {}
    for worker, record in enumerate(records):
        if record.problem:
            missing.setdefault(record.problem, []).append(worker)
    if missing:
        told = "; ".join(f"{name_workers(who)}: {why}" for why, who in missing.items())
        return f"{name} needs a GPU of its own for each worker, so none began: {told}"
    users: dict[str, list[int]] = {}
    for worker, record in enumerate(records):
        users.setdefault(record.gpu, []).append(worker)
    for gpu, who in users.items():
        if len(who) > 1:
            return (
                f"{name} needs a GPU of its own for each worker, so none began:"
                f" {name_workers(who)} share the GPU {gpu.split()[-1]}"
            )
    versions: dict[int, list[int]] = {}
    for worker, record in enumerate(records):
        versions.setdefault(record.version, []).append(worker)
    if len(versions) > 1:
        told = "; ".join(f"{name_workers(w)} {version_text(v)}" for v, w in versions.items())
        return f"{name} must have the same version everywhere, so none began: {told}"
    return ""


class _SharedIds:
    """The unique ids of one rank's communicators.

    Args:
        ids: Shares them.
        library: Makes them.
        made: Those that this rank made before all ranks knew that they can begin.
        nbytes: How long one is, as the library of worker 0 says.
    """

    def __init__(
        self, ids: UniqueIds, library: NcclLibrary, made: Mapping[Tag, bytes], nbytes: int
    ) -> None:
        self._ids, self._library, self._made, self._nbytes = ids, library, dict(made), nbytes
        self._uses = 0

    def skip(self) -> None:
        """Counts a use in which this rank takes no part, as its peers do."""
        self._uses += 1

    def share(self, tag: Tag, members: Sequence[int], rank: int, host: Backend) -> bytes:
        """Returns the id of a communicator of these members; each of them calls it.

        Raises:
            Exception: The first member could not make one, or it did not come.
        """
        self._uses += 1
        mine = self._make(tag) if rank == 0 else None
        first, use = members[0], f"{self._library.name}-{self._uses}-{members[0]}"
        unique = mine or b""
        if len(members) > 1:
            try:
                unique = self._ids.share(use, mine, self._nbytes, host)
            except ConnectionError as error:
                msg = f"the unique id of worker {first} did not come: {error}"
                raise ConnectionError(msg) from error
        if not unique:
            raise RuntimeError(f"worker {first} could not make a unique id")
        if len(unique) != self._nbytes:
            raise RuntimeError(
                f"expected a unique id of {self._nbytes} bytes from worker {first}, got"
                f" {len(unique)} bytes"
            )
        return unique

    def _make(self, tag: Tag) -> bytes:
        """Takes what was made before, or makes one; empty where that fails."""
        try:
            return self._made.pop(tag, b"") or self._library.make_id()
        except self._library.error:
            return b""


class _CommunicatorOpener:
    """Opens the communicators of one rank: of all workers, then of its group and teams."""

    def __init__(
        self,
        worker_id: int,
        library: NcclLibrary,
        arrays: GpuArrays,
        watch: NcclWatch,
        ids: _SharedIds,
    ) -> None:
        self._me, self._library, self._arrays = worker_id, library, arrays
        self._watch, self._ids = watch, ids
        self._world: Any = None

    def make_backend(self, tag: Tag, members: tuple[int, ...], host: Backend) -> NcclBackend:
        """Makes the backend of these members, of which this rank is one."""
        rank, size = members.index(self._me), len(members)
        try:
            if tag == Tag.GROUP and self._library.splits:
                made = self._world.commSplit(members[0], rank)
            else:
                unique = self._ids.share(tag, members, rank, host)
                made = self._library.binding.NcclCommunicator(size, unique, rank)
            if tag == Tag.WORLD:
                self._world = made
        except Exception as error:
            # Whatever it is: the peers are in the same call, or about to be.
            which = "the workers" if tag == Tag.WORLD else "the group"
            raise CommunicatorLost(
                f"worker {self._me}: {self._library.name} could not connect {which}:"
                f" {self._library.explain(error)}"
            ) from error
        return self._wrap(made, rank, size)

    def open_device(self, lines: Lines, place: int | None, backend: Backend) -> NcclBackend | None:
        """Makes the backend of a line of teams; see `teams.OpenDevice`.

        Raises:
            CommunicatorLost: It failed; peers may still be in it.
        """
        members = () if place is None else lines[place]
        rank, size = members.index(self._me) if members else 0, len(members)
        if self._library.splits:
            # With operations under way on the communicator a split may never end.
            self._watch.wait("make_teams")
        # A split is a call on the communicator of all workers, which the watch guards.
        with self._watch.launching("make_teams"):
            if self._library.splits:
                made = self._world.commSplit(_NO_COLOR if place is None else place, rank)
            elif members:
                unique = self._ids.share(Tag.TEAM, members, rank, backend)
                made = self._library.binding.NcclCommunicator(size, unique, rank)
            else:
                made = None
                self._ids.skip()
        return self._wrap(made, rank, size) if members else None

    def _wrap(self, made: Any, rank: int, size: int) -> NcclBackend:
        self._watch.add(made)
        return NcclBackend(
            made, rank, size, library=self._library, arrays=self._arrays, watch=self._watch
        )
