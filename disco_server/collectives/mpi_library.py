"""Which MPI library a rank loads, and how it is set up.

mpi4py from PyPI brings no MPI of its own: it takes the `libmpi` that lies in the
environment, from the wheels `mpich` or `impi-rt` or from the system. Only one of
the wheels should be there: both write `lib/libmpi.so.12` and `lib/libfabric.so.1`,
and MPICH does not start with the other's libfabric. The setting here, or the variable
DISCO_MPI, says which is meant, finds Intel's file where both are, and refuses another.
mpi4py obeys MPI4PY_LIBMPI only while MPI4PY_MPIABI is unset: given that, it no longer
looks for a library and leaves the choice to the dynamic linker.
"""

from __future__ import annotations

import importlib
import mmap
import os
import site
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from disco_client.errors import ConfigError
from disco_server.collectives.types import UnavailableError
from disco_server.settings import MPI

__all__ = [
    "LIBRARIES",
    "MpiLibrary",
    "Pieces",
    "find_library",
    "load_mpi",
    "version_text",
]


class Pieces(NamedTuple):
    """How large allreduces are cut.

    Attributes:
        above: Bytes up to which one goes whole.
        piece: Bytes of a piece of a larger one.
    """

    above: int
    piece: int


@dataclass(frozen=True, slots=True)
class MpiLibrary:
    """What is known of one MPI library.

    Attributes:
        name: Its name in settings and messages.
        mark: The text that identifies its file and its version string.
        package: The distribution to install.
        pieces: How large allreduces among up to so many ranks are cut. Measured
            with 2 and 4 ranks on one node.
    """

    name: str
    mark: str
    package: str
    pieces: tuple[tuple[int, Pieces], ...] = ()

    def cut(self, ranks: int) -> Pieces:
        """How large allreduces among so many ranks are cut."""
        return next((pieces for most, pieces in self.pieces if ranks <= most), _WHOLE)


_WHOLE = Pieces(1 << 62, 1 << 62)
_ANY = 1 << 30
LIBRARIES = (
    MpiLibrary(
        "mpich",
        "MPICH Version",
        "mpich",
        ((3, Pieces(16 << 20, 2 << 20)), (_ANY, Pieces(16 << 20, 16 << 20))),
    ),
    MpiLibrary("impi", "Intel(R) MPI Library", "impi-rt", ((3, Pieces(2 << 20, 1 << 20)),)),
)
_OTHER = MpiLibrary("other", "", "")
_INTERFACES = ("UCX_NET_DEVICES", "FI_TCP_IFACE")
"""The variables by which UCX and libfabric, which MPI libraries use, choose a network."""


def load_mpi(
    library: str, *, oversubscribed: bool, one_machine: bool = False
) -> tuple[Any, MpiLibrary, bool]:
    """Imports mpi4py with the wanted library and starts MPI unless it is started already.

    Args:
        library: "mpich", "impi", or empty for what DISCO_MPI says, or else for
            what is there.
        oversubscribed: This machine has more ranks than processors, so a rank that
            waits must let others run.
        one_machine: All ranks run on this one, so that no other machine has to reach them.

    Returns:
        The module `mpi4py.MPI`, what is known of the library, and whether this call
        started MPI.

    Raises:
        ConfigError: There is no library of that name.
        UnavailableError: mpi4py, an MPI library, or the wanted one is missing.
    """
    wanted = _find_wanted(library or MPI.value())
    if wanted is not None and "mpi4py.MPI" not in sys.modules:
        _point_at(wanted, os.environ)
    if oversubscribed:
        # Intel MPI's ranks spin through their whole time slice otherwise, 8 ms a step.
        os.environ.setdefault("I_MPI_WAIT_MODE", "1")
    if one_machine and sys.platform == "linux":
        # A rank listens for its peers at every address that it may, without authentication.
        for variable in _INTERFACES:
            os.environ.setdefault(variable, "lo")
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        mpi = importlib.import_module("mpi4py.MPI")
    except (ImportError, RuntimeError) as error:
        raise UnavailableError(
            f"mpi4py with an MPI library cannot be imported: {error}. Install the extra that"
            " brings both, pip install 'disco-runtime[server]'; the packages mpich and impi-rt"
            " overwrite each other's files, so only one of them may be there"
        ) from error
    loaded = _identify(mpi.Get_library_version())
    if wanted is not None and loaded is not wanted:
        raise UnavailableError(
            f"the MPI library should be {wanted.name}, but {loaded.name} was loaded; install"
            f" {wanted.package}, or unset DISCO_MPI"
        )
    return mpi, loaded, _start(mpi, loaded)


def version_text(mpi: Any) -> str:
    """The name and version of the library behind `mpi4py.MPI`, as people write them."""
    line = str(mpi.Get_library_version()).partition("\n")[0]
    return " ".join(line.rstrip("\0").replace(" Version:", "").split())


def find_library(wanted: MpiLibrary, folders: Iterator[Path] | None = None) -> Path | None:
    """Finds the file of one MPI library in this Python environment.

    Args:
        wanted: Which one.
        folders: Where to look instead.
    """
    for folder in _library_folders() if folders is None else folders:
        for path in sorted(folder.glob("libmpi.so*")):
            if _has_mark(path, wanted.mark.encode()):
                return path
    return None


def _find_wanted(name: str) -> MpiLibrary | None:
    if not name:
        return None
    for library in LIBRARIES:
        if library.name == name.lower():
            return library
    choices = ", ".join(repr(library.name) for library in LIBRARIES)
    raise ConfigError(f"no MPI library is called {name!r}; the choices are {choices}")


def _point_at(wanted: MpiLibrary, environ: MutableMapping[str, str]) -> None:
    path = find_library(wanted)
    if path is not None:
        environ.pop("MPI4PY_MPIABI", None)
        environ["MPI4PY_LIBMPI"] = str(path)


def _library_folders() -> Iterator[Path]:
    prefixes = [sys.exec_prefix, sys.base_exec_prefix]
    if site.ENABLE_USER_SITE:
        prefixes.insert(1, site.getuserbase())
    for prefix in dict.fromkeys(prefixes):
        yield Path(prefix) / "lib"


def _has_mark(path: Path, mark: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(mark) >= 0
    except (OSError, ValueError):
        return False


def _identify(version: str) -> MpiLibrary:
    return next((each for each in LIBRARIES if each.mark in version), _OTHER)


def _start(mpi: Any, library: MpiLibrary) -> bool:
    if mpi.Is_finalized():
        raise UnavailableError("MPI was already finalized in this process and cannot start again")
    if mpi.Is_initialized():
        return False
    # One thread of a rank calls MPI, so FUNNELED is enough. But in that level MPICH
    # reduces on one node through flags in shared memory, which it polls without ever
    # yielding (4 ranks on 2 processors: 8 ms for 4 KiB), and which is slow for much
    # data (2 ranks: 16 ms for 16 MiB). In MULTIPLE it goes another way: 35 us, 4 ms.
    level = mpi.THREAD_MULTIPLE if library.name == "mpich" else mpi.THREAD_FUNNELED
    try:
        mpi.Init_thread(level)
    except mpi.Exception as error:
        raise UnavailableError(f"MPI did not start: {error}") from error
    return True
