"""Functions that hold up the threads of saves on workers, and limit what these may use."""

from __future__ import annotations

import os
import re
import resource
import threading
import time
from pathlib import Path

import disco_server

__all__: list[str] = []

_sync = os.fsync
_gates: list[Path] = []


def _held_sync(fd):
    if threading.current_thread().name == "disco-save":
        for gate in tuple(_gates):
            # The client, another process, makes the file; nothing tells of that.
            while not gate.exists():
                time.sleep(0.005)
    _sync(fd)


@disco_server.register_func("saving.hold")
def hold(gate, workers=None):
    """Keeps the threads that save from making their files durable until there is a file."""
    if workers is None or disco_server.current_worker().worker_id in workers:
        os.fsync = _held_sync
        _gates.append(Path(gate))


@disco_server.register_func("saving.let_go")
def let_go():
    """Keeps none any more."""
    os.fsync = _sync
    _gates.clear()


@disco_server.register_func("saving.join")
def join():
    """Waits until no thread of this process saves."""
    for thread in threading.enumerate():
        if thread.name == "disco-save":
            thread.join()


@disco_server.register_func("saving.limit_memory")
def limit_memory(nbytes):
    """Lets this process allocate so many bytes more; negative for any."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    soft = resource.RLIM_INFINITY if nbytes < 0 else (int(used[1]) << 10) + nbytes
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


@disco_server.register_func("saving.classes_of_readers")
def classes_of_readers():
    """The scheduling classes of the threads that read objects."""
    readers = [each for each in threading.enumerate() if each.name.startswith("disco-objects")]
    return [os.sched_getscheduler(each.native_id) for each in readers]
