"""How the gRPC servers of daemons are stopped: nothing of theirs is cut off by the loop's end."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

__all__ = ["stop_server"]

_ENDING_S = 1.0
_OF_GRPC = ("_schedule_rpc_coro", "_handle_exceptions")


async def stop_server(server: grpc.aio.Server, grace: float | None) -> None:
    """Stops a server and waits until its tasks have ended.

    ``Server.stop`` returns while the calls that it has cancelled are still ending. A loop
    that is closed then cancels gRPC's own tasks as well, which now and then makes it
    print a traceback on standard error.

    Args:
        server: To be stopped, for good.
        grace: How many seconds calls under way may go on; None for none.
    """
    await server.stop(grace)
    ending = [task for task in asyncio.all_tasks() if _is_grpc_s(task)]
    if ending:
        await asyncio.wait(ending, timeout=_ENDING_S)


def _is_grpc_s(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") in _OF_GRPC
