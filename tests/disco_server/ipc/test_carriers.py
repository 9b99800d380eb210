"""A connection of frames between two daemons: in order, both ways, never silent for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.ipc import carriers
from disco_server.ipc.carriers import FramedCarrier, scratch
from disco_server.ipc.event_loop import RunLoop
from disco_server.ipc.outbox import Outbox

LIMIT_S = 20.0


@contextlib.asynccontextmanager
async def connected(**options):
    """A carrier, and the socket at its other end, which does not block."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        _, carrier = await loop.create_connection(
            lambda: FramedCarrier(scratch(), **options), *server.getsockname()
        )
        peer, _ = server.accept()
    with peer:
        peer.setblocking(False)
        yield carrier, peer
        carrier.drop()


def drive(test):
    """Runs an asynchronous test on a daemon's loop, within a limit."""

    async def limited():
        async with asyncio.timeout(LIMIT_S):
            await test()

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        runner.run(limited())


async def read(peer, count):
    """So many bytes that have come to the other end."""
    loop, came = asyncio.get_running_loop(), b""
    while len(came) < count:
        came += await loop.sock_recv(peer, 1 << 20)
    return came


def numbered(count, size=0):
    return [envelope(EnvelopeKind.BATCH, bytes(size), first_seq=n + 1) for n in range(count)]


def test_messages_come_in_order_however_they_are_cut():
    """Byte by byte, several at a time, and larger than what is read at once."""

    async def run():
        loop = asyncio.get_running_loop()
        messages = numbered(3) + numbered(2, 1 << 20) + numbered(20)
        raw = b"".join(map(frame, messages))
        async with connected() as (carrier, peer):
            came = []

            def take(message):
                came.append(message)
                return len(came) == len(messages) or None

            receiving = asyncio.ensure_future(carrier.receive(take))
            for at in range(100):
                await loop.sock_sendall(peer, raw[at : at + 1])
            await loop.sock_sendall(peer, raw[100:])
            assert await receiving is True
            assert came == messages

    drive(run)


def test_a_handler_that_has_found_something_leaves_the_rest_to_the_next():
    """As the first message of a stream is read, and what follows later."""

    async def run():
        first, second, third = numbered(3)
        async with connected() as (carrier, peer):
            peer.send(frame(first) + frame(second) + frame(third))
            assert await carrier.receive(bytes) == first
            carrier.unread(first)
            came = []
            peer.shutdown(socket.SHUT_WR)
            assert await carrier.receive(came.append) is None
            assert came == [first, second, third]

    drive(run)


def test_what_a_handler_raises_is_raised_where_it_is_received():
    """So that a stream ends with its reason."""

    async def run():
        def refuse(_message):
            msg = "not this"
            raise ConnectionError(msg)

        async with connected() as (carrier, peer):
            peer.send(frame(b"x"))
            with pytest.raises(ConnectionError, match="not this"):
                await carrier.receive(refuse)

    drive(run)


def test_a_frame_beyond_the_limit_ends_the_connection():
    """Before its bytes have come: nobody makes a peer keep them."""

    async def run():
        async with connected(limit=64) as (carrier, peer):
            peer.send((65).to_bytes(4, "little"))
            with pytest.raises(ConnectionError, match="at most 64 bytes, got 65"):
                await carrier.receive(bytes)

    drive(run)


def test_what_is_posted_in_one_turn_leaves_at_its_end():
    """All of it at once, and none of it before: a write for each would cost more."""

    async def run():
        messages = numbered(5)
        async with connected() as (carrier, peer):
            outbox = Outbox()
            sending = asyncio.ensure_future(carrier.send_from(outbox))
            await asyncio.sleep(0)
            for message in messages:
                outbox.post(message)
            with pytest.raises(BlockingIOError):
                peer.recv(1)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert peer.recv(1 << 20) == b"".join(map(frame, messages))
            outbox.close(b"farewell")
            await sending
            assert await read(peer, 12) == frame(b"farewell")

    drive(run)


def test_what_a_slow_peer_has_not_read_waits_where_sessions_take_turns():
    """Little is written ahead; when the peer reads, all of it comes."""

    async def run():
        messages = numbered(100, 64 << 10)
        raw = b"".join(map(frame, messages))
        async with connected() as (carrier, peer):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
            outbox = Outbox()
            sending = asyncio.ensure_future(carrier.send_from(outbox))
            for message in messages:
                outbox.post(message)
            waiting = -1
            while waiting != outbox.nbytes:
                waiting = outbox.nbytes
                await asyncio.sleep(0.05)
            assert waiting > len(raw) / 2
            outbox.close()
            assert await read(peer, len(raw)) == raw
            await sending

    drive(run)


def test_a_silent_peer_is_asked_and_stays_while_it_answers(monkeypatch):
    """An empty frame asks, and an empty frame answers; nobody who receives sees either."""
    monkeypatch.setattr(carriers, "ASK_EVERY_S", 0.1)
    monkeypatch.setattr(carriers, "SILENCE_S", 0.3)

    async def run():
        async with connected() as (carrier, peer):
            carrier.admit(())
            receiving = asyncio.ensure_future(carrier.receive(bytes))
            for _ in range(10):
                assert set(await read(peer, 4)) == {0}
                peer.send(frame(b""))
            peer.send(frame(b"x"))
            assert await receiving == b"x"
            assert await carrier.receive(bytes) is None  # it answers no more, and is left

    drive(run)


def test_a_peer_that_is_asked_answers():
    """Once it is admitted, between its other messages; the first empty frame says that it is."""

    async def run():
        async with connected() as (carrier, peer):
            peer.send(frame(b""))
            await carrier.show_permit(b"secret")
            assert await read(peer, 10) == frame(b"secret")
            receiving = asyncio.ensure_future(carrier.receive(bytes))
            peer.send(frame(b""))
            assert await read(peer, 4) == frame(b"")
            peer.send(frame(b"x"))
            assert await receiving == b"x"

    drive(run)


def test_a_connection_that_breaks_ends_sending_and_receiving():
    """Whatever waits, and whoever comes later."""

    async def run():
        async with connected() as (carrier, peer):
            outbox = Outbox()
            sending = asyncio.ensure_future(carrier.send_from(outbox))
            receiving = asyncio.ensure_future(carrier.receive(bytes))
            await asyncio.sleep(0)
            peer.close()
            assert await receiving is None
            await sending
            assert await carrier.receive(bytes) is None
            await carrier.send_from(Outbox())

    drive(run)
