"""The service of the examples, in a program of its own, and beside it one that answers at once.

The arguments are the controller's address, how many workers, and the width of a request. It prints
the port of either; then, for each line of its input, the longest stretch in seconds in which the
event loop did nothing else, since the line before: without and with the time in which it could
have gone on and no processor was free.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Self

from aiohttp import web

from disco_bench.child import BENCHMARKS

_BEAT_S = 0.001


class _RunDelay:
    """How long the calling thread has waited for a processor; nothing is known but on Linux."""

    def __init__(self) -> None:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._file = path.open("rb", buffering=0) if path.exists() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def seconds(self) -> float:
        """Since the thread began."""
        if self._file is None:
            return 0.0
        self._file.seek(0)
        return int(self._file.read().split()[1]) / 1e9


class _Heartbeat:
    """Measures the longest stretch in which an event loop is kept from running anything else."""

    def __init__(self) -> None:
        self._longest = self._with_waiting = 0.0

    async def run(self) -> None:
        """Beats for ever."""
        with _RunDelay() as waited:
            while True:
                due, before = time.perf_counter() + _BEAT_S, waited.seconds()
                await asyncio.sleep(_BEAT_S)
                late = time.perf_counter() - due
                self._longest = max(self._longest, late - (waited.seconds() - before))
                self._with_waiting = max(self._with_waiting, late)

    def take(self) -> tuple[float, float]:
        """The longest stretch since the last call, without and with waiting for a processor."""
        longest = self._longest, self._with_waiting
        self._longest = self._with_waiting = 0.0
        return longest


def _echo(width: int) -> Callable[[web.Request], Awaitable[web.Response]]:
    """Reads requests and answers them as the service does, without a model."""

    async def handle(request: web.Request) -> web.Response:
        inputs = (await request.json())["inputs"]
        if len(inputs) != width:
            return web.json_response({"error": "of another width"}, status=400)
        return web.json_response({"outputs": inputs})

    return handle


async def _listen(app: web.Application) -> int:
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return int(runner.addresses[0][1])


async def _serve(address: str, workers: int, width: int) -> None:
    service = import_module("service")  # of the examples
    idle = web.Application()
    idle.router.add_post("/predict", _echo(width))
    app = service.application(address, workers, width)
    print(await _listen(app), await _listen(idle), flush=True)
    heartbeat = _Heartbeat()
    beating = asyncio.ensure_future(heartbeat.run())
    while await asyncio.to_thread(sys.stdin.readline):
        print(*heartbeat.take(), flush=True)
    beating.cancel()
    await app.cleanup()


def main() -> None:
    """Runs both services."""
    sys.path.insert(0, str(BENCHMARKS.parent / "examples"))
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
