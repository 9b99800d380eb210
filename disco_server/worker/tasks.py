"""Tasks of a node's event loop: begun, and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from disco_client.output import logger_of

__all__ = ["end_task", "spawn"]

_logger = logger_of("disco.worker")
_AGAIN_S = 0.5


def spawn(work: Awaitable[None], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[None]:
    """Does something in a task, which is one of a set until it is over; logs its failure."""

    async def run() -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            _logger.exception("a task of the node failed")

    task = asyncio.ensure_future(run())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end.

    gRPC keeps a cancellation to itself now and then, so it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)
