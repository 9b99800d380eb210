"""Collectives through MPI, by mpi4py.

The world is the one the process was started in: that of the worker daemon, which
answers MPI's start-up protocol (`PMI_FD`), or of mpiexec, srun or an operator.
Its ranks must be the session's workers. Before each operation the ranks compare
what they brought, as `preflight` describes. What MPI raises here loses the communicator.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NoReturn, cast

import numpy as np

from disco_server.collectives.collective_watch import say
from disco_server.collectives.group import Backend
from disco_server.collectives.loss import Guarded, Loss
from disco_server.collectives.mpi_exchange import MpiExchange
from disco_server.collectives.mpi_library import MpiLibrary, Pieces, load_mpi, version_text
from disco_server.collectives.node_memory import NodeMemory
from disco_server.collectives.numeric import narrow
from disco_server.collectives.process_groups import ProcessGroups
from disco_server.collectives.teams import LineParts
from disco_server.collectives.types import Array, ReduceOp, Tag, UnavailableError
from disco_server.collectives.validation import Family

if TYPE_CHECKING:
    from disco_server.collectives.header_exchange import HeaderExchange
    from disco_server.collectives.validation import Lines

__all__ = ["MpiBackend", "MpiGroups", "cut"]


# The data operations of one MPI communicator, once its ranks agreed to begin.
#
# Arrays here are C-contiguous, have the right sizes and at least one element. What
# mpi4py accepts as a buffer is wrapped in `[array, datatype]` pairs, without copies.


# float32 elements of the buffer through which halves are reduced: 1 MiB stays in a cache.
_HALF_PIECE = 1 << 18
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_BOOL, _HALF, _AVG = Family.BOOL, Family.HALF, ReduceOp.AVG
_DATATYPES = {
    "b1": "UINT8_T",
    "i1": "INT8_T",
    "i2": "INT16_T",
    "i4": "INT32_T",
    "i8": "INT64_T",
    "u1": "UINT8_T",
    "u2": "UINT16_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX",
}


# How many elements one call may have.
_MOST_AT_ONCE = 1 << 30
# Elements of the buffer through which reductions go in pieces: 1 MiB of float32.
_PIECE = 1 << 18


class MpiBackend:
    """Moves and combines arrays among the ranks of one MPI communicator.

    Uneven parts that are only moved go in messages from each rank to each: that is what
    MPI's own calls for them come down to, and measured beside them with 2 and 4 ranks it
    takes 0.75 to 1.1 of their time. Messages can be cut, so arrays may have more elements
    than the 32 bits in which MPI before version 4 counts and places parts.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: The communicator, used for nothing else.
        pieces: How large allreduces are cut.
        most: How many elements one call may have.
    """

    def __init__(self, mpi: Any, comm: Any, pieces: Pieces, most: int = _MOST_AT_ONCE) -> None:
        self._most = most
        self._mpi = mpi
        self._comm = comm
        self._rank = int(comm.Get_rank())
        self._size = int(comm.Get_size())
        self._whole, self._piece = pieces
        self._in_place = mpi.IN_PLACE
        self._types: dict[np.dtype[Any], Any] = {
            np.dtype(kind): getattr(mpi, name) for kind, name in _DATATYPES.items()
        }
        # Over bytes that are 0 or 1, "or" is the maximum and "and" the minimum.
        self._bool_ops = (mpi.MAX, mpi.MIN, mpi.MIN, mpi.MAX)
        self._ops = (mpi.SUM, mpi.PROD, mpi.MIN, mpi.MAX, mpi.SUM)
        self._scratch: Array | None = None

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""
        if family is _HALF:
            self._allreduce_half(src, dst, op)
            return
        # Arrays that own their memory share it with no other; asking numpy costs more.
        if src is not dst and not (src.flags.owndata and dst.flags.owndata):
            src = self._detach(src, dst)
        call = (self._bool_ops if family is _BOOL else self._ops)[op]
        if src.nbytes <= self._whole:
            kind = self._types[src.dtype]
            self._comm.Allreduce(self._in_place if src is dst else [src, kind], [dst, kind], call)
            if op is _AVG:
                dst /= self._size
            return
        for source, target in self._cut(src, dst):
            self._allreduce(source, target, call)
            if op is _AVG:
                np.divide(target, self._size, out=target)

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        family: Family,
        counts: Sequence[int] | None = None,
    ) -> None:
        """Combines and leaves each rank its part."""
        if counts is not None:
            self._reduce_scatter_parts(src, dst, op, family, counts)
            return
        if np.may_share_memory(src, dst):
            src = src.copy()
        if family is Family.HALF:
            self._reduce_scatter_half(src, dst, op)
            return
        ops = self._bool_ops if family is Family.BOOL else self._ops
        kind = self._types[src.dtype]
        self._comm.Reduce_scatter_block([src, kind], [dst, kind], ops[op])
        if op is ReduceOp.AVG:
            dst /= self._size

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """Brings every source to every rank."""
        if counts is not None:
            parts = _split(dst, counts)
            mine = _disjoint(src, dst, fits=_same(src, parts[self._rank]))
            self._exchange([mine] * self._size, parts)
            return
        mine = self._own_part(src, dst, self._rank)
        self._comm.Allgather(mine, self._buffer(dst))

    def broadcast(self, src: Array, dst: Array, root: int = 0) -> None:
        """Copies the root's source to all."""
        if self._rank == root and src is not dst:
            self._comm.Bcast(self._buffer(src), root)
            dst.reshape(-1)[:] = src.reshape(-1)
        else:
            self._comm.Bcast(self._buffer(dst), root)

    def scatter(
        self, src: Array | None, dst: Array, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Gives each rank its part of the root's source."""
        if counts is not None:
            self._scatter_parts(src, dst, counts, root)
        elif src is None or self._rank != root:
            self._comm.Scatter(None, self._buffer(dst), root)
        else:
            mine = self._own_part(dst, src, root)
            if isinstance(mine, list) and np.may_share_memory(src, dst):
                src = src.copy()
            self._comm.Scatter(self._buffer(src), mine, root)

    def gather(
        self, src: Array, dst: Array | None, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """Collects every source at the root."""
        if counts is not None:
            self._gather_parts(src, dst, counts, root)
        elif dst is None or self._rank != root:
            self._comm.Gather(self._buffer(src), None, root)
        else:
            self._comm.Gather(self._own_part(src, dst, root), self._buffer(dst), root)

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Sends a part of every rank's source to every rank."""
        if table is not None:
            self._all_to_all_parts(src, dst, table)
            return
        src = self._detach(src, dst)
        same = src.ctypes.data == dst.ctypes.data
        self._comm.Alltoall(self._in_place if same else self._buffer(src), self._buffer(dst))

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""
        self._comm.Send(self._buffer(buf), rank)

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""
        self._comm.Recv(self._buffer(buf), rank)

    def _cut(self, src: Array, dst: Array) -> Iterator[tuple[Array, Array]]:
        source, target = src.reshape(-1), dst.reshape(-1)
        for start, stop in cut(source.size, self._piece // source.itemsize):
            part = target[start:stop]
            yield (part if src is dst else source[start:stop]), part

    def _allreduce(self, src: Array, dst: Array, op: Any) -> None:
        kind = self._types[src.dtype]
        self._comm.Allreduce(self._in_place if src is dst else [src, kind], [dst, kind], op)

    def _allreduce_half(self, src: Array, dst: Array, op: ReduceOp) -> None:
        src = self._detach(src, dst).reshape(-1)
        dst = dst.reshape(-1)
        for start, stop in cut(src.size, _HALF_PIECE):
            wide = self._wide(stop - start)
            wide[:] = src[start:stop]
            self._allreduce(wide, wide, self._ops[op])
            narrow(wide, dst[start:stop], self._size if op is ReduceOp.AVG else 1)

    def _reduce_scatter_half(self, src: Array, dst: Array, op: ReduceOp) -> None:
        rows = src.reshape(self._size, -1)
        dst = dst.reshape(-1)
        kind = self._mpi.FLOAT
        for start, stop in cut(dst.size, max(1, _HALF_PIECE // self._size)):
            width = stop - start
            wide = self._wide(width * self._size)
            wide.reshape(self._size, width)[:] = rows[:, start:stop]
            # In place the result lies at the front of the buffer.
            self._comm.Reduce_scatter_block(self._in_place, [wide, kind], self._ops[op])
            divisor = self._size if op is ReduceOp.AVG else 1
            narrow(wide[:width], dst[start:stop], divisor)

    def _wide(self, count: int) -> Array:
        if self._scratch is None or self._scratch.size < count:
            self._scratch = np.empty(max(count, _HALF_PIECE), np.float32)
        return self._scratch[:count]

    def _buffer(self, array: Array) -> list[Any]:
        kind = self._types.get(array.dtype)
        if kind is None:
            return [array.reshape(-1).view(np.uint8), self._mpi.BYTE]
        return [array, kind]

    def _own_part(self, part: Array, whole: Array, rank: int) -> Any:
        """What stands for this rank's part of an array of all parts in MPI's calls."""
        if not np.may_share_memory(part, whole):
            return self._buffer(part)
        if part.ctypes.data == whole.ctypes.data + rank * part.nbytes:
            return self._in_place
        return self._buffer(part.copy())

    def _detach(self, src: Array, dst: Array) -> Array:
        """Copies a source that overlaps its destination without being it."""
        if src is dst or not np.may_share_memory(src, dst):
            return src
        return dst if src.ctypes.data == dst.ctypes.data else src.copy()

    def _all_to_all_parts(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        if np.may_share_memory(src, dst):
            src = src.copy()
        received = [row[self._rank] for row in table]
        self._exchange(_split(src, table[self._rank]), _split(dst, received))

    def _scatter_parts(
        self, src: Array | None, dst: Array, counts: Sequence[int], root: int
    ) -> None:
        outgoing = self._nothing(dst)
        if src is not None and self._rank == root:
            own = _split(src, counts)[root]
            outgoing = _split(_disjoint(src, dst, fits=_same(own, dst)), counts)
        self._exchange(outgoing, self._only(dst, root))

    def _gather_parts(
        self, src: Array, dst: Array | None, counts: Sequence[int], root: int
    ) -> None:
        incoming = self._nothing(src)
        if dst is not None and self._rank == root:
            incoming = _split(dst, counts)
            src = _disjoint(src, dst, fits=_same(src, incoming[root]))
        self._exchange(self._only(src, root), incoming)

    def _reduce_scatter_parts(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        if np.may_share_memory(src, dst):
            src = src.copy()
        elif not dst.size:
            dst = np.empty(0, dst.dtype)  # MPICH refuses one that lies at the source's place
        if family is Family.HALF or src.size > self._most:
            self._reduce_scatter_pieces(src, dst, op, family, counts)
            return
        kind = self._types[src.dtype]
        call = self._call_of(op, family)
        self._comm.Reduce_scatter([src, kind], [dst, kind], list(counts), call)
        if op is ReduceOp.AVG:
            dst /= self._size

    def _reduce_scatter_pieces(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """Does it for some elements of each part after the others, halves in float32."""
        parts, target = _split(src, counts), dst.reshape(-1)
        half = family is Family.HALF
        dtype = np.dtype(np.float32) if half else src.dtype
        kind, call = self._types[dtype], self._call_of(op, family)
        divisor = self._size if op is ReduceOp.AVG else 1
        for start, stop in cut(max(counts), max(1, _PIECE // self._size)):
            pieces = [part[start:stop] for part in parts]
            sizes = [piece.size for piece in pieces]
            wide = np.concatenate(pieces, dtype=dtype)
            # In place the result lies at the front of the buffer.
            self._comm.Reduce_scatter(self._in_place, [wide, kind], sizes, call)
            mine, out = wide[: sizes[self._rank]], target[start:stop]
            if half:
                narrow(mine, out, divisor)
                continue
            if divisor > 1:
                mine /= divisor
            out[:] = mine

    def _call_of(self, op: ReduceOp, family: Family) -> Any:
        return (self._bool_ops if family is Family.BOOL else self._ops)[op]

    def _exchange(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """Sends a part to each rank and receives one from each; parts may be empty."""
        comm, me, requests = self._comm, self._rank, list[Any]()
        others = [rank for rank in range(self._size) if rank != me]
        for rank in others:
            for start, stop in cut(incoming[rank].size, self._most):
                requests.append(comm.Irecv(self._buffer(incoming[rank][start:stop]), rank))
        for rank in others:
            for start, stop in cut(outgoing[rank].size, self._most):
                requests.append(comm.Isend(self._buffer(outgoing[rank][start:stop]), rank))
        if not _same(incoming[me], outgoing[me]):
            incoming[me][:] = outgoing[me]
        self._mpi.Request.Waitall(requests)

    def _nothing(self, like: Array) -> list[Array]:
        return [like.reshape(-1)[:0]] * self._size

    def _only(self, array: Array, rank: int) -> list[Array]:
        """Parts that are empty but for the one of a rank."""
        parts = self._nothing(array)
        parts[rank] = array.reshape(-1)
        return parts


def cut(size: int, piece: int) -> Iterator[tuple[int, int]]:
    """The bounds of pieces of at most so many elements."""
    for start in range(0, size, piece):
        yield start, min(start + piece, size)


def _split(whole: Array, counts: Sequence[int]) -> list[Array]:
    """The parts of an array, flat."""
    flat = whole.reshape(-1)
    stops = accumulate(counts)
    return [flat[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]


def _disjoint(read: Array, written: Array, *, fits: bool) -> Array:
    """What can be read while something else is written; flat.

    Args:
        read: What is to be read.
        written: The other one.
        fits: What they share, if anything, is this rank's part of the longer one.
    """
    flat = read.reshape(-1)
    return flat if fits or not np.may_share_memory(read, written) else flat.copy()


def _same(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.nbytes == other.nbytes


# The tags of messages that carry headers: below are those of the channels that there are from
# the beginning; each line of teams has its own, with room for the tag of its texts.
_FIRST_TEAM_TAG, _TAGS_A_TEAM = 32, 32
# Among how many ranks of the world headers from one rank to another carry data too.
_MOST_PAIRED = 64


class MpiGroups(ProcessGroups):
    """The process groups of a rank of an MPI world."""

    ccl = "mpi"

    def __init__(
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        mpi: Any,
        library: MpiLibrary,
        loss: Loss | None = None,
    ) -> None:
        """Splits the world; `create` is the way to call it."""
        self._mpi = mpi
        self._library = library
        self._owns_mpi = False
        self._lines_opened = 0
        self.loss = loss or Loss(worker_id)
        with self._losing("start of mpi"):
            # Three communicators keep headers, data and another owner's messages apart.
            self._header_comm = mpi.COMM_WORLD.Dup()
            self._data_comms = [mpi.COMM_WORLD.Dup()]
            self._memory = NodeMemory(mpi, self._header_comm, num_workers, num_groups)
            super().__init__(
                worker_id,
                num_workers,
                num_groups,
                self._open_exchange,
                self._open_backend,
                self.loss,
            )
            self._compare_hashes()

    @classmethod
    def create(
        cls,
        worker_id: int,
        num_workers: int,
        num_groups: int = 1,
        *,
        library: str = "",
        local_workers: int = 0,
        loss: Loss | None = None,
    ) -> MpiGroups:
        """Starts MPI if necessary and joins as this rank; collective over all ranks.

        Args:
            worker_id: This rank.
            num_workers: The workers of the session.
            num_groups: Their groups.
            library: "mpich", "impi" or empty for DISCO_MPI, or else what is there.
            local_workers: How many of the ranks run on this machine; 0 for what
                the launcher says, or else all.
            loss: Is notified if MPI fails in use.

        Raises:
            ConfigError: The numbers do not fit one another.
            UnavailableError: MPI is missing, did not start, or its world is not the
                session's.
            CommunicatorLost: It failed once it had started.
        """
        local = local_workers or int(os.environ.get("MPI_LOCALNRANKS") or num_workers)
        mpi, known, started = load_mpi(
            library,
            oversubscribed=local > len(os.sched_getaffinity(0)),
            one_machine=local_workers == num_workers,
        )
        rank, size = int(mpi.COMM_WORLD.Get_rank()), int(mpi.COMM_WORLD.Get_size())
        if size != num_workers or rank != worker_id:
            if started and size == 1:
                # A lone rank can end at once, and removes its shared memory.
                mpi.Finalize()
            raise UnavailableError(
                f"this process is rank {rank} of {size} in the MPI world, but worker"
                f" {worker_id} of {num_workers} in the session; start one rank for each worker"
                " in the same order, for example by a worker daemon or mpiexec -n"
                f" {num_workers}"
            )
        created = cls(worker_id, num_workers, num_groups, mpi, known, loss)
        created._owns_mpi = True
        return created

    def _compare_hashes(self) -> None:
        """Says so where the ranks hash texts differently, which nothing can change any more.

        Ranks that a daemon or a session has started never do; a launcher may start others.
        """
        seen: list[int] = self._header_comm.allgather(hash("disco"))
        if len(set(seen)) > 1 and self._worker_id == 0:
            say(
                "the workers hash texts differently, so a set of them has another order on each,"
                " and collectives in the order of a set meet those of other names; start all of"
                " them with the same PYTHONHASHSEED, such as 0"
            )

    @property
    def library(self) -> str:
        """The MPI library in use: "mpich", "impi" or "other"."""
        return self._library.name

    def _open_exchange(self, tag: Tag, members: tuple[int, ...]) -> HeaderExchange:
        made = self._memory.make_exchange(tag, members)
        # A rank has a channel to each other rank; among many, buffers of each take much memory.
        few = tag != Tag.PAIR or int(self._header_comm.Get_size()) <= _MOST_PAIRED
        return made or self._mpi_exchange(members, tag, with_data=few)

    def _open_backend(self, tag: Tag, members: tuple[int, ...]) -> Backend:
        if tag == Tag.GROUP:
            world = self._data_comms[0]
            self._data_comms.append(world.Split(members[0], self._worker_id))
        return self._make_data(len(members))

    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        with self._losing(f"make_teams of command #{self.position}"):
            return self._split_line(lines, place)

    def _split_line(self, lines: Lines, place: int | None) -> LineParts | None:
        first = self._lines_opened
        self._lines_opened += len(lines)
        me, world = self._worker_id, self._data_comms[0]
        if place is None:
            world.Split(self._mpi.UNDEFINED, 0)
            return None
        members = lines[place]
        comm = world.Split(place, members.index(me))
        self._data_comms.append(comm)
        tag = _FIRST_TEAM_TAG + _TAGS_A_TEAM * (first + place)
        shared = self._memory.make_team_exchange(comm, members)
        exchange = shared or self._mpi_exchange(members, tag, with_data=True)
        return LineParts(exchange, self._make_data(len(members)))

    def _mpi_exchange(
        self, members: tuple[int, ...], tag: int, *, with_data: bool
    ) -> HeaderExchange:
        exchange = MpiExchange(
            self._mpi, self._header_comm, self._worker_id, members, tag, with_data=with_data
        )
        return cast("HeaderExchange", Guarded(exchange, self._mpi.Exception, self._lose_exchange))

    def _make_data(self, members: int) -> Backend:
        """The backend of the communicator that was made last."""
        backend = MpiBackend(self._mpi, self._data_comms[-1], self._library.cut(members))
        return cast("Backend", Guarded(backend, self._mpi.Exception, self._lose_data))

    @contextlib.contextmanager
    def _losing(self, operation: str) -> Generator[None]:
        """Turns what MPI raises into the loss of the communicator."""
        try:
            yield
        except self._mpi.Exception as error:
            self._lose(operation, error)

    def _lose_data(self, operation: str, error: Exception) -> NoReturn:
        self._lose(f"{operation} of command #{self.position}", error)

    def _lose_exchange(self, _call: str, error: Exception) -> NoReturn:
        self._lose_data("the meeting before a collective", error)

    def _lose(self, operation: str, error: Exception) -> NoReturn:
        self.loss.lose(operation, version_text(self._mpi), str(error))
        self.loss.check()
        raise error

    def _release(self) -> None:
        for comm in (*self._data_comms, self._header_comm):
            comm.Free()
        if self._owns_mpi:
            self._mpi.Finalize()
