"""What waits to be written to a stream: in order, never blocking, bounded where it may be."""

from __future__ import annotations

import asyncio

import pytest

from disco_client.wire.codec import EnvelopeKind, envelope, envelopes_in
from disco_server.ipc.outbox import _JOINED_BYTES, _MAX_DROPPABLE_BYTES, Outbox


class Peer:
    """Takes what is written; slowly, if told so."""

    def __init__(self):
        self.messages, self.came = [], []
        self.open = asyncio.Event()
        self.open.set()
        self.wrote = asyncio.Condition()

    async def write(self, message):
        await self.open.wait()
        async with self.wrote:
            came = [received.payload for _, received in envelopes_in(message)]
            self.messages.append(came)
            self.came += came
            self.wrote.notify_all()

    async def until(self, condition):
        async with self.wrote:
            await self.wrote.wait_for(condition)


def said(payload):
    """An envelope of which :attr:`Peer.came` gets the payload."""
    return envelope(EnvelopeKind.REPLY, payload)


def drive(test):
    """Runs an asynchronous test within a limit."""

    async def limited():
        async with asyncio.timeout(20):
            await test()

    asyncio.run(limited())


def test_what_was_posted_is_written_in_order_before_the_end():
    """Before and after the writer started, and after it slept; closing loses nothing."""

    async def run():
        outbox, peer = Outbox(), Peer()
        assert all(outbox.post(said(b"%d" % i)) for i in range(3))
        writing = asyncio.ensure_future(outbox.run(peer.write))
        await peer.until(lambda: len(peer.came) == 3)
        for _ in range(5):  # it sleeps by now
            await asyncio.sleep(0)
        assert all(outbox.post(said(b"%d" % i)) for i in range(3, 6))
        outbox.close()
        await writing
        assert peer.came == [b"%d" % i for i in range(6)]

    drive(run)


def test_nothing_is_taken_after_the_close():
    """The one who posts is told, and closing twice is no error."""

    async def run():
        outbox, peer = Outbox(), Peer()
        outbox.close()
        outbox.close()
        assert not outbox.post(said(b"late"))
        await outbox.run(peer.write)
        assert peer.came == []

    drive(run)


def test_a_sleeping_writer_is_woken_by_the_close_alone():
    """A stream with nothing to say ends at once."""

    async def run():
        outbox, peer = Outbox(), Peer()
        writing = asyncio.ensure_future(outbox.run(peer.write))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not writing.done()
        outbox.close()
        await writing

    drive(run)


def test_a_slow_peer_loses_only_what_may_be_dropped():
    """Everything else waits, and once the peer has caught up nothing is dropped any more."""

    async def run():
        outbox, peer = Outbox(), Peer()
        peer.open.clear()
        block = bytes(1 << 20)
        writing = asyncio.ensure_future(outbox.run(peer.write))
        while outbox.post(said(block), droppable=True):
            pass
        assert outbox.post(said(b"kept")), "what somebody waits for is always taken"
        assert not outbox.post(said(b"dropped"), droppable=True)
        peer.open.set()
        await peer.until(lambda: b"kept" in peer.came)
        assert outbox.post(said(b"taken again"), droppable=True)
        outbox.close()
        await writing
        assert peer.came[-2:] == [b"kept", b"taken again"]
        assert len(peer.came) - 2 <= _MAX_DROPPABLE_BYTES // len(block) + 2

    drive(run)


def test_a_write_that_fails_ends_the_writer_with_its_error():
    """Whoever owns the stream hears of it; nothing is swallowed here."""

    async def run():
        outbox = Outbox()
        outbox.post(said(b"raw"))

        async def write(raw):
            raise ConnectionResetError(raw)

        with pytest.raises(ConnectionResetError):
            await outbox.run(write)

    drive(run)


def test_sessions_take_turns_by_what_they_send():
    """Who sends little does not wait behind who sends much; each keeps its order."""

    async def run():
        outbox, peer = Outbox(), Peer()
        bulk = [bytes([number]) * (256 << 10) for number in range(8)]
        for raw in bulk:
            outbox.post(said(raw), session=1)
        small = [b"%d" % number for number in range(100)]
        for raw in small:
            outbox.post(said(raw), session=2)
        outbox.post(said(b"lone"), session=3)
        await_all = asyncio.ensure_future(outbox.run(peer.write))
        outbox.close(said(b"farewell"))
        outbox.close()
        await await_all
        came = peer.came
        assert [raw for raw in came if len(raw) > 10] == bulk
        assert [raw for raw in came if raw in small] == small
        assert came.index(b"lone") <= len(small) + 1
        assert came.index(small[-1]) < came.index(bulk[1])
        assert came[-1] == b"farewell"
        assert outbox.nbytes == 0

    drive(run)


def test_bulk_of_equal_sessions_leaves_in_equal_parts():
    """Whatever the sizes of their messages are."""

    async def run():
        outbox, peer = Outbox(), Peer()
        for _ in range(256):
            outbox.post(said(b"a" * (16 << 10)), session=1)
        for _ in range(8):
            outbox.post(said(b"b" * (512 << 10)), session=2)
        outbox.close()
        await outbox.run(peer.write)
        sent, furthest = {b"a": 0, b"b": 0}, 0
        for raw in peer.came[:-1]:
            sent[raw[:1]] += len(raw)
            if all(size < 4 << 20 for size in sent.values()):
                furthest = max(furthest, abs(sent[b"a"] - sent[b"b"]))
        assert furthest <= 2 * (512 << 10)

    drive(run)


def test_what_may_be_dropped_is_judged_by_its_own_session():
    """The backlog of one does not cost another one its output."""

    async def run():
        outbox = Outbox()
        while outbox.post(said(bytes(1 << 20)), session=1, droppable=True):
            pass
        assert outbox.post(said(b"taken"), session=2, droppable=True)
        assert outbox.post(said(b"taken"), droppable=True)

    drive(run)


def test_what_waits_leaves_together():
    """In its order, as one message up to a limit; what is larger leaves alone."""

    async def run():
        outbox, peer = Outbox(), Peer()
        small = [b"%d" % number for number in range(100)]
        for number, payload in enumerate(small):
            outbox.post(said(payload), session=number % 3)
        outbox.post(said(bytes(2 * _JOINED_BYTES)))
        outbox.close(said(b"farewell"))
        await outbox.run(peer.write)
        sizes = [sum(map(len, came)) for came in peer.messages]
        assert max(size for size in sizes if size != 2 * _JOINED_BYTES) <= _JOINED_BYTES
        assert [bytes(2 * _JOINED_BYTES)] in peer.messages
        assert len(peer.messages) <= 4
        for first in range(3):
            assert [each for each in peer.came if each in small[first::3]] == small[first::3]

    drive(run)


def test_a_lone_message_is_not_kept_waiting():
    """A writer that sleeps writes it in the next turn of the loop."""

    async def run():
        outbox, came = Outbox(), []

        async def write(raw):
            came.append(raw)

        writing = asyncio.ensure_future(outbox.run(write))
        await asyncio.sleep(0)
        outbox.post(said(b"lone"))
        await asyncio.sleep(0)
        assert came == [said(b"lone")], "as it is, in no other envelope"
        outbox.close()
        await writing

    drive(run)
