"""Two streams of one array meet by ticket, and neither waits for one that cannot come."""

from __future__ import annotations

import asyncio

import pytest

from disco_server.controller.transfers import Transfers

KEY = (7, "up", 0, 1)


@pytest.fixture
def play():
    """Runs a scenario with an empty table of transfers, within a limit."""

    def run(scenario):
        async def limited():
            async with asyncio.timeout(20):
                await scenario(Transfers())

        asyncio.run(limited())

    return run


class Source:
    """A stream of numbered chunks that counts how many were asked for."""

    def __init__(self, count, error=None):
        self.asked = 0
        self._count, self._error = count, error

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.asked == self._count:
            raise self._error or StopAsyncIteration
        self.asked += 1
        return b"%d" % self.asked


async def begun(waiting):
    """Starts a call and lets it come as far as it gets by itself."""
    task = asyncio.ensure_future(waiting)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def collect(transfers, key=KEY):
    return [chunk async for chunk in transfers.take(key)]


@pytest.mark.parametrize("taker_first", [True, False])
def test_whoever_comes_first_waits_for_the_other(play, taker_first):
    """Every chunk arrives in order, the bringer hears when all are through, nothing stays."""

    async def scenario(transfers):
        calls = [transfers.bring(KEY, Source(3)), collect(transfers)]
        if taker_first:
            calls.reverse()
        first = await begun(calls[0])
        assert not first.done()
        second = await begun(calls[1])
        results = [await first, await second]
        assert [b"1", b"2", b"3"] in results
        assert not transfers._meetings

    play(scenario)


def test_the_receiver_sets_the_pace(play):
    """What it has not taken stays with the sender, so nothing piles up between them."""

    async def scenario(transfers):
        source = Source(1000)
        bringing = await begun(transfers.bring(KEY, source))
        taking = transfers.take(KEY)
        for number in (1, 2, 3):
            assert await anext(taking) == b"%d" % number
            assert source.asked == number
        assert not bringing.done()
        await taking.aclose()
        with pytest.raises(ConnectionError, match="receiver went away"):
            await bringing
        assert not transfers._meetings

    play(scenario)


def test_tickets_directions_and_workers_are_told_apart(play):
    """A key is all of it; another transfer under way is not disturbed."""

    async def scenario(transfers):
        keys = [(7, "up", 0, 1), (7, "down", 0, 1), (7, "up", 1, 1), (7, "up", 0, 2)]
        taking = [await begun(collect(transfers, key)) for key in keys]
        for count, (key, taker) in enumerate(zip(keys, taking, strict=True), 1):
            await transfers.bring(key, Source(count))
            assert len(await taker) == count

    play(scenario)


def test_a_ticket_serves_once_at_a_time(play):
    """A second bringer is refused, and the first is none the worse for it."""

    async def scenario(transfers):
        bringing = await begun(transfers.bring(KEY, Source(2)))
        with pytest.raises(ValueError, match="ticket 1 to be used once"):
            await transfers.bring(KEY, Source(5))
        assert await collect(transfers) == [b"1", b"2"]
        await bringing

    play(scenario)


def test_the_end_of_a_session_ends_its_transfers_on_both_sides(play):
    """Nobody waits for an array of a session that is over; other sessions' go on."""

    async def scenario(transfers):
        waiting = [
            await begun(transfers.bring(KEY, Source(1))),
            await begun(collect(transfers, (7, "down", 0, 1))),
        ]
        other = await begun(collect(transfers, (8, "up", 0, 1)))
        transfers.end_session(7)
        for wait in waiting:
            with pytest.raises(ConnectionError, match="the session ended"):
                await wait
        await transfers.bring((8, "up", 0, 1), Source(1))
        assert await other == [b"1"]
        assert not transfers._meetings

    play(scenario)


def test_a_source_that_breaks_off_fails_both_sides(play):
    """The receiver gets the source's own error and never takes a part for the whole."""

    async def scenario(transfers):
        bringing = await begun(transfers.bring(KEY, Source(2, OSError("broken off"))))
        with pytest.raises(OSError, match="broken off"):
            await collect(transfers)
        with pytest.raises(ConnectionError):
            await bringing
        assert not transfers._meetings

    play(scenario)


@pytest.mark.parametrize("side", ["bringer", "taker"])
def test_a_side_that_gives_up_while_alone_leaves_nothing(play, side):
    """The ticket can be used again, by both of them."""

    async def scenario(transfers):
        alone = transfers.bring(KEY, Source(1)) if side == "bringer" else collect(transfers)
        waiting = await begun(alone)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not transfers._meetings
        bringing = await begun(transfers.bring(KEY, Source(2)))
        assert await collect(transfers) == [b"1", b"2"]
        await bringing

    play(scenario)
