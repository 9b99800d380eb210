"""The collectives of one circle of ranks: of all workers, of a group or of a team.

Each is checked, agreed on and then moved, in this order; what can fail on one rank
alone comes before the agreement. Small data rides along with the agreement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from disco_server.collectives import checks, part_checks
from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Offer, Op
from disco_server.collectives.numeric import combine
from disco_server.collectives.part_checks import Parts
from disco_server.collectives.preflight import Lane
from disco_server.collectives.rows import Place, RowExchange
from disco_server.collectives.sides import DataMoves, Known, Side

__all__ = ["Circle"]

_MOST_KNOWN = 256
_HOST = np.ndarray
_BARRIER = Offer(int(Op.BARRIER), 0, 0)


class Circle(Side):
    """A circle of ranks, as one of them sees it; see `Communicator` and `Team`.

    Where `counts` or a table is None all parts are as long as one another, and a
    `root` of None is the first rank.

    Args:
        members: The worker ids, in the order of their ranks here.
        worker_id: This rank's.
        agreement: How it agrees with others.
        moves: How data moves on the host.
        lane: Where the members meet; None if this rank is alone.
        rows: What carries the rows of that lane.

    Attributes:
        rank: This rank's place in the circle.
    """

    def __init__(
        self,
        members: Sequence[int],
        worker_id: int,
        agreement: Agreement,
        moves: DataMoves,
        lane: Lane | None = None,
        rows: RowExchange | None = None,
    ) -> None:
        super().__init__(members, moves, lane, rows)
        self.rank = list(members).index(worker_id)
        self._agreement = agreement
        self._agree = agreement.agree
        self._notes = agreement.notes

    def allreduce(self, src: Array, dst: Array, op: ReduceOp) -> None:
        """Combines equally long sources everywhere."""
        if type(src) is _HOST is type(dst):
            known = self.known[op].get((src.dtype, src.size))
            if known is not None and dst.dtype is src.dtype and dst.size == src.size:
                flags = dst.flags
                if flags.c_contiguous and flags.writeable and src.flags.c_contiguous:
                    self._allreduce(known, src, dst, op)
                    return
        agreement = self._agreement
        offer = agreement.admit(checks.check_equal(Op.ALLREDUCE, src, dst, op))
        if offer.problem or not offer.elements:
            agreement.meet(self.lane, offer, src, dst)
            self._notes.leave()
            return
        source, target = agreement.stage(offer, src, dst)
        if offer.on_device:
            self._allreduce(Known(offer, ()), source, target, op)
            unstage(target, dst)
            return
        known = Known(offer, self.find_places(src, offer.family))
        self._allreduce(known, source, target, op)
        unstage(target, dst)
        if len(self.known[op]) >= _MOST_KNOWN:
            self.known[op].clear()
        self.known[op][src.dtype, src.size] = known

    def _allreduce(self, known: Known, src: Array, dst: Array, op: ReduceOp) -> None:
        """Reduces contiguous arrays that were checked."""
        offer, places = known
        lane, rows = self.lane, self.rows
        if not places or lane is None or rows is None:
            self._agreement.meet(lane, offer, src, dst)
            self.moves_of(src).allreduce(src, dst, op, offer.family)
            self._notes.leave()
            return
        source, target = src.reshape(-1), dst.reshape(-1)
        if len(places) > 1 and src is not dst and np.may_share_memory(src, dst):
            source = source.copy()  # an early piece of one is a late piece of the other
        agree, first = self._agree, True
        for piece, place in places:
            rows.put(place, source[piece])
            agree(lane, offer, src, dst, place.rider, first=first)
            combine(rows.parts(place), target[piece], op, offer.family)
            first = False
        self._notes.leave()

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """Brings every source to every rank."""
        agreement, parts = self._agreement, None
        place, rounds = None, ()
        # As in allreduce, what is small should cost little besides the meeting.
        if counts is None:
            offer = checks.check_parts(Op.ALLGATHER, src, dst, self.size, root=True)
        else:
            offer, parts = part_checks.check_counts(
                Op.ALLGATHER, src, dst, counts, self.size, self.rank
            )
        if offer.problem or not offer.elements or offer.on_device:
            offer = agreement.admit(offer)
        else:
            place = self.find_place(src, src.size if parts is None else parts.widest)
            if place is None and parts is None:
                rounds = self.find_rounds(src)
        if place is not None:
            agreement.meet(self.lane, offer, src, dst, self.put(place, src))
            self.take_all(place, dst, None if parts is None else parts.counts)
        else:
            source, target = agreement.stage(offer, src, dst)
            if rounds:
                self._allgather(offer, rounds, source, target)
            else:
                agreement.meet(self.lane, offer, src, dst)
                self._allgather_whole(offer, source, target, parts)
            unstage(target, dst)
        self._notes.leave()

    def _allgather(
        self, offer: Offer, rounds: Sequence[tuple[slice, Place]], src: Array, dst: Array
    ) -> None:
        """Gathers contiguous arrays whose parts ride in several rounds."""
        lane, rows = cast("Lane", self.lane), cast("RowExchange", self.rows)
        parts = dst.reshape(self.size, -1)
        in_place = src.ctypes.data == parts[self.rank].ctypes.data
        if not in_place and np.may_share_memory(src, dst):
            src = src.copy()  # an early piece of one part is a late piece of the source
        source = src.reshape(-1)
        for number, (piece, place) in enumerate(rounds):
            rows.put(place, source[piece])
            self._agree(lane, offer, src, dst, place.rider, first=number == 0)
            for part, came in zip(parts, rows.parts(place), strict=True):
                part[piece] = came

    def _allgather_whole(self, offer: Offer, src: Array, dst: Array, parts: Parts | None) -> None:
        """Lets a library gather contiguous arrays, whose ranks have met."""
        if not offer.elements:
            return
        if parts is None:
            self.moves_of(src).allgather(src, dst)
        else:
            self.moves_of(src).allgather_parts(src, dst, parts.counts)

    def broadcast(self, src: Array | None, dst: Array, root: int | None = None) -> None:
        """Copies the root's source to every rank."""
        agreement = self._agreement
        at = root or 0
        source = src if self.rank == at else dst
        offer = checks.check_equal(Op.BROADCAST, source, dst)
        if root is not None:
            offer = part_checks.add_root(offer, root, self.size)
        offer = agreement.admit(offer)
        staged, target = agreement.stage(offer, cast("Array", source), dst)
        agreement.meet(self.lane, offer, source, dst)
        if offer.elements:
            moves = self.moves_of(staged)
            if at == 0:
                moves.broadcast(staged, target)
            else:
                moves.broadcast_from(staged, target, at)
            unstage(target, dst)
        self._notes.leave()

    def scatter(
        self,
        src: Array | None,
        dst: Array,
        counts: Sequence[int] | None = None,
        root: int | None = None,
    ) -> None:
        """Gives each rank its part of the root's source."""
        agreement = self._agreement
        at = root or 0
        has_all = self.rank == at
        offer, parts = self._check(Op.SCATTER, src, dst, counts, root=at)
        whole = cast("Array", src) if has_all else dst
        source, target = agreement.stage(offer, whole, dst)
        agreement.meet(self.lane, offer, src if has_all else None, dst)
        if offer.elements:
            moves = self.moves_of(target)
            if parts is None:
                moves.scatter(source, target)
            else:
                moves.scatter_parts(source, target, parts.counts, at)
            unstage(target, dst)
        self._notes.leave()

    def gather(
        self,
        src: Array,
        dst: Array | None,
        counts: Sequence[int] | None = None,
        root: int | None = None,
    ) -> None:
        """Collects every rank's source at the root."""
        agreement = self._agreement
        at = root or 0
        has_all = self.rank == at
        offer, parts = self._check(Op.GATHER, src, dst, counts, root=at)
        whole = cast("Array", dst) if has_all else src
        source, target = agreement.stage(offer, src, whole)
        agreement.meet(self.lane, offer, src, dst if has_all else None)
        if offer.elements:
            moves = self.moves_of(source)
            if parts is None:
                moves.gather(source, target)
            else:
                moves.gather_parts(source, target, parts.counts, at)
            if has_all:
                unstage(target, whole)
        self._notes.leave()

    def reduce_scatter(
        self, src: Array, dst: Array, op: ReduceOp, counts: Sequence[int] | None = None
    ) -> None:
        """Combines sources and leaves each rank its part."""
        agreement = self._agreement
        offer, parts = self._check(Op.REDUCE_SCATTER, src, dst, counts, op)
        source, target = agreement.stage(offer, src, dst)
        agreement.meet(self.lane, offer, src, dst)
        if offer.elements:
            moves = self.moves_of(source)
            if parts is None:
                moves.reduce_scatter(source, target, op, offer.family)
            else:
                moves.reduce_scatter_parts(source, target, op, offer.family, parts.counts)
            unstage(target, dst)
        self._notes.leave()

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """Sends part j of every rank i to part i of rank j."""
        agreement = self._agreement
        parts = None
        if table is None:
            offer = checks.check_equal(Op.ALL_TO_ALL, src, dst, parts=self.size)
        else:
            offer, parts = part_checks.check_table(src, dst, table, self.size, self.rank)
        offer = agreement.admit(offer)
        source, target = agreement.stage(offer, src, dst)
        agreement.meet(self.lane, offer, src, dst)
        if offer.elements:
            moves = self.moves_of(source)
            if parts is None:
                moves.all_to_all(source, target)
            else:
                moves.all_to_all_parts(source, target, parts)
            unstage(target, dst)
        self._notes.leave()

    def barrier(self) -> None:
        """Waits until every rank is here; the meeting itself is the barrier."""
        self._agreement.meet(self.lane, _BARRIER, None, None)
        self._notes.leave()

    def _check(
        self,
        op: Op,
        src: object,
        dst: object,
        counts: Sequence[int] | None,
        reduce: ReduceOp | None = None,
        *,
        root: int | None = None,
    ) -> tuple[Offer, Parts | None]:
        """Checks a collective of one array of all parts and one array a part.

        Returns:
            What this rank brings, and how long the parts are if that matters.
        """
        if counts is None:
            whole = root is None or self.rank == root
            offer = checks.check_parts(op, src, dst, self.size, reduce, root=whole)
            return self._agreement.admit(offer), None
        offer, parts = part_checks.check_counts(
            op, src, dst, counts, self.size, self.rank, reduce, root=root
        )
        return self._agreement.admit(offer), parts
