"""TVM's own Disco doing what Disco does in ``control``; a process of its own.

Started with the kind of session and the number of workers; for each line with a
number of commands on its standard input it issues so many, waits for all workers,
and prints commands/s; for ``sync`` and a number it waits for the last worker so
often, for ``call`` and a number it issues a command before each such wait; then it
prints the median in seconds.
"""

from __future__ import annotations

import importlib
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["main"]

NODES = 2


def _socket_session(disco: Any, workers: int) -> Any:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made: list[Any] = []
    per_node = workers // NODES
    # It listens first and returns when the other node has connected.
    making = threading.Thread(
        target=lambda: made.append(disco.SocketSession(NODES, per_node, 1, "localhost", port))
    )
    making.start()
    remote = ["tvm.exec.disco_remote_socket_session", "localhost", str(port), str(per_node)]
    subprocess.Popen([sys.executable, "-m", *remote], stdout=subprocess.DEVNULL)
    making.join()
    return made[0]


def _time_sync(session: Any, worker: int, issue: Callable[[], object]) -> float:
    started = time.perf_counter()
    _result = issue()
    session._sync_worker(worker)  # noqa: SLF001  (the name under which TVM has it)
    return time.perf_counter() - started


def main() -> None:
    """Serves measurements until standard input ends."""
    importlib.import_module("tvm")
    disco: Any = importlib.import_module("tvm.runtime.disco")
    workers = int(sys.argv[2])
    make: dict[str, Callable[[], Any]] = {
        "socket": lambda: _socket_session(disco, workers),
        "process": lambda: disco.ProcessSession(workers),
        "threaded": lambda: disco.ThreadedSession(workers),
    }
    session = make[sys.argv[1]]()
    # It makes an array of its arguments; of the functions that take three, the cheapest.
    func = session.get_global_func("ffi.Array")
    first, second = session.empty((4,), "float32"), session.empty((4,), "float32")
    print("ready", flush=True)
    for line in sys.stdin:
        *what, number = line.split()
        count = int(number)
        if what:
            issue = (lambda: func(first, second, 3)) if what == ["call"] else lambda: None
            times = [_time_sync(session, workers - 1, issue) for _ in range(count)]
            print(statistics.median(times), flush=True)
            continue
        started = time.perf_counter()
        for _ in range(count):
            _result = func(first, second, 3)
        for worker in range(workers):
            session._sync_worker(worker)  # noqa: SLF001  (the name under which TVM has it)
        print(count / (time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
