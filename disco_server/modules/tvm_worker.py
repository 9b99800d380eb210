"""Tells TVM's C++ code which worker a thread is.

TVM's own workers keep an object for that in a variable of the thread, and C++ functions that are
made for workers end in "The current thread is not a DiscoWorker thread" where it is not set. So
it is set here, by the loader's symbol of the variable, for the releases whose layout of the
object is known. What TVM answers is compared before anybody relies on it.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

from disco_client.wire.values import DLPACK_KINDS, Device
from disco_server.modules.tvm import own_library, runtime

__all__ = ["WorkerFacts", "show_worker"]


class WorkerFacts(Protocol):
    """What TVM's code may ask of a worker."""

    @property
    def worker_id(self) -> int:
        """Its number among the workers, from 0."""
        ...

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        ...

    @property
    def num_groups(self) -> int:
        """Into how many groups they are divided."""
        ...

    @property
    def device(self) -> Device:
        """The device on which it computes."""
        ...

    @property
    def ccl(self) -> str:
        """The name of its collective library."""
        ...


_RELEASES: Final = ("0.27.",)
"""How the versions begin whose object is laid out as :class:`_DiscoWorker`."""

_SYMBOL: Final = b"_ZZN3tvm7runtime22ThreadLocalDiscoWorker3GetEvE6worker"
_SHORT_TEXT: Final = 11
"""TVM's number for a text that is kept inside the object that has it, of up to 7 bytes."""

_DEVICE_NUMBERS: Final = {kind: number for number, kind in DLPACK_KINDS.items()}


class _DiscoWorker(ctypes.Structure):
    """TVM's object of a worker; what belongs to its own sessions stays empty."""

    _fields_ = (
        ("worker_id", ctypes.c_int),
        ("local_worker_id", ctypes.c_int),
        ("num_workers", ctypes.c_int),
        ("num_groups", ctypes.c_int),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("ccl_type", ctypes.c_int32),
        ("ccl_length", ctypes.c_uint32),
        ("ccl", ctypes.c_char * 8),
        ("worker_zero_data", ctypes.c_void_p),
        ("channel", ctypes.c_void_p),
        ("registers", ctypes.c_void_p * 3),
    )


_local = threading.local()


def show_worker(worker: WorkerFacts) -> bool:
    """Tells TVM's code in this thread which worker it is, or that something of it has changed.

    Args:
        worker: The worker of this thread.

    Returns:
        Whether TVM's code knows it now. It does not where TVM's release is unknown here or has no
        such variable.
    """
    shown: _DiscoWorker | None = getattr(_local, "shown", None)
    if shown is not None:
        _fill(shown, worker)
        return True
    find = _finder()
    variable = None if find is None else find()
    if variable is None:
        return False
    shown = _DiscoWorker()
    _fill(shown, worker)
    variable.value = ctypes.addressof(shown)
    if not _is_understood(worker):
        variable.value = None
        return False
    # It lives as long as the thread, and so does the variable.
    _local.shown = shown
    return True


def _fill(shown: _DiscoWorker, worker: WorkerFacts) -> None:
    ccl = worker.ccl.encode()
    shown.worker_id = shown.local_worker_id = worker.worker_id
    shown.num_workers, shown.num_groups = worker.num_workers, worker.num_groups
    shown.device_type = _DEVICE_NUMBERS[worker.device.kind]
    shown.device_id = worker.device.index
    shown.ccl_type, shown.ccl_length, shown.ccl = _SHORT_TEXT, len(ccl), ccl


@cache
def _finder() -> Any:
    """What finds the calling thread's variable; None where this TVM has none that is known."""
    try:
        release = version("apache-tvm")
    except PackageNotFoundError:
        return None
    runtime()
    library = own_library()
    if library is None or not release.startswith(_RELEASES) or ctypes.sizeof(ctypes.c_void_p) != 8:  # noqa: PLR2004
        return None
    dlsym = ctypes.CDLL(None).dlsym
    dlsym.restype, dlsym.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)

    def find() -> ctypes.c_void_p | None:
        # Of a variable that each thread has, the loader gives the calling thread's.
        at: int | None = dlsym(library.handle, _SYMBOL)
        return None if at is None else ctypes.c_void_p.from_address(at)

    return find


def _is_understood(worker: WorkerFacts) -> bool:
    """Whether TVM's own functions answer with what was set."""
    library, ffi = own_library(), runtime()
    if library is None:
        return False
    expected = {
        "worker_rank": worker.worker_id,
        "world_size": worker.num_workers,
        "device": ffi.device(worker.device.kind, worker.device.index),
    }
    try:
        return all(library.functions[name]() == value for name, value in expected.items())
    except (KeyError, TypeError, ValueError, RuntimeError):
        return False
