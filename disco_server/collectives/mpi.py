"""Collectives through MPI, by mpi4py.

The world is the one the process was started in: that of the worker daemon, which
answers MPI's start-up protocol (`PMI_FD`), or of mpiexec, srun or an operator.
Its ranks must be the session's workers. Before each operation the ranks compare
what they brought, as `preflight` describes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from disco_server.collectives import checks
from disco_server.collectives.base import (
    AbortedError,
    Array,
    Communicator,
    MismatchError,
    ReduceOp,
    UnavailableError,
    name_workers,
)
from disco_server.collectives.checks import Offer, Op
from disco_server.collectives.mpi_library import MpiLibrary, load_mpi
from disco_server.collectives.mpi_moves import Moves
from disco_server.collectives.mpi_rows import NO_DATA, MpiRows, Staged
from disco_server.collectives.numeric import combine
from disco_server.collectives.preflight import Lane, Preflight, VerdictKind

__all__ = ["MpiCommunicator"]

_Result = TypeVar("_Result")
_SPINS = 2000
_NAP_S = 50e-6
_MOST_KNOWN = 256


class _Known(NamedTuple):
    """A sound allreduce of one dtype, size and operation, seen before.

    Attributes:
        offer: What it brings.
        staged: Where its data rides, if it is small enough.
    """

    offer: Offer
    staged: Staged | None


class _Side:
    """All workers, or this rank's group: an MPI communicator and its lane.

    Attributes:
        known: Allreduces seen before, by operation, then dtype and size. Finding
            one saves most checks, which matter where a call takes microseconds.
    """

    def __init__(
        self, comm: Any, members: range, moves: Moves, lane: Lane | None, rows: MpiRows | None
    ) -> None:
        self.comm = comm
        self.members = members
        self.moves = moves
        self.lane = lane
        self.rows = rows
        self.size = len(members)
        self.known: list[dict[tuple[Any, int], _Known]] = [{} for _ in ReduceOp]

    def find_place(self, src: Array) -> Staged | None:
        """Where this source rides along with the rows; None if it is too large."""
        rows = self.rows
        if rows is None or src.nbytes > rows.data_bytes:
            return None
        return rows.find_place(src.dtype, src.size)


class MpiCommunicator(Communicator):
    """A rank of an MPI world; see `Communicator`."""

    def __init__(
        self, worker_id: int, num_workers: int, num_groups: int, mpi: Any, library: MpiLibrary
    ) -> None:
        """Splits the world; `create` is the way to call it."""
        super().__init__(worker_id, num_workers, num_groups)
        self._mpi = mpi
        self._library = library
        self._closed = False
        self._owns_mpi = False
        # Three communicators keep rows, data and another owner's messages apart.
        self._rows_comm = mpi.COMM_WORLD.Dup()
        self._data_comm = mpi.COMM_WORLD.Dup()
        self._preflight = Preflight(worker_id)
        self._exchanges: list[MpiRows] = []
        world = self.members(in_group=False)
        self._world = self._make_side(self._data_comm, world, 0)
        self._group = self._world
        if num_groups > 1:
            comm = self._data_comm.Split(self.group_id, worker_id)
            self._group = self._make_side(comm, self.members(in_group=True), 1)
        self._pairs = {
            peer: self._add_lane(sorted((peer, worker_id)), 2, with_data=False)[0]
            for peer in world
            if peer != worker_id
        }

    @classmethod
    def create(
        cls,
        worker_id: int,
        num_workers: int,
        num_groups: int = 1,
        *,
        library: str = "",
        local_workers: int = 0,
    ) -> MpiCommunicator:
        """Starts MPI if need be and takes the rank's place; collective over all ranks.

        Args:
            worker_id: This rank.
            num_workers: The workers of the session.
            num_groups: Their groups.
            library: "mpich", "impi" or empty for DISCO_MPI, or else what is there.
            local_workers: How many of the ranks run on this machine; 0 for what
                the launcher says, or else all.

        Raises:
            ConfigError: The numbers do not fit one another.
            UnavailableError: MPI is missing, did not start, or its world is not the
                session's.
        """
        local = local_workers or int(os.environ.get("MPI_LOCALNRANKS") or num_workers)
        mpi, known, started = load_mpi(library, oversubscribed=local > len(os.sched_getaffinity(0)))
        rank, size = int(mpi.COMM_WORLD.Get_rank()), int(mpi.COMM_WORLD.Get_size())
        if size != num_workers or rank != worker_id:
            if started and size == 1:
                # Alone it can leave at once, and takes its shared memory along.
                mpi.Finalize()
            raise UnavailableError(
                f"this process is rank {rank} of {size} in the MPI world, but worker"
                f" {worker_id} of {num_workers} in the session; start one rank for each worker"
                " in the same order, for example by a worker daemon or mpiexec -n"
                f" {num_workers}"
            )
        created = cls(worker_id, num_workers, num_groups, mpi, known)
        created._owns_mpi = True
        return created

    @property
    def library(self) -> str:
        """The MPI library in use: "mpich", "impi" or "other"."""
        return self._library.name

    @property
    def position(self) -> int:
        """The seq of the command this rank executes."""
        return self._preflight.position

    @position.setter
    def position(self, seq: int) -> None:
        self._preflight.position = seq

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True) -> None:
        """See `Communicator.allreduce`."""
        side = self._group if in_group else self._world
        if isinstance(src, np.ndarray) and isinstance(dst, np.ndarray):
            known = side.known[op].get((src.dtype, src.size))
            if known is not None and dst.dtype is src.dtype and dst.size == src.size:
                flags = dst.flags
                if flags.c_contiguous and flags.writeable and src.flags.c_contiguous:
                    self._allreduce(side, known, src, dst, op)
                    return
        offer = checks.check_equal(Op.ALLREDUCE, src, dst, op)
        if offer.problem or not offer.elements:
            self._meet(side, offer, src, dst)
            return
        source, target = _stage(src, dst)
        known = _Known(offer, side.find_place(src))
        self._allreduce(side, known, source, target, op)
        _unstage(target, dst)
        if len(side.known[op]) >= _MOST_KNOWN:
            side.known[op].clear()
        side.known[op][src.dtype, src.size] = known

    def allgather(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.allgather`."""
        side = self._group if in_group else self._world
        offer = checks.check_parts(Op.ALLGATHER, src, dst, side.size, root=True)
        staged = None if offer.problem or not offer.elements else side.find_place(src)
        if staged is not None:
            staged.mine[:] = src.reshape(-1)
        self._meet(side, offer, src, dst, staged.rider if staged else NO_DATA)
        if staged is not None:
            dst[...] = np.concatenate(staged.parts).reshape(dst.shape)
        elif offer.elements:
            source, target = _stage(src, dst)
            side.moves.allgather(source, target)
            _unstage(target, dst)

    def broadcast(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.broadcast`."""
        side = self._group if in_group else self._world
        source = src if self._is_root(side) else dst
        offer = checks.check_equal(Op.BROADCAST, source, dst)
        self._meet(side, offer, source, dst)
        if offer.elements:
            source, target = _stage(cast("Array", source), dst)
            side.moves.broadcast(source, target)
            _unstage(target, dst)

    def scatter(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.scatter`."""
        side = self._group if in_group else self._world
        root = self._is_root(side)
        offer = checks.check_parts(Op.SCATTER, src, dst, side.size, root=root)
        self._meet(side, offer, src if root else None, dst)
        if offer.elements:
            source, target = _stage(cast("Array", src) if root else dst, dst)
            side.moves.scatter(source, target)
            _unstage(target, dst)

    def gather(self, src: Array, dst: Array | None, *, in_group: bool = True) -> None:
        """See `Communicator.gather`."""
        side = self._group if in_group else self._world
        root = self._is_root(side)
        offer = checks.check_parts(Op.GATHER, src, dst, side.size, root=root)
        self._meet(side, offer, src, dst if root else None)
        if offer.elements:
            whole = cast("Array", dst) if root else src
            source, target = _stage(src, whole)
            side.moves.gather(source, target)
            if root:
                _unstage(target, whole)

    def reduce_scatter(
        self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True
    ) -> None:
        """See `Communicator.reduce_scatter`."""
        side = self._group if in_group else self._world
        offer = checks.check_parts(Op.REDUCE_SCATTER, src, dst, side.size, op, root=True)
        self._meet(side, offer, src, dst)
        if offer.elements:
            source, target = _stage(src, dst)
            side.moves.reduce_scatter(source, target, op, offer.family)
            _unstage(target, dst)

    def all_to_all(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.all_to_all`."""
        side = self._group if in_group else self._world
        offer = checks.check_equal(Op.ALL_TO_ALL, src, dst, parts=side.size)
        self._meet(side, offer, src, dst)
        if offer.elements:
            source, target = _stage(src, dst)
            side.moves.all_to_all(source, target)
            _unstage(target, dst)

    def barrier(self, *, in_group: bool = False) -> None:
        """See `Communicator.barrier`; the meeting itself is the barrier."""
        side = self._group if in_group else self._world
        self._meet(side, Offer(int(Op.BARRIER), 0, 0), None, None)

    def send(self, buf: Array, worker: int) -> None:
        """See `Communicator.send`."""
        self._transfer(buf, worker, receives=False)

    def recv(self, buf: Array, worker: int) -> None:
        """See `Communicator.recv`."""
        self._transfer(buf, worker, receives=True)

    def cannot_enter(self, seq: int) -> None:
        """See `Communicator.cannot_enter`."""
        self._preflight.cannot_enter(seq)

    def poll(self) -> bool:
        """See `Communicator.poll`."""
        return self._preflight.poll()

    def close(self, *, orderly: bool = True) -> None:
        """See `Communicator.close`."""
        if self._closed:
            return
        self._closed = True
        if not orderly:
            return
        _drive(self._preflight.leave())
        for exchange in self._exchanges:
            exchange.free()
        if self._group is not self._world:
            self._group.comm.Free()
        self._data_comm.Free()
        self._rows_comm.Free()
        if self._owns_mpi:
            self._mpi.Finalize()

    def _make_side(self, comm: Any, members: range, tag: int) -> _Side:
        moves = Moves(self._mpi, comm, self._library.cut(len(members)))
        if len(members) == 1:
            return _Side(comm, members, moves, None, None)
        lane, rows = self._add_lane(members, tag, with_data=True)
        return _Side(comm, members, moves, lane, rows)

    def _add_lane(
        self, members: Sequence[int], tag: int, *, with_data: bool
    ) -> tuple[Lane, MpiRows]:
        rows = MpiRows(
            self._mpi, self._rows_comm, self._worker_id, members, tag, with_data=with_data
        )
        self._exchanges.append(rows)
        return self._preflight.add_lane(members, rows), rows

    def _is_root(self, side: _Side) -> bool:
        return side.members[0] == self._worker_id

    def _transfer(self, buf: Array, worker: int, *, receives: bool) -> None:
        offer = checks.check_point(
            buf, worker, self._worker_id, self._num_workers, receives=receives
        )
        lane = self._pairs.get(worker)
        arrays = (None, buf) if receives else (buf, None)
        if lane is None:
            raise MismatchError((self._worker_id,), self._tell(offer, *arrays, 0))
        self._agree(lane, offer, *arrays, worker if receives else self._worker_id)
        if not offer.elements:
            return
        moves = self._world.moves
        source, target = _stage(buf, buf)
        if receives:
            moves.recv(target, worker)
            _unstage(target, buf)
        else:
            moves.send(source, worker)

    def _allreduce(self, side: _Side, known: _Known, src: Array, dst: Array, op: ReduceOp) -> None:
        """Reduces contiguous arrays that were checked.

        Whether data rides along with the rows depends on nothing but what the rows
        compare, so all ranks that may begin agree on it.
        """
        offer, staged = known
        rider = NO_DATA
        if staged is not None:
            staged.mine[:] = src.reshape(-1)
            rider = staged.rider
        if side.lane is not None:
            self._agree(side.lane, offer, src, dst, 0, rider)
        if staged is None:
            side.moves.allreduce(src, dst, op, offer.family)
        else:
            combine(staged.parts, dst.reshape(-1), op, offer.family)

    def _meet(
        self, side: _Side, offer: Offer, src: object, dst: object, rider: bytes = NO_DATA
    ) -> None:
        """Meets the peers; returns if the operation may begin."""
        lane = side.lane
        if lane is not None:
            self._agree(lane, offer, src, dst, 0, rider)
        elif offer.problem:
            raise MismatchError((self._worker_id,), self._tell(offer, src, dst, 0))

    def _agree(
        self,
        lane: Lane,
        offer: Offer,
        src: object,
        dst: object,
        extra: int,
        rider: bytes = NO_DATA,
    ) -> None:
        """Meets the peers; returns if all may begin, raises the same on all otherwise."""
        preflight = self._preflight
        row = preflight.next_row(lane, offer, extra)
        short = not (preflight.busy or lane.pending or offer.problem)
        if short and preflight.enter_now(lane, row, rider):
            return
        verdict = _drive(preflight.negotiate(lane, row + rider, posted=short))
        if verdict.kind is VerdictKind.RUN:
            return
        mine = self._tell(offer, src, dst, lane.nth - 1)
        if verdict.kind is VerdictKind.ABORTED:
            if offer.problem:
                raise MismatchError((self._worker_id,), mine)
            raise AbortedError(verdict.workers, self.position, checks.op_name(offer.op))
        peers = [member for member in lane.members if member != self._worker_id]
        brought: dict[str, list[int]] = {mine: [self._worker_id]}
        for worker, text in zip(peers, cast("MpiRows", lane.exchange).tell(mine), strict=True):
            brought.setdefault(text, []).append(worker)
        raise MismatchError(verdict.workers, _compare(brought, verdict.workers))

    def _tell(self, offer: Offer, src: object, dst: object, nth: int) -> str:
        """Says what this rank brought, and what is wrong with it."""
        again = f", collective {nth + 1} of it" if nth else ""
        text = f"{checks.describe(offer, src, dst)} (command #{self.position}{again})"
        return f"{text}: {offer.problem}" if offer.problem else text


def _compare(brought: dict[str, list[int]], odd: Sequence[int]) -> str:
    """Lists what the ranks brought, the odd ones first; the same text on every rank."""
    parties = sorted(brought.items(), key=lambda each: (each[1][0] not in odd, min(each[1])))
    lines = [f"{name_workers(workers)} brought {text}" for text, workers in parties]
    return "the ranks do not fit one another, so none began: " + "; ".join(lines)


def _drive(steps: Generator[None, None, _Result]) -> _Result:
    """Runs a negotiation to its end, letting other processes run while it waits."""
    spins = 0
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return cast("_Result", stop.value)
        spins += 1
        if spins < _SPINS:
            os.sched_yield()
        else:
            time.sleep(_NAP_S)


def _stage(src: Array, dst: Array) -> tuple[Array, Array]:
    """Stands in contiguous arrays for those that are not."""
    if src.flags.c_contiguous and dst.flags.c_contiguous:
        return src, dst
    source = np.ascontiguousarray(src).reshape(src.shape)
    return source, (dst if dst.flags.c_contiguous else np.empty(dst.shape, dst.dtype))


def _unstage(target: Array, dst: Array) -> None:
    if target is not dst:
        dst[...] = target
