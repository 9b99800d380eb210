"""Which MPI library is loaded; each try in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from disco_server.collectives.mpi_library import LIBRARIES, MpiLibrary, Pieces, find_library

MPICH, IMPI = LIBRARIES
LOAD = """
from disco_client.errors import ConfigError
from disco_server.collectives.types import UnavailableError
from disco_server.collectives.mpi_library import load_mpi
try:
    mpi, library, started = load_mpi("", oversubscribed=False)
    print(library.name, started, mpi.Query_thread() >= mpi.THREAD_FUNNELED)
    assert not load_mpi(library.name, oversubscribed=False)[2]
    mpi.Finalize()
    load_mpi("", oversubscribed=False)
except (ConfigError, UnavailableError) as error:
    print(type(error).__name__, error)
"""
HIDE = """
import sys
sys.modules["mpi4py"] = None
"""


def load(program: str = LOAD, **environment: str) -> list[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PMI_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()


def installed() -> MpiLibrary:
    """What this environment has; the tests hold for either."""
    return next(each for each in LIBRARIES if find_library(each) is not None)


def test_what_is_there_is_loaded_and_started_once():
    """MPI starts, asking again is harmless, and after its end it says so."""
    started, ended = load()
    assert started == f"{installed().name} True True"
    assert ended.startswith("UnavailableError MPI was already finalized")


def test_a_library_that_is_there_can_be_forced():
    """DISCO_MPI names the installed one, and a stale MPI4PY_MPIABI does not matter."""
    started, _ = load(DISCO_MPI=installed().name, MPI4PY_MPIABI="openmpi")
    assert started == f"{installed().name} True True"


def test_a_library_that_is_missing_is_named():
    """Forcing what is not installed says what to install."""
    missing = MPICH if installed() is IMPI else IMPI
    if find_library(missing) is not None:
        pytest.skip("both libraries are installed")
    [line] = load(DISCO_MPI=missing.name)
    assert line.startswith(f"UnavailableError the MPI library should be {missing.name}")
    assert f"install {missing.package}" in line


def test_an_unknown_library_is_refused():
    """A wrong DISCO_MPI is answered with the choices."""
    [line] = load(DISCO_MPI="lam")
    assert line == "ConfigError no MPI library is called 'lam'; the choices are 'mpich', 'impi'"


def test_without_mpi4py_the_extra_is_named():
    """A bare installation says which extra brings MPI."""
    [line] = load(HIDE + LOAD)
    assert line.startswith("UnavailableError mpi4py")
    assert "disco-runtime[server]" in line


def test_files_are_known_by_what_is_in_them(tmp_path):
    """The library is found whatever its file is called, and links to nothing are no trouble."""
    (tmp_path / "libmpi.so.12").write_bytes(b"x MPICH Version: 5 x")
    (tmp_path / "libmpi.so.12.0.0").write_bytes(b"Intel(R) MPI Library 2021")
    (tmp_path / "libmpi.so").symlink_to(tmp_path / "nowhere")
    (tmp_path / "libmpi.so.0").touch()
    assert find_library(MPICH, iter([tmp_path])) == tmp_path / "libmpi.so.12"
    assert find_library(IMPI, iter([tmp_path])) == tmp_path / "libmpi.so.12.0.0"
    assert find_library(IMPI, iter([])) is None


def test_pieces_depend_on_the_ranks():
    """A library may cut large data among few ranks and leave it whole among many."""
    library = MpiLibrary("x", "y", "z", ((2, Pieces(9, 1)), (8, Pieces(8, 2))))
    assert [library.cut(ranks).piece for ranks in (2, 3, 8, 9)] == [1, 2, 2, 1 << 62]
