"""Intel's oneCCL, whose C interface is NCCL's under another prefix, on CPUs.

Of the wheels `oneccl` and `oneccl-cpu` three files count, which lie side by side in the folder
`lib` of the environment: the interface (`libccl.so.2`), its part for CPUs (`libccl_legacy_cpu.so`)
and what does the work (`libccl.so.1`). That takes libfabric, which the wheel `mpich` brings.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path
from typing import Any

from cupy._machine.nccl_carrier import Refused
from cupy._machine.nccl_errors import INTERNAL_ERROR

__all__ = ["ID_BYTES", "UniqueId", "call"]

ID_BYTES = 4096
_FOLDER = Path(sys.prefix, "lib")
_FABRICS = ("mpich/libfabric.so.1", "libfabric.so.1")

_ENVIRONMENT = {
    # Of the ways to carry data without MPI this one needs no hardware.
    "FI_PROVIDER": "tcp",
    # All ranks are on this machine, and nobody else shall find them.
    "FI_TCP_IFACE": "lo",
    "CCL_KVS_IFACE": "lo",
    # Otherwise a call takes 50 ms where there are more threads than processors.
    "CCL_YIELD": "sched_yield",
    # Otherwise it looks for GPUs first, and says at each start what it does not find.
    "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
    "CCL_LOG_LEVEL": "error",
}


class UniqueId(ctypes.Structure):
    """What the ranks of a new communicator find each other by."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


_BUFFER, _COMM, _STREAM = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
_COUNT, _NUMBER = ctypes.c_size_t, ctypes.c_int
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "GetVersion": (ctypes.POINTER(_NUMBER),),
    "GetUniqueId": (ctypes.POINTER(UniqueId),),
    "CommInitRank": (ctypes.POINTER(_COMM), _COUNT, UniqueId, _NUMBER),
    "CommSplit": (_COMM, _NUMBER, _NUMBER, ctypes.POINTER(_COMM), ctypes.c_void_p),
    "GroupStart": (),
    "GroupEnd": (),
    "AllReduce": (_BUFFER, _BUFFER, _COUNT, _NUMBER, _NUMBER, _COMM, _STREAM),
    "Reduce": (_BUFFER, _BUFFER, _COUNT, _NUMBER, _NUMBER, _NUMBER, _COMM, _STREAM),
    "ReduceScatter": (_BUFFER, _BUFFER, _COUNT, _NUMBER, _NUMBER, _COMM, _STREAM),
    "Broadcast": (_BUFFER, _BUFFER, _COUNT, _NUMBER, _NUMBER, _COMM, _STREAM),
    "AllGather": (_BUFFER, _BUFFER, _COUNT, _NUMBER, _COMM, _STREAM),
    "Send": (_BUFFER, _COUNT, _NUMBER, _NUMBER, _COMM, _STREAM),
    "Recv": (_BUFFER, _COUNT, _NUMBER, _NUMBER, _COMM, _STREAM),
}


@functools.cache
def _load() -> ctypes.CDLL:
    """The library; it reads its variables when it is loaded."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for fabric in (_FOLDER / file for file in _FABRICS):
        if fabric.exists():
            ctypes.CDLL(str(fabric), mode=ctypes.RTLD_GLOBAL)
            break
    library = ctypes.CDLL(str(_FOLDER / "libccl.so.2"), mode=ctypes.RTLD_GLOBAL)
    for name, arguments in _ARGUMENTS.items():
        getattr(library, f"oneccl{name}").argtypes = arguments
    library.onecclGetLastError.argtypes = (_COMM,)
    library.onecclGetLastError.restype = ctypes.c_char_p
    return library


def call(name: str, *arguments: Any) -> None:
    """Calls one of its functions, without the prefix.

    Raises:
        Refused: It returned an error.
    """
    library = _load()
    if getattr(library, f"oneccl{name}")(*arguments):
        said = (library.onecclGetLastError(None) or b"").decode("utf-8", "replace")
        raise Refused(INTERNAL_ERROR, f"oneccl{name}: {said}")
