"""Two streams of one array meet by ticket, and neither waits for one that cannot come."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import chunk_data, encode_stream
from disco_client.wire.codec import Kind
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


# Through gRPC -------------------------------------------------------------------------


def head(ready, **fields):
    usual = {"session": ready.session, "transfer_key": ready.transfer_key, "ticket": 5}
    return controller_pb2.Transfer(**{**usual, "worker": 1, "nbytes": 8, **fields})


async def array(transfer, data=b""):
    for raw in encode_stream(transfer, memoryview(data)):
        yield raw


async def chunks(call):
    return [bytes(chunk_data(raw)) async for raw in call]


def test_arrays_pass_between_client_and_node_by_their_ticket(serve):
    """Each way through the node of the worker that is meant; no byte more or less."""

    async def scenario(rig):
        one, two = await rig.node("one", 1), await rig.node("two", 1)
        _, session, ready = await rig.session(one, two)
        data = bytes(range(256)) * 12_000
        wanted = head(ready, nbytes=len(data))
        upload = asyncio.ensure_future(rig.bring("ArrayService/Upload", array(wanted, data)))
        assert await two.next(Kind.FETCH, controller_pb2.Transfer) == (session, wanted)
        came = await chunks(rig.collect("NodeService/Fetch", wanted))
        assert b"".join(came) == data
        assert len(came) > 1
        assert (await upload).nbytes == len(data)
        download = asyncio.ensure_future(chunks(rig.collect("ArrayService/Download", wanted)))
        assert await two.next(Kind.PUSH, controller_pb2.Transfer) == (session, wanted)
        result = await rig.bring("NodeService/Push", array(wanted, data[::-1]))
        assert result.nbytes == len(data)
        assert b"".join(await download) == data[::-1]
        assert not rig.hub.transfers._meetings

    serve(scenario)


def test_arrays_are_for_those_who_know_the_session_s_key(serve):
    """A wrong key and an unknown session look the same; a worker that is not there does not."""

    async def scenario(rig):
        _, _, ready = await rig.session(await rig.node("one"))
        for wrong in (head(ready, transfer_key=b"x" * 16), head(ready, session=1)):
            for call in (
                rig.bring("ArrayService/Upload", array(wrong)),
                rig.bring("NodeService/Push", array(wrong)),
                rig.collect("ArrayService/Download", wrong).read(),
                rig.collect("NodeService/Fetch", wrong).read(),
            ):
                code, text = await rig.status(call)
                assert (code, text) == (
                    grpc.StatusCode.NOT_FOUND,
                    "no running session of that id and key",
                )
        nobody = rig.bring("ArrayService/Upload", array(head(ready, worker=2)))
        code, text = await rig.status(nobody)
        assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "the session has no worker 2")

    serve(scenario)


def test_an_upload_that_does_not_name_itself_is_refused(serve):
    """Neither data without a head, nor nothing at all, nor bytes of another kind."""

    async def scenario(rig):
        async def only(*raws):
            for raw in raws:
                yield raw

        headless = controller_pb2.ArrayChunk(data=b"x").SerializeToString()
        for raws in ([headless], [], [b"\xff\xff"]):
            call = rig.bring("ArrayService/Upload", only(*raws))
            assert (await rig.status(call))[0] is grpc.StatusCode.INVALID_ARGUMENT

    serve(scenario)


def test_the_end_of_a_session_ends_its_arrays_and_its_exchange(serve):
    """Whoever waits in either hears of it at once."""

    async def scenario(rig):
        node = await rig.node("one")
        client, session, ready = await rig.session(node)
        get = node_pb2.GetRequest(session=session, node_key=node.key, key="id", timeout_s=60)
        waiting = [
            asyncio.ensure_future(rig.bring("ArrayService/Upload", array(head(ready)))),
            asyncio.ensure_future(rig.collect("NodeService/Fetch", head(ready, ticket=6)).read()),
            asyncio.ensure_future(rig.ask("RendezvousService/Get", get, node_pb2.GetResult)),
        ]
        await rig.until(lambda: len(rig.hub.transfers._meetings) == 2)
        await rig.until(lambda: rig.hub.exchanges._open[session]._waiting)
        await client.send(Kind.CLOSE)
        for call in waiting:
            assert (await rig.status(call))[0] is grpc.StatusCode.ABORTED

    serve(scenario)
