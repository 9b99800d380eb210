"""TVM's own Disco doing what Disco does in ``control``; a process of its own.

Started with the kind of session; for each line with a number of commands on its
standard input it issues so many, waits for all workers, and prints commands/s.
"""

from __future__ import annotations

import importlib
import socket
import subprocess
import sys
import threading
import time
from typing import Any

__all__ = ["main"]

WORKERS, NODES = 4, 2


def _socket_session(disco: Any) -> Any:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    made: list[Any] = []
    per_node = WORKERS // NODES
    # It listens first and returns when the other node has come.
    making = threading.Thread(
        target=lambda: made.append(disco.SocketSession(NODES, per_node, 1, "localhost", port))
    )
    making.start()
    remote = ["tvm.exec.disco_remote_socket_session", "localhost", str(port), str(per_node)]
    subprocess.Popen([sys.executable, "-m", *remote], stdout=subprocess.DEVNULL)
    making.join()
    return made[0]


def main() -> None:
    """Serves measurements until standard input ends."""
    importlib.import_module("tvm")
    disco: Any = importlib.import_module("tvm.runtime.disco")
    kind = sys.argv[1]
    session = _socket_session(disco) if kind == "socket" else disco.ProcessSession(WORKERS)
    # It makes an array of its arguments; of the functions that take three, the cheapest.
    func = session.get_global_func("ffi.Array")
    first, second = session.empty((4,), "float32"), session.empty((4,), "float32")
    print("ready", flush=True)
    for line in sys.stdin:
        count = int(line)
        started = time.perf_counter()
        for _ in range(count):
            _result = func(first, second, 3)
        for worker in range(WORKERS):
            session._sync_worker(worker)  # noqa: SLF001  (the name under which TVM has it)
        print(count / (time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
