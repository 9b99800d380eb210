"""Names of collective libraries."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.base import UnavailableError
from disco_server.collectives.select import open_communicator


@pytest.mark.parametrize("name", ["nccl", "rccl", "local"])
def test_libraries_to_come_are_refused_with_a_way_on(name):
    """A library of another version says what there is instead."""
    with pytest.raises(UnavailableError, match=f"'{name}'.*use 'mpi'"):
        open_communicator(name, worker_id=0, num_workers=1)


def test_unknown_libraries_are_refused():
    """A misspelt name is answered with the right one."""
    with pytest.raises(UnavailableError, match=r"'mip'; there is 'mpi'"):
        open_communicator("mip", worker_id=0, num_workers=1)


def test_an_unknown_mpi_library_is_refused():
    """The choice among MPI libraries is checked before anything is loaded."""
    with pytest.raises(ConfigError, match="'mpich', 'impi'"):
        open_communicator("mpi", worker_id=0, num_workers=1, library="lam")
