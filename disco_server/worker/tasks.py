"""Ending a task for good: one that stands in the way of its successor."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["end_task"]

_AGAIN_S = 0.5


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end.

    gRPC keeps a cancellation to itself now and then, so it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)
