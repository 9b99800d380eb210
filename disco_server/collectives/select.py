"""Finds the collective library of a session by its name."""

from __future__ import annotations

from disco_server.collectives.base import Communicator, UnavailableError

__all__ = ["open_communicator"]

_PLANNED = {
    "nccl": "NVIDIA GPUs",
    "rccl": "AMD GPUs",
    "local": "threads of one process",
}


def open_communicator(
    name: str,
    *,
    worker_id: int,
    num_workers: int,
    num_groups: int = 1,
    local_workers: int = 0,
    library: str = "",
) -> Communicator:
    """Opens this rank's communicator; collective over the ranks of the session.

    Args:
        name: The collective library: "mpi", or empty to choose.
        worker_id: This rank.
        num_workers: The workers of the session.
        num_groups: Their groups.
        local_workers: How many of them run on this machine; 0 if unknown.
        library: The MPI library: "mpich", "impi" or empty to choose.

    Raises:
        ConfigError: The numbers do not fit one another, or there is no such MPI
            library.
        UnavailableError: There is no such collective library here.
    """
    if name in ("", "mpi"):
        # mpi4py costs a tenth of a second to import; a rank without it pays nothing.
        from disco_server.collectives.mpi import MpiCommunicator

        return MpiCommunicator.create(
            worker_id, num_workers, num_groups, library=library, local_workers=local_workers
        )
    if name in _PLANNED:
        raise UnavailableError(
            f"the collective library {name!r} ({_PLANNED[name]}) is not part of this version;"
            " use 'mpi', which runs on CPUs"
        )
    raise UnavailableError(f"no collective library is called {name!r}; there is 'mpi'")
