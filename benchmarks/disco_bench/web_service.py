"""The service of the examples, in a program of its own, and beside it one that answers at once.

The arguments are the controller's address, how many workers, and the width of a request. It prints
the port of either; then, for each line of its input, the longest stretch in seconds in which the
event loop did nothing else, since the line before.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from importlib import import_module

from aiohttp import web

from disco_bench.child import BENCHMARKS

_BEAT_S = 0.001


class _Heartbeat:
    """Measures the longest stretch in which an event loop is kept from running anything else."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        """Beats for ever."""
        while True:
            due = time.perf_counter() + _BEAT_S
            await asyncio.sleep(_BEAT_S)
            self.longest = max(self.longest, time.perf_counter() - due)


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
        print(heartbeat.longest, flush=True)
        heartbeat.longest = 0.0
    beating.cancel()
    await app.cleanup()


def main() -> None:
    """Runs both services."""
    sys.path.insert(0, str(BENCHMARKS.parent / "examples"))
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))


if __name__ == "__main__":
    main()
