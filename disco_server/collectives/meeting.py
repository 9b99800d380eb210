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
from typing import Any, TypeVar, cast

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
from disco_server.collectives.meeting_watch import MeetingWatch, Waiting, slow_seconds
from disco_server.collectives.numeric import combine
from disco_server.collectives.preflight import Lane, Preflight, VerdictKind
from disco_server.collectives.rows import NO_DATA, RowExchange
from disco_server.collectives.sides import DataMoves, Known, Side, Tag
from disco_server.devices.base import on_device

__all__ = ["MeetingCommunicator"]

_Result = TypeVar("_Result")
_SPINS = 2000
_NAP_S = 50e-6
_MOST_KNOWN = 256
_NO_DEVICE = "no library for arrays on GPUs was started; session.init_ccl('nccl') does"


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
        self._xp: Any = np
        self._no_device = _NO_DEVICE
        self._preflight = Preflight(worker_id)
        self._exchanges: list[RowExchange] = []
        self._make_rows, self._make_moves = make_rows, make_moves
        self._world = self._make_side(Tag.WORLD, self.members(in_group=False))
        self._group = self._world
        if num_groups > 1:
            self._group = self._make_side(Tag.GROUP, self.members(in_group=True))
        self._waiting: Waiting | None = None
        self._watch = MeetingWatch(worker_id, lambda: self._waiting, slow_seconds())
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

    def add_device(
        self, ccl: str, xp: Any, make_moves: Callable[[Tag, tuple[int, ...]], DataMoves]
    ) -> None:
        """Lets arrays of GPUs take part from now on; to be called on every rank.

        Args:
            ccl: The name of the library that moves them.
            xp: The module of such arrays.
            make_moves: Makes what moves them among these members.
        """
        self.ccl, self._xp, self._no_device = ccl, xp, ""
        self._world.device_moves = make_moves(Tag.WORLD, tuple(self._world.members))
        if self._group is not self._world:
            self._group.device_moves = make_moves(Tag.GROUP, tuple(self._group.members))

    def refuse_device(self, why: str) -> None:
        """Says why arrays of GPUs cannot take part; the same on every rank."""
        self._no_device = why

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
        source, target = self._stage(offer, src, dst)
        if offer.on_device:
            self._allreduce(side, Known(offer, ()), source, target, op)
            _unstage(target, dst)
            return
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
        rides = offer.elements and not (offer.problem or offer.on_device)
        place = side.find_place(src) if rides else None
        rider = side.put(place, src)
        source, target = (src, dst) if place is not None else self._stage(offer, src, dst)
        self._meet(side, offer, src, dst, rider)
        if place is not None:
            side.take_all(place, dst)
        elif offer.elements:
            side.moves_of(source).allgather(source, target)
            _unstage(target, dst)

    def broadcast(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.broadcast`."""
        side = self._group if in_group else self._world
        source = src if self._is_root(side) else dst
        offer = checks.check_equal(Op.BROADCAST, source, dst)
        staged, target = self._stage(offer, cast("Array", source), dst)
        self._meet(side, offer, source, dst)
        if offer.elements:
            side.moves_of(staged).broadcast(staged, target)
            _unstage(target, dst)

    def scatter(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.scatter`."""
        side = self._group if in_group else self._world
        root = self._is_root(side)
        offer = checks.check_parts(Op.SCATTER, src, dst, side.size, root=root)
        source, target = self._stage(offer, cast("Array", src) if root else dst, dst)
        self._meet(side, offer, src if root else None, dst)
        if offer.elements:
            side.moves_of(source).scatter(source, target)
            _unstage(target, dst)

    def gather(self, src: Array, dst: Array | None, *, in_group: bool = True) -> None:
        """See `Communicator.gather`."""
        side = self._group if in_group else self._world
        root = self._is_root(side)
        offer = checks.check_parts(Op.GATHER, src, dst, side.size, root=root)
        whole = cast("Array", dst) if root else src
        source, target = self._stage(offer, src, whole)
        self._meet(side, offer, src, dst if root else None)
        if offer.elements:
            side.moves_of(source).gather(source, target)
            if root:
                _unstage(target, whole)

    def reduce_scatter(
        self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True
    ) -> None:
        """See `Communicator.reduce_scatter`."""
        side = self._group if in_group else self._world
        offer = checks.check_parts(Op.REDUCE_SCATTER, src, dst, side.size, op, root=True)
        source, target = self._stage(offer, src, dst)
        self._meet(side, offer, src, dst)
        if offer.elements:
            side.moves_of(source).reduce_scatter(source, target, op, offer.family)
            _unstage(target, dst)

    def all_to_all(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.all_to_all`."""
        side = self._group if in_group else self._world
        offer = checks.check_equal(Op.ALL_TO_ALL, src, dst, parts=side.size)
        source, target = self._stage(offer, src, dst)
        self._meet(side, offer, src, dst)
        if offer.elements:
            side.moves_of(source).all_to_all(source, target)
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
        self._watch.close()
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
        offer = self._admit(
            checks.check_point(buf, worker, self._worker_id, self._num_workers, receives=receives)
        )
        lane = self._pairs.get(worker)
        arrays = (None, buf) if receives else (buf, None)
        if lane is None:
            raise MismatchError((self._worker_id,), self._tell(offer, *arrays, 0))
        source, target = self._stage(offer, buf, buf)
        self._agree(lane, offer, *arrays, worker if receives else self._worker_id)
        if not offer.elements:
            return
        moves = self._world.moves_of(buf)
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
            side.moves_of(src).allreduce(src, dst, op, offer.family)
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
        offer = self._admit(offer)
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
        exchange = cast("RowExchange", lane.exchange)
        self._waiting = Waiting(offer.op, lane.seq, lane.members, exchange)
        try:
            if short and preflight.enter_now(lane, row, rider):
                return
            verdict = _drive(preflight.negotiate(lane, row + rider, posted=short))
        finally:
            self._waiting = None
        if verdict.kind is VerdictKind.RUN:
            return
        mine = self._tell(offer, src, dst, lane.nth - 1)
        if verdict.kind is VerdictKind.ABORTED:
            if offer.problem:
                raise MismatchError((self._worker_id,), mine)
            raise AbortedError(verdict.workers, self.position, checks.op_name(offer.op))
        peers = [member for member in lane.members if member != self._worker_id]
        brought: dict[str, list[int]] = {mine: [self._worker_id]}
        for worker, text in zip(peers, exchange.tell(mine), strict=True):
            brought.setdefault(text, []).append(worker)
        raise MismatchError(verdict.workers, _compare(brought, verdict.workers))

    def _admit(self, offer: Offer) -> Offer:
        """Refuses arrays of GPUs where nothing moves them."""
        if self._no_device and offer.on_device and not offer.problem:
            return offer._replace(problem=self._no_device)
        return offer

    def _stage(self, offer: Offer, src: Array, dst: Array) -> tuple[Array, Array]:
        """Stands in contiguous arrays for those that are not.

        It may fail for want of memory, so it comes before the meeting, after which a
        rank must not fail any more.
        """
        offer = self._admit(offer)
        if offer.problem or not offer.elements:
            return src, dst
        if src.flags.c_contiguous and dst.flags.c_contiguous:
            return src, dst
        xp = self._xp if on_device(src) else np
        source = xp.ascontiguousarray(src).reshape(src.shape)
        return source, (dst if dst.flags.c_contiguous else xp.empty(dst.shape, dst.dtype))

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


def _unstage(target: Array, dst: Array) -> None:
    if target is not dst:
        dst[...] = target
