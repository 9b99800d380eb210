"""Names of collective libraries."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.select import open_groups
from disco_server.collectives.types import UnavailableError


def test_unknown_libraries_are_refused():
    """A misspelt name is answered with the right one."""
    with pytest.raises(UnavailableError, match=r"'mip'; here there is 'mpi'"):
        open_groups("mip", worker_id=0, num_workers=1)


def test_an_unknown_mpi_library_is_refused():
    """The choice among MPI libraries is checked before anything is loaded."""
    with pytest.raises(ConfigError, match="'mpich', 'impi'"):
        open_groups("mpi", worker_id=0, num_workers=1, library="lam")


def test_threads_meet_by_themselves():
    """Between threads the choice is "local", by name or not, and where programs say "mpi"."""
    for name in ("", "local", "mpi"):
        found = open_groups(name, worker_id=0, num_workers=1, world=LocalWorld(1))

        assert isinstance(found, LocalGroups)


def test_a_library_of_another_kind_of_workers_says_which_would_work():
    """A session of processes cannot have "local", and is told what it can."""
    with pytest.raises(UnavailableError, match="use 'mpi', or a ThreadedSession"):
        open_groups("local", worker_id=0, num_workers=1)
