"""Uploads that are cut, sent again, given up, and that come twice."""

from __future__ import annotations

import asyncio
import os

import pytest

from disco_client.arrays.shared_memory import SharedPool
from disco_client.pb import controller_pb2
from disco_server.worker import array_store
from disco_server.worker.array_store import Uploads

pytestmark = pytest.mark.usefixtures("no_memory_left")


class Rank:
    """What a rank is told."""

    def __init__(self):
        self.told = []

    def __call__(self, transfer, there=0, fd=None, error=""):
        if fd is not None:
            os.close(fd)
        self.told.append((transfer.ticket, error or there))


def play(scenario, lease=60.0):
    """Runs a scenario with an empty table; returns what the ranks were told."""
    rank, pool = Rank(), SharedPool()

    async def run():
        async with asyncio.timeout(20):
            table = Uploads(pool, rank, lease)
            await scenario(table, rank)
            table.close()

    asyncio.run(run())
    pool.close()
    return rank.told


def head(ticket=1, nbytes=8, error=""):
    return controller_pb2.Transfer(ticket=ticket, worker=2, nbytes=nbytes, error=error)


def test_one_that_broke_off_goes_on_in_its_memory():
    """The rank has heard of it, and hears only that all of it is there now."""

    async def scenario(table, rank):
        first = await table.begin(head())
        table.break_off(head())
        again = await table.begin(head())
        assert again is first
        again.grown(8)
        table.complete(head())

    assert play(scenario) == [(1, 8)]


def test_one_that_is_over_is_dropped():
    """Whether it was whole or given up; only so many are remembered."""

    async def scenario(table, rank):
        await table.begin(head(1))
        table.complete(head(1))
        table.fail(head(2), "no room")
        for ticket in (1, 2):
            assert await table.begin(head(ticket)) is None
        for ticket in range(3, 3 + array_store._REMEMBERED):
            table.complete(head(ticket))
        assert await table.begin(head(2)) is not None
        assert len(table._over) == array_store._REMEMBERED

    assert play(scenario) == [(2, "no room")]


def test_who_sends_again_takes_the_place_of_his_former_self():
    """Whose connection may look whole from here; both never fill the memory at a time."""
    ended = []

    async def scenario(table, rank):
        async def stale():
            await table.begin(head())
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)
                table.break_off(head())

        sending = asyncio.ensure_future(stale())
        await asyncio.sleep(0.01)
        assert await table.begin(head()) is not None
        assert ended
        assert sending.cancelled()

    assert play(scenario) == []


@pytest.mark.parametrize("lease", [0.0, 0.01])
def test_what_is_not_sent_again_in_time_will_not_come(monkeypatch, lease):
    """The rank hears why, and does not wait for ever."""
    monkeypatch.setattr(array_store, "_MARGIN_S", 0.0)

    async def scenario(table, rank):
        await table.begin(head())
        table.break_off(head())
        while not rank.told:  # noqa: ASYNC110  (a rank tells nobody)
            await asyncio.sleep(0.001)

    ((_, why),) = play(scenario, lease)
    assert ("not sent again within" in why) is bool(lease)


def test_another_size_than_before_is_refused():
    """Memory is there for the first one, and the rank has heard of that."""

    async def scenario(table, rank):
        await table.begin(head())
        table.break_off(head())
        with pytest.raises(OSError, match="of 8 bytes as before, got 9"):
            await table.begin(head(nbytes=9))

    play(scenario)


def test_a_client_gives_up_with_its_reason():
    """Once; what it began is broken off, what was whole stays."""

    async def scenario(table, rank):
        await table.begin(head(1))
        table.break_off(head(1))
        for ticket in (1, 2, 2):
            await table.give_up(head(ticket, error="Ctrl-C"))
        await table.begin(head(3))
        table.complete(head(3))
        await table.give_up(head(3, error="Ctrl-C"))

    assert play(scenario) == [(1, "Ctrl-C"), (2, "Ctrl-C")]


def test_those_of_a_program_that_is_gone_are_given_up():
    """All that are under way, and whatever a rank waits for beyond them."""

    async def scenario(table, rank):
        for ticket in (1, 2):
            await table.begin(head(ticket))
            table.break_off(head(ticket))
        await table.abandon("gone")
        table.abandon_unseen(2, 9, "gone too")

    assert play(scenario) == [(1, "gone"), (2, "gone"), (9, "gone too")]
