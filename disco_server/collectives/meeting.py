"""Collectives whose ranks first compare what they bring, as `preflight` describes.

What is the same for every library that cannot refuse a wrong call by itself: checks,
meetings, errors, and small data that rides along with the meeting. A library adds
how rows travel (`RowExchange`) and how data moves (`DataMoves`).
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar, cast

import numpy as np

from disco_server.collectives import checks
from disco_server.collectives.base import (
    AbortedError,
    Array,
    Communicator,
    MismatchError,
    ReduceOp,
    name_workers,
)
from disco_server.collectives.checks import Offer, Op
from disco_server.collectives.numeric import combine
from disco_server.collectives.preflight import Lane, Preflight, VerdictKind
from disco_server.collectives.rows import NO_DATA, RowExchange
from disco_server.collectives.sides import DataMoves, Known, Side, Tag

__all__ = ["MeetingCommunicator"]

_Result = TypeVar("_Result")
_SPINS = 2000
_NAP_S = 50e-6
_MOST_KNOWN = 256


class MeetingCommunicator(Communicator):
    """A rank that meets its peers before anything moves; see `Communicator`."""

    def __init__(
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        make_rows: Callable[[Tag, tuple[int, ...]], RowExchange],
        make_moves: Callable[[Tag, tuple[int, ...]], DataMoves],
    ) -> None:
        """Takes a place.

        Args:
            worker_id: This rank.
            num_workers: The workers of the session.
            num_groups: Their groups.
            make_rows: Makes this rank's end of a lane of these members.
            make_moves: Makes what moves data among them; not asked for pairs, whose
                data moves as that of all workers does.
        """
        super().__init__(worker_id, num_workers, num_groups)
        self._closed = False
        self._preflight = Preflight(worker_id)
        self._exchanges: list[RowExchange] = []
        self._make_rows, self._make_moves = make_rows, make_moves
        self._world = self._make_side(Tag.WORLD, self.members(in_group=False))
        self._group = self._world
        if num_groups > 1:
            self._group = self._make_side(Tag.GROUP, self.members(in_group=True))
        self._pairs = {
            peer: self._add_lane(Tag.PAIR, tuple(sorted((peer, worker_id))))[0]
            for peer in self._world.members
            if peer != worker_id
        }

    def _make_side(self, tag: Tag, members: range) -> Side:
        moves = self._make_moves(tag, tuple(members))
        if len(members) == 1:
            return Side(members, moves, None, None)
        lane, rows = self._add_lane(tag, tuple(members))
        return Side(members, moves, lane, rows)

    def _add_lane(self, tag: Tag, members: tuple[int, ...]) -> tuple[Lane, RowExchange]:
        rows = self._make_rows(tag, members)
        self._exchanges.append(rows)
        return self._preflight.add_lane(members, rows), rows

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
        known = Known(offer, side.find_places(src, offer.family))
        self._allreduce(side, known, source, target, op)
        _unstage(target, dst)
        if len(side.known[op]) >= _MOST_KNOWN:
            side.known[op].clear()
        side.known[op][src.dtype, src.size] = known

    def allgather(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.allgather`."""
        side = self._group if in_group else self._world
        offer = checks.check_parts(Op.ALLGATHER, src, dst, side.size, root=True)
        place = None if offer.problem or not offer.elements else side.find_place(src)
        rider = side.put(place, src)
        self._meet(side, offer, src, dst, rider)
        if place is not None:
            side.take_all(place, dst)
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
        self._release()

    @abstractmethod
    def _release(self) -> None:
        """Gives back what the library holds; every rank has taken its leave."""

    def _is_root(self, side: Side) -> bool:
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

    def _allreduce(self, side: Side, known: Known, src: Array, dst: Array, op: ReduceOp) -> None:
        """Reduces contiguous arrays that were checked."""
        offer, places = known
        lane, rows = side.lane, side.rows
        if not places or lane is None or rows is None:
            self._meet(side, offer, src, dst)
            side.moves.allreduce(src, dst, op, offer.family)
            return
        source, target = src.reshape(-1), dst.reshape(-1)
        if len(places) > 1 and src is not dst and np.may_share_memory(src, dst):
            source = source.copy()  # an early piece of one is a late piece of the other
        for piece, place in places:
            rows.put(place, source[piece])
            self._agree(lane, offer, src, dst, 0, place.rider)
            combine(rows.parts(place), target[piece], op, offer.family)

    def _meet(
        self, side: Side, offer: Offer, src: object, dst: object, rider: bytes = NO_DATA
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
        for worker, text in zip(peers, cast("RowExchange", lane.exchange).tell(mine), strict=True):
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
