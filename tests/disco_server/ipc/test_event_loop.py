"""The event loop whose time stands still while its process does."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from disco_server.ipc.event_loop import RunLoop

PAUSE_S = 2.5


def test_a_time_limit_leaves_out_what_its_process_did_not_run():
    """What came meanwhile is read before the limit is over, and a limit has its own time left."""

    async def play():
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        said = loop.create_future()
        loop.add_reader(reading, lambda: said.done() or said.set_result(os.read(reading, 4)))
        began, began_real = loop.time(), time.monotonic()

        def stand_still():
            os.write(writing, b"here")
            time.sleep(PAUSE_S)

        loop.call_later(0.05, stand_still)
        async with asyncio.timeout(PAUSE_S - 0.5):
            assert await said == b"here"
        assert time.monotonic() - began_real >= PAUSE_S
        assert loop.time() - began < PAUSE_S - 0.5
        loop.remove_reader(reading)
        os.close(reading)
        os.close(writing)

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        runner.run(play())


def test_what_waits_for_nothing_but_time_ends_by_the_real_one():
    """A loop that turns counts all of its time, however long nothing happens."""

    async def wait():
        began = time.monotonic()
        await asyncio.sleep(1.5)
        return time.monotonic() - began

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        assert runner.run(wait()) > 1.4


def test_a_loop_of_a_debugged_process_refuses_what_another_thread_gives_it(monkeypatch):
    """By asyncio's own checks; what is given in the way for other threads is done."""
    monkeypatch.setenv("DISCO_DEBUG", "1")

    async def play():
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
            await asyncio.to_thread(loop.call_soon, done.set)
        await asyncio.to_thread(loop.call_soon_threadsafe, done.set)
        await done.wait()

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        runner.run(play())
