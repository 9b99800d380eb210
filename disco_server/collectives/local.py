"""Collectives between the threads of one process, on numpy arrays."""

from __future__ import annotations

from itertools import combinations

from disco_server.collectives.local_moves import LocalMoves, LocalTable
from disco_server.collectives.local_rows import LocalLane, LocalRows
from disco_server.collectives.meeting import MeetingCommunicator
from disco_server.collectives.sides import Tag, wide_lanes

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
        pairs = [(Tag.PAIR, pair) for pair in combinations(range(num_workers), 2)]
        every: list[_Lane] = [*wide_lanes(num_workers, num_groups), *pairs]
        self._lanes = {key: LocalLane(len(key[1])) for key in every}
        self._tables = {key: LocalTable(len(key[1])) for key in every}

    def lane(self, tag: Tag, members: tuple[int, ...]) -> LocalLane:
        """Where the rows of these ranks meet."""
        return self._lanes[tag, members]

    def table(self, tag: Tag, members: tuple[int, ...]) -> LocalTable:
        """Where their data meets."""
        # A rank that is alone has no lane, and needs nobody's table.
        return self._tables.get((tag, members)) or LocalTable(1)

    def close(self) -> None:
        """Ends every wait of every rank with `UnavailableError`; idempotent."""
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

    def _open_moves(self, tag: Tag, members: tuple[int, ...]) -> LocalMoves:
        table = self._shared.table(tag, members)
        return LocalMoves(table, members.index(self._worker_id), self._open_pair)

    def _open_pair(self, peer: int) -> tuple[LocalTable, int]:
        pair = (min(peer, self._worker_id), max(peer, self._worker_id))
        return self._shared.table(Tag.PAIR, pair), pair.index(self._worker_id)

    def _release(self) -> None:
        """The world is its owner's."""
