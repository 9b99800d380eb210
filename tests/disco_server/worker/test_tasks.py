"""A task that stands in the way is ended for good."""

from __future__ import annotations

import asyncio

from disco_server.worker import array_store
from disco_server.worker.array_store import end_task


def test_a_task_is_ended_also_if_it_keeps_a_cancellation_to_itself(monkeypatch):
    """It is asked again and again; one that is over is left alone."""
    monkeypatch.setattr(array_store, "_AGAIN_S", 0.01)
    asked = []

    async def stubborn():
        for _ in range(3):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked.append(1)

    async def run():
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        await end_task(task)
        assert task.done()
        await end_task(task)

    asyncio.run(run())
    assert len(asked) == 3
