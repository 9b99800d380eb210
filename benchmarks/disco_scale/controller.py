"""A real controller daemon that notes for how long it read nothing.

It is ``disco-controller`` on an event loop that measures its turns: between two of them nothing
is read, so the longest is how long a peer may wait for an answer to anything. A line on its
standard input asks for the longest since the line before, in milliseconds of the processor's
time, so that what else the machine does is not counted.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from disco_server.cli.controller import main
from disco_server.controller import daemon
from disco_server.ipc.event_loop import RunLoop

__all__ = ["MeasuredLoop"]

longest = [0.0]


class MeasuredLoop(RunLoop):
    """The loop of daemons, with a selector that measures the time between its calls."""

    def __init__(self) -> None:
        super().__init__()
        selector: Any = vars(self)["_selector"]
        select, began = selector.select, [0.0]

        def measured(timeout: float | None = None) -> Any:
            longest[0] = max(longest[0], time.thread_time() - began[0])
            found = select(timeout)
            began[0] = time.thread_time()
            return found

        selector.select = measured


def _answer() -> None:
    for _ in sys.stdin:
        said, longest[0] = longest[0], 0.0
        print(f"{said * 1e3:.3f}", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    daemon.RunLoop = MeasuredLoop  # pyright: ignore[reportPrivateImportUsage]
    threading.Thread(target=_answer, daemon=True).start()
    main()
