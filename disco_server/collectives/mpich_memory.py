"""The files in which MPICH's ranks share memory: their names, their size and their removal.

MPICH names its shared memory after the key-value space, so a killed run leaves a
file that would break the next run of the same name: `kvsname` gives each start of
a session its own, `nameless_memory` takes the names away as soon as all ranks hold
the memory, and `sweep_shared_memory` removes what a dead run left.
"""

from __future__ import annotations

import math
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

__all__ = ["KVS_VARIABLE", "kvsname", "nameless_memory", "shortage", "sweep_shared_memory"]


KVS_VARIABLE = "DISCO_KVSNAME"
"""Names the key-value space of a rank whose MPI an MPI launcher answers."""

_FOLDER = Path("/dev/shm")  # noqa: S108  (where MPICH makes its files)

_MIB = 1 << 20
_RANK_MIB, _SPARE_MIB = 5.2, 16
"""What MPI keeps there for each rank from its start on, and what has to be free beside that.

Measured with MPICH 5 and 1 to 8 ranks; arrays add nothing. MPICH has 1.0 MiB of it, without which
ranks die of SIGBUS. UCX has 4.1 and does with less, but at times its ranks die of SIGSEGV as they
start: 2 ranks with 20 MiB free, 4 ranks with 21 to 24, and none with 16 to spare."""


def shortage(ranks: int, folder: Path = _FOLDER) -> str:
    """Says that shared memory has too little room for MPI to start; empty if it has enough.

    Args:
        ranks: How many ranks start it on this machine.
        folder: Where shared memory has its names.
    """
    try:
        room = os.statvfs(folder)
    except OSError:  # not here
        return ""
    total, free = (room.f_frsize * blocks / _MIB for blocks in (room.f_blocks, room.f_bavail))
    needed = math.ceil(ranks * _RANK_MIB) + _SPARE_MIB
    if free >= needed:
        return ""
    return (
        f"{folder} has too little room: {free:.1f} of its {total:.1f} MiB are free, and MPI needs"
        f" {needed} MiB there to start the workers of this session, {ranks} on this machine;"
        f" make it larger (docker run --shm-size=1g, workers.sharedMemory of the chart, mount -o"
        f" remount,size=1g {folder}), or end other sessions here"
    )


def kvsname(session_id: int, attempt: int = 0) -> str:
    """Names the key-value space of one start of a session, the same on all its nodes.

    Args:
        session_id: The session, unsigned 64 bits.
        attempt: Counts the starts of one session.
    """
    return f"disco-{session_id:016x}-{attempt}"


@contextmanager
def nameless_memory(name: str, *, first: bool, folder: Path = _FOLDER) -> Generator[None]:
    """Removes the names of a start's shared memory when the block is done.

    Every rank starts MPI inside the block; then all of them hold the memory, and
    nothing is left behind however they end. Should this process be killed in the
    middle of the block, a shell that waits for its end removes what there is.

    Args:
        name: The key-value space, from `kvsname`.
        first: Whether this rank starts the shell that cleans up if this process is killed.
        folder: Where shared memory has its names.
    """
    guardian = _start_guardian(name, folder) if first else None
    try:
        yield
    finally:
        for path in _find_files(name, folder):
            path.unlink(missing_ok=True)
        if guardian is not None:
            guardian.communicate(b"done\n")


def _start_guardian(name: str, folder: Path) -> subprocess.Popen[bytes] | None:
    """Starts a shell that waits for a line of input; without one it removes the files."""
    files = [str(folder / f"mpich_{kind}_{_hash_name(name):x}_") for kind in ("shm", "vci")]
    script = 'read -r word || rm -f -- "$0"* "$1"*'
    import subprocess  # which ranks have no other use for

    with suppress(OSError):
        return subprocess.Popen(
            ["sh", "-c", script, *files],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


def sweep_shared_memory(name: str, folder: Path = _FOLDER) -> list[Path]:
    """Removes the shared memory that the killed ranks of one start left behind.

    MPICH names its files after the 32-bit FNV-1a hash of the key-value space. As
    two names may have one hash, a file that any process still maps is left alone.
    Intel MPI needs no sweeping: it removes the names at once.

    Args:
        name: The key-value space, from `kvsname`.
        folder: Where shared memory has its names.

    Returns:
        What was removed.
    """
    found = _find_files(name, folder)
    mapped = _find_mapped() if found else frozenset[str]()
    removed: list[Path] = []
    for path in found:
        if str(path) not in mapped:
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def _find_files(name: str, folder: Path) -> list[Path]:
    mark = f"{_hash_name(name):x}"
    return [
        path
        for kind in ("shm", "vci")
        for path in folder.glob(f"mpich_{kind}_{mark}_*")
        if path.name.rpartition("_")[2].isdigit()
    ]


def _hash_name(name: str) -> int:
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _find_mapped() -> frozenset[str]:
    """Lists the files named mpich_* that any process of this machine maps."""
    return frozenset(path for maps in Path("/proc").glob("[0-9]*/maps") for path in _read(maps))


def _read(maps: Path) -> Iterator[str]:
    # A process may end, or belong to another user, between listing and reading.
    with suppress(OSError):
        for line in maps.read_text(errors="replace").splitlines():
            if "/mpich_" in line:
                yield line.split(maxsplit=5)[5]
