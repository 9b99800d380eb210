"""Finds the collective library of a session by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.types import UnavailableError

if TYPE_CHECKING:
    from disco_server.collectives.loss import Loss
    from disco_server.collectives.process_groups import ProcessGroups

__all__ = ["default_library", "open_groups"]


def default_library(world: LocalWorld | None) -> str:
    """The library of a session that names none: "local" between threads, else "mpi"."""
    return "mpi" if world is None else "local"


def open_groups(
    name: str,
    *,
    worker_id: int,
    num_workers: int,
    num_groups: int = 1,
    local_workers: int = 0,
    library: str = "",
    world: LocalWorld | None = None,
    loss: Loss | None = None,
) -> ProcessGroups:
    """Opens this rank's process groups; collective over the ranks of the session.

    Args:
        name: The collective library: "mpi", "local", or empty to choose.
        worker_id: This rank.
        num_workers: The workers of the session.
        num_groups: Their groups.
        local_workers: How many of them run on this machine; 0 if unknown.
        library: The MPI library: "mpich", "impi" or empty to choose.
        world: What the workers share if they are threads of this process.
        loss: Is notified if a library fails in use.

    Raises:
        ConfigError: The numbers do not fit one another, or there is no such MPI
            library.
        UnavailableError: There is no such collective library here.
    """
    works = default_library(world)
    wanted = name or works
    if wanted not in ("mpi", "local"):
        raise UnavailableError(
            f"no collective library is called {wanted!r}; here there is {works!r}"
        )
    if world is not None:
        # MPI would take the threads of a process for a single rank; their memory serves for it.
        return LocalGroups(worker_id, world, loss)
    if wanted == "local":
        raise UnavailableError(
            "'local' works between threads of one process, and the workers of this session are"
            " processes; use 'mpi', or a ThreadedSession"
        )
    # mpi4py costs a tenth of a second to import; a rank that does not use it pays nothing.
    from disco_server.collectives.mpi import MpiGroups

    return MpiGroups.create(
        worker_id,
        num_workers,
        num_groups,
        library=library,
        local_workers=local_workers,
        loss=loss,
    )
