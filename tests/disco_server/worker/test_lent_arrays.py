"""Arrays that are lent to clients until these have them."""

from __future__ import annotations

import asyncio

import pytest

from disco_server.ipc.growing import GrowingArray, Offers
from disco_server.worker.array_store import LentArrays


def play(scenario, lease=60.0):
    """Runs a scenario with two offers of worker 2; returns the descriptors that came back."""
    back = []

    async def run():
        async with asyncio.timeout(20):
            offers = Offers()
            for ticket in (1, 2):
                offers.add(2, ticket, GrowingArray(-ticket, 8, 8))
            lent = LentArrays(offers, lambda worker, fd: back.append((worker, fd)), lease)
            await scenario(lent, back)

    asyncio.run(run())
    return back


def test_what_broke_off_can_be_asked_for_again():
    """Until the client says that it has it; then there is none."""

    async def scenario(lent, back):
        for _ in range(3):
            assert (await lent.lend(2, 1)).fd == -1
            lent.release(2, 1)
        assert not back
        lent.confirm(2, 1)
        assert back == [(2, -1)]
        with pytest.raises(KeyError):
            await lent.lend(2, 1)
        lent.confirm(2, 1)
        lent.release(2, 1)

    assert play(scenario) == [(2, -1)]


def test_memory_that_is_read_is_not_given_back():
    """A client may have all of it before the last message has left."""

    async def scenario(lent, back):
        await lent.lend(2, 1)
        lent.confirm(2, 1)
        assert not back
        lent.release(2, 1)

    assert play(scenario) == [(2, -1)]


def test_what_the_rank_could_not_fill_is_not_kept():
    """It would be no better the next time."""

    async def scenario(lent, back):
        array = await lent.lend(2, 1)
        array.grow(4, "the device is lost")
        lent.release(2, 1)

    assert play(scenario) == [(2, -1)]


def test_who_asks_again_takes_the_place_of_his_former_self():
    """Whose connection may look whole from here: an array has one reader."""

    async def scenario(lent, back):
        async def stale():
            await lent.lend(2, 1)
            await asyncio.Event().wait()

        reading = asyncio.ensure_future(stale())
        await asyncio.sleep(0.01)
        await lent.lend(2, 1)
        assert reading.cancelled()

    play(scenario)


def test_what_nobody_comes_back_for_is_let_go():
    """After the lease; asking again stops the clock."""

    async def scenario(lent, back):
        await lent.lend(2, 1)
        await lent.lend(2, 2)
        for ticket in (1, 2):
            lent.release(2, ticket)
        await lent.lend(2, 1)
        while not back:  # noqa: ASYNC110  (the table tells nobody)
            await asyncio.sleep(0.001)

    assert play(scenario, lease=0.01) == [(2, -2)]


def test_those_of_a_program_that_is_gone_are_let_go():
    """What it was fetching, and what it has not asked for."""

    async def scenario(lent, back):
        await lent.lend(2, 1)
        lent.release(2, 1)
        await lent.abandon()

    assert sorted(play(scenario)) == [(2, -2), (2, -1)]


def test_the_end_lets_go_of_what_is_lent():
    """What nobody asked for is the offers' own."""

    async def scenario(lent, back):
        await lent.lend(2, 1)
        lent.release(2, 1)
        lent.close()

    assert play(scenario) == [(2, -1)]
