"""Collectives between the threads of one process, on numpy arrays."""

from __future__ import annotations

import threading

from disco_server.collectives.local_moves import LocalTable
from disco_server.collectives.local_parts import LocalPartMoves
from disco_server.collectives.local_rows import LocalLane, LocalRows
from disco_server.collectives.meeting import MeetingCommunicator
from disco_server.collectives.part_checks import Lines
from disco_server.collectives.sides import Tag
from disco_server.collectives.teams import LineParts

__all__ = ["LocalCommunicator", "LocalWorld"]

_Lane = tuple[Tag, tuple[int, ...]]


class LocalWorld:
    """What the workers of a session share when they are threads.

    Args:
        num_workers: The workers of the session.
        num_groups: Their groups.
    """

    def __init__(self, num_workers: int, num_groups: int = 1) -> None:
        self.num_workers = num_workers
        self.num_groups = num_groups
        self._lanes: dict[_Lane, LocalLane] = {}
        self._tables: dict[_Lane, LocalTable] = {}
        self._lock = threading.Lock()
        self._closed = False

    def lane(self, tag: Tag, members: tuple[int, ...]) -> LocalLane:
        """Where the rows of these ranks meet; made by who comes first."""
        with self._lock:
            found = self._lanes.get((tag, members))
            if found is None:
                found = self._lanes[tag, members] = LocalLane(len(members))
                if self._closed:
                    found.close()
        return found

    def table(self, tag: Tag, members: tuple[int, ...]) -> LocalTable:
        """Where their data meets; made by who comes first."""
        with self._lock:
            found = self._tables.get((tag, members))
            if found is None:
                found = self._tables[tag, members] = LocalTable(len(members))
                if self._closed:
                    found.close()
        return found

    def close(self) -> None:
        """Ends every wait of every rank with `UnavailableError`; idempotent."""
        with self._lock:
            self._closed = True
            for shared in (*self._lanes.values(), *self._tables.values()):
                shared.close()


class LocalCommunicator(MeetingCommunicator):
    """A rank that is a thread; see `Communicator`.

    Args:
        worker_id: This rank.
        world: Shared by the ranks.
    """

    ccl = "local"

    def __init__(self, worker_id: int, world: LocalWorld) -> None:
        self._shared = world
        super().__init__(
            worker_id, world.num_workers, world.num_groups, self._open_rows, self._open_moves
        )

    def _open_rows(self, tag: Tag, members: tuple[int, ...]) -> LocalRows:
        return LocalRows(self._shared.lane(tag, members), members.index(self._worker_id))

    def _open_moves(self, tag: Tag, members: tuple[int, ...]) -> LocalPartMoves:
        table = self._shared.table(tag, members)
        return LocalPartMoves(table, members.index(self._worker_id), self._open_pair)

    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        if place is None:
            return None
        members = lines[place]
        return LineParts(self._open_rows(Tag.TEAM, members), self._open_moves(Tag.TEAM, members))

    def _open_pair(self, peer: int) -> tuple[LocalTable, int]:
        pair = (min(peer, self._worker_id), max(peer, self._worker_id))
        return self._shared.table(Tag.PAIR, pair), pair.index(self._worker_id)

    def _release(self) -> None:
        """The world is its owner's."""
