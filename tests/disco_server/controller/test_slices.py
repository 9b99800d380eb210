"""Long work of the controller leaves room for what else it has to do."""

from __future__ import annotations

import asyncio

from disco_server.controller.slices import in_slices


def test_long_work_is_cut_and_other_work_comes_between():
    """All of it is done, in order; the first part at once."""

    async def scenario():
        done = []
        in_slices(range(1000), done.append)
        at_once, between = len(done), []
        while len(done) < 1000:
            between.append(len(done))
            await asyncio.sleep(0)
        return done, at_once, between

    done, at_once, between = asyncio.run(scenario())
    assert done == list(range(1000))
    assert 0 < at_once < 100
    assert len(between) > 5


def test_large_messages_leave_a_few_at_a_time():
    """One at least, however large it is."""

    async def count(nbytes):
        done = []
        in_slices(range(40), done.append, nbytes)
        return len(done)

    assert asyncio.run(count(1 << 10)) == 40
    assert asyncio.run(count(4 << 20)) == 4
    assert asyncio.run(count(1 << 30)) == 1


def test_short_work_is_done_at_once_without_a_loop():
    """As many small clusters have it."""
    done = []
    in_slices(range(10), done.append)
    assert done == list(range(10))
