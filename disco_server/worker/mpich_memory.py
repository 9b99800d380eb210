"""The files in which MPICH's ranks share memory: their names, and who removes them.

MPICH names its shared memory after the key-value space, so a killed run leaves a
file that would break the next run of the same name: `kvsname` gives each start of
a session its own, `unlink_shared_memory` takes the names away as soon as all ranks
hold the memory, and `sweep_shared_memory` removes what a dead run left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["kvsname", "sweep_shared_memory"]


def kvsname(session_id: int, attempt: int = 0) -> str:
    """Names the key-value space of one start of a session, the same on all its nodes.

    Args:
        session_id: The session, unsigned 64 bits.
        attempt: Counts the starts of one session.
    """
    return f"disco-{session_id:016x}-{attempt}"


def sweep_shared_memory(name: str, folder: Path = Path("/dev/shm")) -> list[Path]:  # noqa: S108
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
    mark = f"{_hash_name(name):x}"
    found = [
        path
        for kind in ("shm", "vci")
        for path in folder.glob(f"mpich_{kind}_{mark}_*")
        if path.name.rpartition("_")[2].isdigit()
    ]
    mapped = _find_mapped() if found else frozenset[str]()
    removed: list[Path] = []
    for path in found:
        if str(path) not in mapped:
            with suppress(OSError):
                path.unlink()
                removed.append(path)
    return removed


def _hash_name(name: str) -> int:
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def _find_mapped() -> frozenset[str]:
    """Lists the files named mpich_* that any process of this machine maps."""
    return frozenset(path for maps in Path("/proc").glob("[0-9]*/maps") for path in _read(maps))


def _read(maps: Path) -> Iterator[str]:
    # A process may end, or belong to somebody else, between listing and reading.
    with suppress(OSError):
        for line in maps.read_text(errors="replace").splitlines():
            if "/mpich_" in line:
                yield line.split(maxsplit=5)[5]
