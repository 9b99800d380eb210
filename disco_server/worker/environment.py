"""The environment variables of rank processes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disco_client.wire.session_secrets import is_secret
from disco_server.config import Account, WorkerConfig, passes
from disco_server.ipc.process import fix_hashes, limit_threads
from disco_server.settings import RANK_VARIABLES

__all__ = ["PASSED", "OwnFolder", "WorkFolders", "host_id", "identity", "rank_environment"]


PASSED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
    *("PYTHON*", "VIRTUAL_ENV", "COVERAGE_*", "LD_LIBRARY_PATH", "LD_PRELOAD", "XDG_CACHE_HOME"),
    *("MALLOC_*", "GLIBC_TUNABLES", "OMP_*", "GOMP_*", "KMP_*", "MKL_*", "OPENBLAS_*", "GOTO_*"),
    *("BLIS_*", "NUMEXPR_*", "VECLIB_*"),
    *("CUDA_*", "CUPY_*", "NVIDIA_*", "NCCL_*"),
    *("HIP_*", "HSA_*", "ROCR_*", "ROCM_*", "GPU_*", "RCCL_*"),
    *("MPI4PY_*", "MPICH_*", "MPIR_*", "I_MPI_*", "FI_*", "UCX_*", "TVM_*", "CC", "CXX"),
    *(variable.name for variable in RANK_VARIABLES),
)
"""What ranks get of the daemon's environment unless ``--env`` says more."""

_NEVER = ("PMI_*", "DISCO_AUTH*", "DISCO_TLS*", "DISCO_TOKEN*")


def rank_environment(
    config: WorkerConfig, environ: Mapping[str, str] = os.environ, account: Account | None = None
) -> dict[str, str]:
    """The environment of rank processes: what computing needs, and what the settings add.

    Variables whose names suggest secrets are left out unless a setting names them, and
    what belongs to the daemon itself (its tokens, its keys) always is. The seed of hashes is
    the same on every node, whatever this environment says: a session may have ranks on several.

    Args:
        config: The settings of the daemon.
        environ: Its environment.
        account: The user that the ranks run as, if not the daemon's user.
    """
    names = [item for item in config.env if "=" not in item]
    given = dict(item.split("=", 1) for item in config.env if "=" in item)
    out = {
        name: value
        for name, value in environ.items()
        if (passes(name, PASSED) and not is_secret(name)) or passes(name, names)
    }
    # Ranks make no spans; their headers may hold a secret, so "*" does not cover them.
    telemetry = [*given, *(item for item in names if item.startswith("OTEL_"))]
    out = {
        name: value
        for name, value in {**out, **given}.items()
        if not passes(name, _NEVER) and (name[:5] != "OTEL_" or passes(name, telemetry))
    }
    if out.get("PYTHONPATH"):
        # Ranks have working folders of their own, where relative paths would be wrong.
        entries = out["PYTHONPATH"].split(os.pathsep)
        out["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in entries)
    if account is not None:
        out |= {"HOME": str(account.home), "USER": account.name, "LOGNAME": account.name}
    return fix_hashes(limit_threads(out, config.rank_threads))


def identity(account: Account | None) -> dict[str, Any]:
    """The arguments by which a process becomes another user's before its program begins."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": account.groups}


# A folder that belongs to one living daemon, which keeps it locked.
#
# The folder of a killed daemon is not locked; the next daemon of its user removes it.


class OwnFolder:
    """Makes a folder that only this user can enter, and removes those of killed daemons.

    Args:
        prefix: How the names of all such folders begin.
        parent: The folder above; None for the system's folder of temporary files.

    Attributes:
        path: The folder.

    Raises:
        OSError: That is not possible.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, prefix)
        self.path, self._lock = _made(parent, prefix)

    def remove(self) -> None:
        """Removes it with all that is in it; once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    """Makes a folder of its own name and locks it.

    A sweep of another daemon may remove it in between; then this makes another.
    """
    while True:
        root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            lock = _locked(root)
        except (BlockingIOError, FileNotFoundError):
            continue
        if os.fstat(lock).st_nlink:
            return root, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    """Opens a folder and locks it; the lock ends with the process.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _sweep(parent: Path, prefix: str) -> None:
    """Removes the folders of daemons that were killed."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                fd = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)


# Folders of sessions on one node: where their ranks work, and what goes with them.
#
# All of them are in one folder of the daemon.


_PREFIX = "disco-work-"
_ENTER = 0o711
"""Other users may pass through, as ranks may be another user's, but cannot list names."""


class WorkFolders:
    """Makes folders, and removes them.

    Args:
        parent: The folder above; None for the system's folder of temporary files.
        account: The user that the folders are for, if not this process's user.
    """

    def __init__(self, parent: Path | None = None, account: Account | None = None) -> None:
        self._parent = parent
        self._account = account
        self._root: OwnFolder | None = None

    def make(self, session: int, worker: int) -> str:
        """Makes the folder of a rank.

        Raises:
            OSError: That is not possible.
        """
        folder = self._of(session)
        folder.mkdir(exist_ok=True)
        mine = folder / f"worker-{worker}"
        mine.mkdir(mode=0o700)
        if self._account is not None:
            folder.chmod(_ENTER)
            os.chown(mine, self._account.uid, self._account.gid)
        return str(mine)

    def remove(self, session: int) -> None:
        """Removes all that the ranks of a session left in theirs; they have ended."""
        if self._root is not None:
            shutil.rmtree(self._of(session), ignore_errors=True)

    def close(self) -> None:
        """Removes everything; idempotent."""
        root, self._root = self._root, None
        if root is not None:
            root.remove()

    def _of(self, session: int) -> Path:
        if self._root is None:
            self._root = OwnFolder(_PREFIX, self._parent)
            if self._account is not None:
                self._root.path.chmod(_ENTER)
        return self._root.path / f"session-{session:016x}"


# Which machine this is, for ranks that could share its memory.


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACES = ("net", "ipc", "pid")
_SHARED = Path("/dev/shm")  # noqa: S108  (where MPI keeps its shared memory)


def host_id() -> str:
    """An opaque text, the same for daemons whose ranks can share memory.

    Two daemons on one machine have the same kernel, the same view of other
    processes and of the network, and the same folder of shared memory. Containers
    and network namespaces have their own, and count as machines of their own.
    """
    try:
        parts = [_BOOT_ID.read_text().strip(), str(_SHARED.stat().st_dev)]
        parts += [str(Path(f"/proc/self/ns/{name}").readlink()) for name in _NAMESPACES]
    except OSError:  # not Linux: the host name has to do
        parts = [socket.gethostname()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
