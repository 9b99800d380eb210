"""Arrays that are cut, carried again, given up, confirmed, and that come twice."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from disco_client.arrays.shared_memory import allocate
from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_server.ipc.framing import FrameReader
from disco_server.worker import pending_arrays, tasks
from disco_server.worker.pending_arrays import PendingArrays
from disco_server.worker.tasks import end_task

pytestmark = pytest.mark.usefixtures("no_memory_left")

WORKER = 2


class Rank:
    """One that offers arrays, and keeps what it is told: of a ticket, or of its own memory."""

    def __init__(self):
        self.told = []
        self.got_back = 0

    def send(self, kind, told, fd):
        if fd is not None:
            fd.close()
        if kind == EnvelopeKind.ARRAY_BACK:
            self.got_back += 1
        else:
            self.told.append((told.ticket, told.error or told.there))

    def say(self, table, kind, ticket, *, there=8, error="", fd=None):
        """Tells the table about an array of eight bytes."""
        told = controller_pb2.Transfer(ticket=ticket, nbytes=8, there=there, error=error)
        reader = FrameReader()
        if fd is not None:
            reader.fds.append(fd)
        envelope = EncodedEnvelope(kind=kind, payload=told.SerializeToString())
        table.receive(WORKER, envelope, reader)

    def offer(self, table, ticket, *, there=8):
        self.say(table, EnvelopeKind.ARRAY_OUT, ticket, there=there, fd=allocate(8))


def play(scenario, lease=60.0, max_bytes=100):
    """Runs a scenario with an empty table; returns the rank."""
    rank = Rank()

    async def run():
        async with asyncio.timeout(20):
            table = PendingArrays([WORKER], rank.send, lease, max_bytes)
            try:
                await scenario(table, rank)
            finally:
                table.close()

    asyncio.run(run())
    return rank


def head(ticket=1, nbytes=8, error=""):
    return controller_pb2.Transfer(ticket=ticket, worker=WORKER, nbytes=nbytes, error=error)


async def cut(transfer, **options):
    """A transfer whose connection breaks in the midst; returns its array."""
    with contextlib.suppress(ConnectionError):
        async with transfer(**options) as array:
            raise ConnectionError
    return array


async def upload(table, ticket=1):
    """All of an array; whether it was wanted."""
    async with table.upload(head(ticket)) as array:
        if array is not None:
            array.grow(8)
    return array is not None


async def begun(transfer):
    """A task that is in the midst of a transfer."""
    inside = asyncio.Event()

    async def stay():
        async with transfer:
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(stay())
    await inside.wait()
    return task


# Uploads


def test_an_upload_that_broke_off_goes_on_in_its_memory():
    """The rank has heard of it, and hears only that all of it is there now."""

    async def scenario(table, rank):
        first = await cut(lambda: table.upload(head()))
        async with table.upload(head()) as again:
            assert again is first
            again.grow(8)

    assert play(scenario).told == [(1, 8)]


def test_an_upload_that_is_over_is_dropped():
    """Whether it was whole or given up; only so many are remembered."""

    async def scenario(table, rank):
        assert await upload(table, 1)
        await table.settle([head(2, error="Ctrl-C")], [])
        for ticket in (1, 2):
            assert not await upload(table, ticket)
        rank.told.clear()
        for ticket in range(3, 3 + pending_arrays._REMEMBERED):
            assert await upload(table, ticket)
        assert await upload(table, 2)
        assert len(table._over) == pending_arrays._REMEMBERED

    play(scenario)


@pytest.mark.parametrize("kind", ["upload", "download"])
def test_a_client_that_comes_again_takes_the_place_of_its_former_self(kind):
    """Whose connection may look whole from here; one task at a time holds an array."""

    async def scenario(table, rank):
        rank.offer(table, 1)
        transfer = getattr(table, kind)
        former = await begun(transfer(head()))
        async with transfer(head()):
            assert former.cancelled()
        assert not rank.told

    play(scenario)


@pytest.mark.parametrize("lease", [0.0, 0.01])
def test_an_upload_that_is_not_sent_again_in_time_will_not_come(monkeypatch, lease):
    """The rank hears why, and does not wait for ever."""
    monkeypatch.setattr(pending_arrays, "_MARGIN_S", 0.0)

    async def scenario(table, rank):
        await cut(lambda: table.upload(head()))
        while not rank.told:  # noqa: ASYNC110  (a rank tells nobody)
            await asyncio.sleep(0.001)

    ((_, why),) = play(scenario, lease).told
    assert ("not sent again within" in why) is bool(lease)


def test_memory_that_a_client_may_have_still_is_not_used_on():
    """An upload that cannot be resumed is given up where it breaks off."""

    async def scenario(table, rank):
        await cut(lambda: table.upload(head(), resumable=False))
        assert not await upload(table)

    assert play(scenario).told == [(1, "the upload was broken off")]


def test_an_upload_of_another_size_than_before_is_refused():
    """Memory is there for the first one, and the rank has heard of that."""

    async def scenario(table, rank):
        await cut(lambda: table.upload(head()))
        with pytest.raises(OSError, match="of 8 bytes as before, got 9"):
            async with table.upload(head(nbytes=9)):
                pass

    ((_, why),) = play(scenario).told
    assert "got 9" in why


def test_an_upload_that_is_too_large_is_refused():
    """The rank hears so as well, and the error says which setting would let it in."""

    async def scenario(table, rank):
        with pytest.raises(OSError, match=r"at most 100 bytes, .*--max-array-mib"):
            async with table.upload(head(nbytes=101)):
                pass

    ((_, why),) = play(scenario).told
    assert "at most 100 bytes" in why


def test_a_client_gives_uploads_up_with_its_reason():
    """Once; what it began is broken off, what was whole stays, other nodes' are ignored."""

    async def scenario(table, rank):
        await cut(lambda: table.upload(head(1)))
        given_up = [head(ticket, error="Ctrl-C") for ticket in (1, 2, 2)]
        elsewhere = controller_pb2.Transfer(ticket=4, worker=WORKER + 1, error="Ctrl-C")
        await table.settle([*given_up, elsewhere], [])
        await upload(table, 3)
        await table.settle([head(3, error="Ctrl-C")], [])

    assert play(scenario).told == [(1, "Ctrl-C"), (2, "Ctrl-C"), (3, 8)]


# Downloads


def test_a_download_that_broke_off_can_be_asked_for_again():
    """Until the client says that it has it; then there is none."""

    async def scenario(table, rank):
        rank.offer(table, 1)
        arrays = {await cut(lambda: table.download(head())) for _ in range(3)}
        assert len(arrays) == 1
        assert not rank.got_back
        table.confirm(head())
        assert rank.got_back == 1
        with pytest.raises(KeyError):
            await cut(lambda: table.download(head()))
        table.confirm(head())

    assert play(scenario).got_back == 1


def test_memory_that_is_read_is_not_given_back():
    """A client may have all of it before the last message has left."""

    async def scenario(table, rank):
        rank.offer(table, 1)
        async with table.download(head()):
            table.confirm(head())
            assert not rank.got_back
        assert rank.got_back == 1

    play(scenario)


@pytest.mark.parametrize("resumable", [True, False])
def test_what_is_not_asked_for_again_is_given_back(resumable):
    """Neither what its rank could not fill, nor what the client cannot ask for twice."""

    async def scenario(table, rank):
        rank.offer(table, 1, there=4)
        async with table.download(head(), resumable=resumable) as array:
            assert not array.settled
            if resumable:
                rank.say(table, EnvelopeKind.ARRAY_MORE, 1, there=4, error="the device is lost")
        assert rank.got_back == 1

    play(scenario)


def test_a_download_that_no_client_comes_back_for_is_let_go():
    """After the lease; asking again stops the clock."""

    async def scenario(table, rank):
        for ticket in (1, 2):
            rank.offer(table, ticket)
            await cut(lambda ticket=ticket: table.download(head(ticket)))
        async with table.download(head(1)):
            while not rank.got_back:  # noqa: ASYNC110  (a rank tells nobody)
                await asyncio.sleep(0.001)
        assert rank.got_back == 1

    play(scenario, lease=0.01)


def test_a_rank_that_ends_breaks_off_what_it_was_copying():
    """Whoever reads it learns which worker it was."""

    async def scenario(table, rank):
        rank.offer(table, 1, there=4)
        async with table.download(head()) as array:
            table.rank_ended(WORKER)
            with pytest.raises(OSError, match=f"worker {WORKER} ended"):
                array.reaches(8)

    play(scenario)


# Both


def test_those_of_a_program_that_is_gone_are_given_up():
    """All that are under way or offered, and whatever a rank waits for beyond them."""

    async def scenario(table, rank):
        for ticket in (1, 2):
            await cut(lambda ticket=ticket: table.upload(head(ticket)))
            rank.offer(table, ticket)
        reading = await begun(table.download(head(1)))
        await table.abandon(9)
        assert reading.cancelled()
        gone = "the program that sent it is gone"
        assert rank.told == [(1, gone), (2, gone), (9, gone)]
        assert rank.got_back == 2

    play(scenario)


def test_the_end_lets_go_of_everything():
    """Memory that ranks fill goes back to them; other descriptors are closed."""

    async def scenario(table, rank):
        for ticket in (1, 2):
            rank.offer(table, ticket)
        await cut(lambda: table.download(head(1)))
        await cut(lambda: table.upload(head(3)))
        rank.say(table, EnvelopeKind.ARRAY_BACK, 4, fd=allocate(8))

    assert play(scenario).got_back == 1


def test_a_task_is_ended_also_if_it_keeps_a_cancellation_to_itself(monkeypatch):
    """It is asked again and again; one that is over is left alone."""
    monkeypatch.setattr(tasks, "_AGAIN_S", 0.01)
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
