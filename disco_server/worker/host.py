"""Which machine this is, for ranks that could share its memory."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

__all__ = ["host_id"]

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
    except OSError:  # not Linux: the name has to do
        parts = [socket.gethostname()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
