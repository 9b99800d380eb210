"""Two streams of one array meet by ticket, and neither waits for one that cannot come."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import chunk_data, encode_chunk, encode_end, encode_stream
from disco_client.wire.codec import EnvelopeKind
from disco_server.controller.relay import NodeRefusedTransfer, Transfers
from fakes import begun

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
    """A stream of numbered chunks of a byte that counts how many were asked for."""

    def __init__(self, count, last=None, *, wait=False):
        self.asked = 0
        self._count, self._last, self._wait = count, last, wait

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.asked == self._count:
            if self._wait:
                await asyncio.Event().wait()
            last, self._last = self._last, None
            if last is None:
                raise StopAsyncIteration
            return last
        self.asked += 1
        return chunk(self.asked)


class Sink:
    """The other end of what is passed on."""

    def __init__(self):
        self.came = []

    async def __call__(self, chunk):
        self.came.append(chunk)
        await asyncio.sleep(0)


async def fetch(transfers, sink, key=KEY):
    """What a client downloads: it opens the meeting, and the node brings the array."""
    with transfers.opened(key, "one") as meeting:
        await meeting.carry(sink)
        meeting.done.set_result(None)


def chunk(number):
    return encode_chunk(memoryview(b"%d" % number))


def test_the_client_waits_for_the_node(play):
    """Every chunk arrives in order, the bringer hears when all are through, nothing stays."""

    async def scenario(transfers):
        sink = Sink()
        fetching = await begun(fetch(transfers, sink))
        assert not fetching.done()
        await transfers.bring(KEY, Source(3), 3)
        await fetching
        assert sink.came == [chunk(1), chunk(2), chunk(3)]
        assert not transfers._relays

    play(scenario)


def test_a_node_comes_in_vain_where_no_client_waits(play):
    """It hears so at once: the client will ask for it anew, if it still lives."""

    async def scenario(transfers):
        with pytest.raises(ConnectionError, match="nobody waits for ticket 1"):
            await transfers.bring(KEY, Source(3), 3)
        with pytest.raises(ConnectionError, match="nobody waits for ticket 1"):
            transfers.join(KEY)

    play(scenario)


def test_the_receiver_sets_the_pace(play):
    """What it has not taken stays with the sender, so nothing piles up between them."""

    async def scenario(transfers):
        source, may_go_on = Source(1000), asyncio.Semaphore(0)
        fetching = await begun(fetch(transfers, lambda _: may_go_on.acquire()))
        bringing = await begun(transfers.bring(KEY, source, 1000))
        for number in (1, 2, 3):
            assert source.asked == number
            may_go_on.release()
            await begun(asyncio.sleep(0))
        fetching.cancel()
        with pytest.raises(ConnectionError, match="the client went away"):
            await bringing
        assert not transfers._relays

    play(scenario)


def test_tickets_directions_and_workers_are_told_apart(play):
    """A key is all of it; another transfer under way is not disturbed."""

    async def scenario(transfers):
        keys = [(7, "up", 0, 1), (7, "down", 0, 1), (7, "up", 1, 1), (7, "up", 0, 2)]
        sinks = [Sink() for _ in keys]
        for key, sink in zip(keys, sinks, strict=True):
            await begun(fetch(transfers, sink, key))
        for count, (key, sink) in enumerate(zip(keys, sinks, strict=True), 1):
            await transfers.bring(key, Source(count), count)
            assert len(sink.came) == count

    play(scenario)


def test_a_client_that_begins_anew_takes_the_place_of_its_former_self(play):
    """Whose connection may be broken for it, and not yet for the controller."""

    async def scenario(transfers):
        first, second = Sink(), Sink()
        stale = await begun(fetch(transfers, first))
        old = await begun(transfers.bring(KEY, Source(0, wait=True), 3))
        fetching = await begun(fetch(transfers, second))
        for call in (stale, old):
            with pytest.raises(ConnectionError, match="begun this transfer anew"):
                await call
        await transfers.bring(KEY, Source(3), 3)
        await fetching
        assert len(second.came) == 3
        assert not transfers._relays

    play(scenario)


def test_an_upload_is_done_when_the_node_says_so(play):
    """What was passed on may be lost on the way; and the node may refuse what it got."""

    async def scenario(transfers):
        for error in ("", "no room"):
            with transfers.opened(KEY, "one", 3) as meeting:
                meeting.source.set_result(Source(3))
                sink = Sink()
                await transfers.join(KEY).carry(sink)
                assert len(sink.came) == 3
                assert not meeting.done.done()
                transfers.answer(KEY, error)
                transfers.answer((7, "up", 0, 9), "")  # nobody waits for that
                if error:
                    with pytest.raises(NodeRefusedTransfer, match=error):
                        await meeting.done
                else:
                    await meeting.done

    play(scenario)


@pytest.mark.parametrize("how", ["session", "node"])
def test_the_end_of_a_session_or_a_node_ends_its_transfers_on_both_sides(play, how):
    """Nobody waits for an array that cannot come; other sessions and nodes go on."""
    ends = {
        "session": (lambda transfers: transfers.end_session(7), "the session ended"),
        "node": (lambda transfers: transfers.break_off("one"), "the worker's node broke"),
    }
    end, why = ends[how]

    async def scenario(transfers):
        waiting = [await begun(fetch(transfers, Sink(), (7, "down", 0, 1)))]
        waiting.append(await begun(transfers.bring((7, "down", 0, 1), Source(0, wait=True), 3)))
        waiting.append(await begun(fetch(transfers, Sink(), (7, "down", 0, 2))))
        with transfers.opened((8, "down", 0, 1), "two") as other:
            end(transfers)
            for wait in waiting:
                with pytest.raises(ConnectionError, match=why):
                    await wait
            assert not other.done.done()
        assert not transfers._relays

    play(scenario)


def test_a_source_that_ends_early_fails_both_sides(play):
    """As gRPC shows one that was cut: a part is never taken for the whole."""

    async def scenario(transfers):
        fetching = await begun(fetch(transfers, Sink()))
        for call in (transfers.bring(KEY, Source(2), 3), fetching):
            with pytest.raises(ConnectionError, match="of 3 bytes, got 2"):
                await call
        assert not transfers._relays

    play(scenario)


def test_a_source_that_says_why_it_ends_is_passed_on_whole(play):
    """The client learns the reason in the place of the next chunk."""

    async def scenario(transfers):
        sink = Sink()
        fetching = await begun(fetch(transfers, sink))
        await transfers.bring(KEY, Source(2, last=encode_end("the GPU is lost")), 3)
        await fetching
        assert len(sink.came) == 3

    play(scenario)


def test_an_array_is_passed_on_by_one_alone(play):
    """Two that shared a stream would each get a part."""

    async def scenario(transfers):
        with transfers.opened(KEY, "one", 3) as meeting:
            meeting.source.set_result(Source(0, wait=True))
            first = await begun(meeting.carry(Sink()))
            for call in (meeting.carry(Sink()), first):
                with pytest.raises(ConnectionError, match="the node has begun"):
                    await call

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
        assert await two.next(EnvelopeKind.FETCH, controller_pb2.Transfer) == (session, wanted)
        came = await chunks(rig.collect("NodeService/Fetch", wanted))
        assert b"".join(came) == data
        assert len(came) > 1
        assert not upload.done()  # before the node has it
        await two.send(EnvelopeKind.FETCH, head(ready, transfer_key=b""), session=session)
        assert (await upload).nbytes == len(data)
        download = asyncio.ensure_future(chunks(rig.collect("ArrayService/Download", wanted)))
        assert await two.next(EnvelopeKind.PUSH, controller_pb2.Transfer) == (session, wanted)
        result = await rig.bring("NodeService/Push", array(wanted, data[::-1]))
        assert result.nbytes == len(data)
        assert b"".join(await download) == data[::-1]
        assert not rig.hub.transfers._relays

    serve(scenario)


def test_arrays_are_for_those_who_know_the_session_s_key(serve):
    """A wrong key and an unknown session look the same; a worker that is not there does not."""

    async def scenario(rig):
        _, _, ready = await rig.session(await rig.node("one"))
        rig.hub.settled_at = 0.0  # no node is awaited that could tell of session 1
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
        get = node_pb2.GetRequest(key="id", timeout_s=60)
        await node.send(EnvelopeKind.GET_KEY, get, session=session, worker=0)
        waiting = [
            asyncio.ensure_future(rig.bring("ArrayService/Upload", array(head(ready)))),
            asyncio.ensure_future(rig.collect("ArrayService/Download", head(ready)).read()),
        ]
        await rig.until(lambda: len(rig.hub.transfers._relays) == 2)
        await rig.until(lambda: rig.hub.exchanges._open[session]._waiting)
        await client.send(EnvelopeKind.CLOSE)
        for call in waiting:
            assert (await rig.status(call))[0] is grpc.StatusCode.ABORTED
        told = [rig.envelope(await node.raw()) for _ in range(4)]
        (key,) = (each.payload for each in told if each.kind == EnvelopeKind.KEY)
        assert node_pb2.KeyAnswer.FromString(key).error == "closed"

    serve(scenario)


def test_an_array_waits_for_a_node_that_is_away_for_a_moment(serve):
    """Also one that was on its way: its client is told to begin anew, and then waits."""

    async def scenario(rig):
        node = await rig.node("one", 1, incarnation=5)
        client = await rig.client(num_workers=1)
        _, start = await node.start_ranks()
        session, ready = await client.next(EnvelopeKind.READY, controller_pb2.SessionReady)
        wanted = head(ready, worker=0)
        under_way = asyncio.ensure_future(rig.bring("ArrayService/Upload", array(wanted)))
        await node.next(EnvelopeKind.FETCH)
        node.call.cancel()
        code, text = await rig.status(under_way)
        assert code is grpc.StatusCode.ABORTED
        assert "the worker's node broke" in text
        await rig.until(lambda: not rig.hub.links)
        again = asyncio.ensure_future(rig.bring("ArrayService/Upload", array(wanted)))
        ranks = [controller_pb2.RankInfo(worker=0, pid=100, device="cpu")]
        runs = node_pb2.RunningSession(session=session, start=start, ranks=ranks)
        back = await rig.node("one", 1, incarnation=5, sessions=[runs])
        await back.next(EnvelopeKind.FETCH)
        await back.send(EnvelopeKind.FETCH, head(ready, worker=0), session=session)
        assert (await again).nbytes == 8

    serve(scenario)


def test_a_node_that_cannot_take_an_array_says_why(serve):
    """To the client, whose call ends with it; it is not tried again."""

    async def scenario(rig):
        node = await rig.node("one")
        _, session, ready = await rig.session(node)
        upload = asyncio.ensure_future(rig.bring("ArrayService/Upload", array(head(ready))))
        await node.next(EnvelopeKind.FETCH)
        await node.send(EnvelopeKind.FETCH, head(ready, error="no room here"), session=session)
        assert await rig.status(upload) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no room here")

    serve(scenario)
