"""The circles in which a rank meets its peers: all workers, its group, its teams."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family, Offer
from disco_server.collectives.preflight import Lane
from disco_server.collectives.rows import NO_DATA, Place, RowExchange
from disco_server.devices.base import on_device

__all__ = ["DataMoves", "Known", "Side", "Tag", "Transfer", "wide_lanes"]


class Tag(IntEnum):
    """The kinds of lanes."""

    WORLD = 0
    GROUP = 1
    PAIR = 2
    TEAM = 3


def wide_lanes(num_workers: int, num_groups: int) -> list[tuple[Tag, tuple[int, ...]]]:
    """The lanes of all workers and of each group, where more than one rank is in them."""
    size = num_workers // num_groups
    found = [(Tag.WORLD, tuple(range(num_workers)))]
    if num_groups > 1:
        firsts = range(0, num_workers, size)
        found += [(Tag.GROUP, tuple(range(first, first + size))) for first in firsts]
    return [(tag, members) for tag, members in found if len(members) > 1]


class DataMoves(Protocol):
    """Moves and combines arrays among the ranks of one side, once they agreed to begin.

    Arrays are C-contiguous, have the right sizes and at least one element. Ranks are
    those of the side, from 0; see `Communicator` for what each operation does.
    """

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""

    def reduce_scatter(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines and leaves each rank its part."""

    def allgather(self, src: Array, dst: Array) -> None:
        """Brings every source to every rank."""

    def broadcast(self, src: Array, dst: Array) -> None:
        """Copies rank 0's source to all."""

    def scatter(self, src: Array | None, dst: Array) -> None:
        """Gives each rank its part of rank 0's source."""

    def gather(self, src: Array, dst: Array | None) -> None:
        """Collects every source at rank 0."""

    def all_to_all(self, src: Array, dst: Array) -> None:
        """Transposes the matrix of parts; source and destination may be one array."""

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""

    # Of uneven parts, which may be empty, and from or to any rank --------------------

    def allgather_parts(self, src: Array, dst: Array, counts: Sequence[int]) -> None:
        """Brings every source, of so many elements, to every rank."""

    def reduce_scatter_parts(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """Combines and leaves each rank its part, of so many elements."""

    def all_to_all_parts(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        """Sends `table[i][j]` elements from each rank i to each rank j."""

    def broadcast_from(self, src: Array, dst: Array, root: int) -> None:
        """Copies the root's source to all."""

    def scatter_parts(
        self, src: Array | None, dst: Array, counts: Sequence[int], root: int
    ) -> None:
        """Gives each rank its part of the root's source."""

    def gather_parts(self, src: Array, dst: Array | None, counts: Sequence[int], root: int) -> None:
        """Collects every source at the root."""


class Transfer(Protocol):
    """One end of a transfer between two workers of the session."""

    def __call__(self, buf: Array, worker: int, *, receives: bool) -> None:
        """Sends to a worker or receives from one."""


# Every rank widens the halves of all that ride, which numpy does slowly.
_MOST_HALF_BYTES = 16 << 10


class Known(NamedTuple):
    """A sound allreduce of one dtype, size and operation, seen before.

    Attributes:
        offer: What it brings.
        places: Where its data rides, piece by piece; none if it is too large.
    """

    offer: Offer
    places: tuple[tuple[slice, Place], ...]


class Side:
    """All workers, this rank's group or a team: how they meet and how their data moves.

    Attributes:
        members: The worker ids, in the order of their ranks here.
        device_moves: How data on GPUs moves, where a library for it was started.
        known: Allreduces seen before, by operation, then dtype and size. Finding
            one saves most checks, which matter where a call takes microseconds.
    """

    def __init__(
        self,
        members: Sequence[int],
        moves: DataMoves,
        lane: Lane | None,
        rows: RowExchange | None,
    ) -> None:
        self.members = members
        self.moves = moves
        self.device_moves: DataMoves | None = None
        self.lane = lane
        self.rows = rows
        self.size = len(members)
        self.known: list[dict[tuple[object, int], Known]] = [{} for _ in ReduceOp]

    def moves_of(self, array: Array) -> DataMoves:
        """How the data of such an array moves, once the ranks agreed to begin."""
        if self.device_moves is not None and on_device(array):
            return self.device_moves
        return self.moves

    def find_place(self, src: Array, widest: int) -> Place | None:
        """Where sources ride along with the rows; None if they are too large.

        Args:
            src: This rank's.
            widest: How many elements the longest one of all ranks has.
        """
        rows = self.rows
        if rows is None or src.dtype.itemsize * widest > rows.data_bytes:
            return None
        return rows.find_place(src.dtype, widest)

    def find_places(self, src: Array, family: Family) -> tuple[tuple[slice, Place], ...]:
        """Where what is to be reduced rides, in one round or in several.

        It depends on nothing but what rows compare, so all ranks find the same.
        """
        rows = self.rows
        if rows is None or src.nbytes > rows.most_bytes:
            return ()
        if family is Family.HALF and src.nbytes > _MOST_HALF_BYTES:
            return ()
        return self._cut(rows, src)

    def find_rounds(self, src: Array) -> tuple[tuple[slice, Place], ...]:
        """Where what is to be gathered rides, round by round; as `find_places`."""
        rows = self.rows
        if rows is None or src.nbytes > rows.most_gathered:
            return ()
        return self._cut(rows, src)

    @staticmethod
    def _cut(rows: RowExchange, src: Array) -> tuple[tuple[slice, Place], ...]:
        piece = rows.data_bytes // src.itemsize
        bounds = [*range(0, src.size, piece), src.size]
        return tuple(
            (slice(start, stop), rows.find_place(src.dtype, stop - start))
            for start, stop in pairwise(bounds)
        )

    def put(self, place: Place | None, src: Array) -> bytes:
        """Lays down data that rides along; returns what stands behind its row."""
        if place is None or self.rows is None:
            return NO_DATA
        if src.size != place.size:
            filled = np.zeros(place.size, src.dtype)
            filled[: src.size] = src.reshape(-1)
            src = filled
        self.rows.put(place, src)
        return place.rider

    def take_all(self, place: Place, dst: Array, counts: Sequence[int] | None) -> None:
        """After a round: copies the data of all ranks, one part after the other.

        Args:
            place: Where it rode.
            dst: Where it goes.
            counts: How many elements each rank brought, if not all as many.
        """
        rows = self.rows
        if rows is not None:
            parts = rows.parts(place)
            if counts is not None:
                parts = [part[:count] for part, count in zip(parts, counts, strict=True)]
            if dst.flags.c_contiguous:
                np.concatenate(parts, out=dst.reshape(-1))
            else:
                dst[...] = np.concatenate(parts).reshape(dst.shape)
