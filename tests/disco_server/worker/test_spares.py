"""Interpreters that wait to become ranks."""

from __future__ import annotations

import asyncio
import os

import psutil

from disco_server.worker.spares import Spares

ENVIRON = dict(os.environ)


def with_spares(count, use):
    """Runs a coroutine with a pool, and closes the pool."""

    async def run():
        spares = Spares(count, ENVIRON)
        try:
            return await use(spares)
        finally:
            await spares.close()

    return asyncio.run(run())


def children():
    """The interpreters among this process's children; there may be daemons too."""
    found = psutil.Process().children()
    return {p.pid for p in found if "disco_server.worker.rank_process" in _command(p)}


def _command(process):
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


async def until(condition):
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  (processes send no event)
            await asyncio.sleep(0.01)


def test_an_idle_interpreter_is_taken_first():
    """What was started before is handed out, each once; then one is started at once."""

    async def use(spares):
        await spares.fill()
        # A process whose exec has only begun has an empty command line for a moment.
        await until(lambda: len(children()) == 2)
        idle = children()
        taken = [await spares.take() for _ in range(3)]
        assert {handle.pid for handle in taken[:2]} == idle
        assert taken[2].pid not in idle
        for handle in taken:
            await handle.end(b"", 0)

    with_spares(2, use)


def test_what_was_taken_is_made_up_for():
    """After a moment there are as many as before; asking twice starts no more."""

    async def use(spares):
        await spares.fill()
        handle = await spares.take()
        await handle.end(b"", 0)
        spares.refill_later()
        spares.refill_later()
        await until(lambda: len(spares._idle) == 1)
        await spares.fill()
        await until(lambda: len(children()) == len(spares._idle) == 1)

    with_spares(1, use)


def test_a_spare_that_died_is_not_handed_out(caplog):
    """Another one takes its place, and the log says how it ended."""

    async def use(spares):
        await spares.fill()
        await until(children)
        (dead,) = children()
        psutil.Process(dead).kill()
        await until(spares._idle[0].exited.done)
        handle = await spares.take()
        assert handle.pid != dead
        assert not handle.exited.done()
        await handle.end(b"", 0)

    with_spares(1, use)
    assert "a spare interpreter ended by itself" in caplog.text


def test_closing_ends_every_idle_interpreter():
    """Nothing is left, also of a refill under way."""

    async def use(spares):
        await spares.fill()
        spares.refill_later()
        await spares.close()
        assert children() == set()
        await spares.fill()
        assert children() == set()

    with_spares(2, use)


def test_a_pool_of_none_starts_one_when_it_is_asked():
    """Without spares a session starts as well, only later."""

    async def use(spares):
        await spares.fill()
        assert children() == set()
        handle = await spares.take()
        await until(lambda: children() == {handle.pid})
        await handle.end(b"", 0)

    with_spares(0, use)
