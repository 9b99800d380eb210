"""Tasks of a node's event loop: begun, and ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from disco_client.output import logger_of

__all__ = ["call_in_thread", "end_task", "spawn"]

_Result = TypeVar("_Result")

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


async def call_in_thread(call: Callable[[], _Result]) -> _Result:
    """Calls something in another thread; in this one, where none can be had.

    That is so where the system starts no more, and from Python 3.12 on when the interpreter ends.
    """
    begun = False

    def run() -> _Result:
        nonlocal begun
        begun = True
        return call()

    try:
        return await asyncio.to_thread(run)
    except RuntimeError:
        if begun:
            raise
        return call()


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end.

    gRPC keeps a cancellation to itself now and then, so it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)
