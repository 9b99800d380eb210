"""Collectives through MPI, by mpi4py.

The world is the one the process was started in: that of the worker daemon, which
answers MPI's start-up protocol (`PMI_FD`), or of mpiexec, srun or an operator.
Its ranks must be the session's workers. Before each operation the ranks compare
what they brought, as `preflight` describes.
"""

from __future__ import annotations

import os
from typing import Any

from disco_server.collectives.base import UnavailableError
from disco_server.collectives.meeting import MeetingCommunicator
from disco_server.collectives.mpi_library import MpiLibrary, load_mpi
from disco_server.collectives.mpi_parts import PartMoves
from disco_server.collectives.mpi_rows import MpiRows
from disco_server.collectives.node_memory import NodeMemory
from disco_server.collectives.part_checks import Lines
from disco_server.collectives.rows import RowExchange
from disco_server.collectives.sides import Tag
from disco_server.collectives.teams import LineParts

__all__ = ["MpiCommunicator"]

# The tags of messages that carry rows: below are those of the lanes that there are from
# the beginning; each line of teams has its own, with room for the tag of its texts.
_FIRST_TEAM_TAG, _TAGS_A_TEAM = 32, 32


class MpiCommunicator(MeetingCommunicator):
    """A rank of an MPI world; see `Communicator`."""

    ccl = "mpi"

    def __init__(
        self, worker_id: int, num_workers: int, num_groups: int, mpi: Any, library: MpiLibrary
    ) -> None:
        """Splits the world; `create` is the way to call it."""
        self._mpi = mpi
        self._library = library
        self._owns_mpi = False
        # Three communicators keep rows, data and another owner's messages apart.
        self._rows_comm = mpi.COMM_WORLD.Dup()
        self._data_comms = [mpi.COMM_WORLD.Dup()]
        self._lines_opened = 0
        self._memory = NodeMemory(mpi, self._rows_comm, num_workers, num_groups)
        super().__init__(worker_id, num_workers, num_groups, self._open_rows, self._open_moves)

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
        mpi, known, started = load_mpi(
            library,
            oversubscribed=local > len(os.sched_getaffinity(0)),
            one_machine=local_workers == num_workers,
        )
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

    def _open_rows(self, tag: Tag, members: tuple[int, ...]) -> RowExchange:
        return self._memory.make_rows(tag, members) or MpiRows(
            self._mpi, self._rows_comm, self._worker_id, members, tag, with_data=tag != Tag.PAIR
        )

    def _open_moves(self, tag: Tag, members: tuple[int, ...]) -> PartMoves:
        if tag == Tag.GROUP:
            world = self._data_comms[0]
            self._data_comms.append(world.Split(members[0], self._worker_id))
        return PartMoves(self._mpi, self._data_comms[-1], self._library.cut(len(members)))

    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
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
        rows = self._memory.make_team_rows(comm, members) or MpiRows(
            self._mpi, self._rows_comm, me, members, tag, with_data=True
        )
        return LineParts(rows, PartMoves(self._mpi, comm, self._library.cut(len(members))))

    def _release(self) -> None:
        for comm in (*self._data_comms, self._rows_comm):
            comm.Free()
        if self._owns_mpi:
            self._mpi.Finalize()
