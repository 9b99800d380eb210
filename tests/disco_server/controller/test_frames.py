"""The port for frames: whoever is admitted, once and for what it named, and nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket

import pytest

from disco_client.pb import controller_pb2
from disco_client.wire.framing import frame
from disco_server.controller import frames
from disco_server.controller.auth import caller
from disco_server.controller.frames import FrameListener, Permits
from disco_server.core.access import EVERYBODY, Identity, Role
from disco_server.ipc.event_loop import RunLoop
from disco_server.ipc.grpc_server import CannotListen
from disco_server.observe import acceptor, logs
from disco_server.security import Guard
from disco_server.settings import Address

LIMIT_S = 20.0
FIRST = b"the first message"
ALICE = Identity(Role.CLIENT, "alice", "token")


class Rig:
    """A listener whose handler says who it serves, and gives back what comes."""

    def __init__(self, listener):
        self.listener = listener
        self.loop = asyncio.get_running_loop()
        self._opened = contextlib.ExitStack()

    async def serve(self, carrier):
        await carrier.send(str(caller()).encode())
        while (message := await carrier.receive(bytes)) is not None:
            await carrier.send(message)

    def admitted(self, first=FIRST, who=ALICE):
        """The secret of one connection."""
        request = controller_pb2.PermitRequest(first=hashlib.sha256(first).digest())
        return self.listener.admit(self.serve, request, who, ()).secret

    async def dial(self, say=b""):
        sock = self._opened.enter_context(socket.socket())
        sock.setblocking(False)
        await self.loop.sock_connect(sock, ("127.0.0.1", self.listener.port))
        await self.loop.sock_sendall(sock, say)
        return sock

    async def read(self, sock, count):
        came = b""
        while len(came) < count and (more := await self.loop.sock_recv(sock, count - len(came))):
            came += more
        return came

    async def is_closed(self, sock):
        """Whether the other end closes a connection without a word."""
        try:
            return await self.loop.sock_recv(sock, 1) == b""
        except ConnectionResetError:
            return True

    def close(self):
        self._opened.close()


def play(scenario, port=0, most=64):
    async def run():
        async with asyncio.timeout(LIMIT_S):
            listener = FrameListener(Address("127.0.0.1", 1), port, Guard(), most)
            listener.open()
            rig = Rig(listener)
            try:
                await scenario(rig)
            finally:
                rig.close()
                await listener.close(None)

    with asyncio.Runner(loop_factory=RunLoop) as runner:
        runner.run(run())


@pytest.fixture
def refusals(monkeypatch):
    """What is written down of whoever was refused."""
    written = []
    monkeypatch.setattr(logs.refusals, "record", lambda event, **f: written.append((event, f)))
    return written


def test_whoever_is_admitted_is_served_as_who_asked():
    """The identity is that of the request; the secret alone opens the connection."""

    async def scenario(rig):
        sock = await rig.dial(frame(rig.admitted()))
        assert await rig.read(sock, 4) == frame(b"")
        await rig.loop.sock_sendall(sock, frame(FIRST) + frame(b"more"))
        expected = frame(b"client alice") + frame(FIRST) + frame(b"more")
        assert await rig.read(sock, len(expected)) == expected

    play(scenario)


def test_a_secret_is_good_for_one_connection(refusals):
    """The second one is closed, and the first one served on."""

    async def scenario(rig):
        secret = rig.admitted()
        served = await rig.dial(frame(secret))
        assert await rig.read(served, 4) == frame(b"")
        assert await rig.is_closed(await rig.dial(frame(secret)))
        await rig.loop.sock_sendall(served, frame(FIRST))
        assert await rig.read(served, 16) == frame(b"client alice")

    play(scenario)
    ((event, fields),) = refusals
    assert (event, fields["what"]) == ("refused", "frames")
    assert "unknown, used or too old" in fields["outcome"]
    assert fields["peer"].startswith("ipv4:127.0.0.1:")


def test_a_secret_is_good_for_the_message_that_was_named(refusals):
    """That of one session opens no other one, whoever gets hold of it."""

    async def scenario(rig):
        sock = await rig.dial(frame(rig.admitted()))
        assert await rig.read(sock, 4) == frame(b"")
        await rig.loop.sock_sendall(sock, frame(b"another message"))
        assert await rig.is_closed(sock)

    play(scenario)
    assert [fields["who"] for _, fields in refusals] == ["client alice"]
    assert "not the one that it was admitted for" in refusals[0][1]["outcome"]


@pytest.mark.parametrize(
    "say",
    [
        frame(bytes(40)),
        frame(b""),
        frame(bytes(41)),
        (1 << 31).to_bytes(4, "little"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
    ids=["guess", "empty", "too-long", "huge", "http1", "http2"],
)
def test_a_stranger_is_sent_away_at_once(say, refusals):
    """A guess, a frame longer than any secret, and other protocols; it is written down."""

    async def scenario(rig):
        sock = await rig.dial(say)
        if say == frame(b""):  # says nothing: it is the deadline that ends it
            sock.shutdown(socket.SHUT_WR)
        assert await rig.is_closed(sock)

    play(scenario)
    assert [event for event, _ in refusals] == ["refused"]


def test_a_stranger_that_says_nothing_is_sent_away_after_a_while(monkeypatch, refusals):
    """One that is slow, too; here after a fraction of the time."""
    monkeypatch.setattr(acceptor, "STRANGER_S", 0.2)

    async def scenario(rig):
        for sock in [await rig.dial(), await rig.dial(frame(rig.admitted())[:10])]:
            assert await rig.is_closed(sock)

    play(scenario)
    said = "it did not say who it is within 0.2 s"
    assert [(fields["what"], fields["outcome"]) for _, fields in refusals] == [("frames", said)] * 2


def test_one_stranger_more_than_may_takes_the_place_of_the_oldest(monkeypatch, refusals):
    """So whoever shows a secret is served, however many say nothing; those that are served stay."""
    monkeypatch.setattr(acceptor, "_MOST", 8)

    async def scenario(rig):
        served = await rig.dial(frame(rig.admitted()) + frame(FIRST))
        assert await rig.read(served, 4) == frame(b"")
        idle = [await rig.dial() for _ in range(8)]
        for oldest in idle[:4]:
            sock = await rig.dial(frame(rig.admitted()))
            assert await rig.read(sock, 4) == frame(b"")
            assert await rig.is_closed(oldest)
            idle.append(await rig.dial())
        assert await rig.read(served, 16) == frame(b"client alice")

    play(scenario)
    assert {fields["outcome"] for _, fields in refusals} == {
        "of 8 that did not say who they are it has waited for longest"
    }


def test_connections_beyond_the_cap_are_closed_at_once():
    """Those that were there first are served on."""

    async def scenario(rig):
        served = []
        for _ in range(2):
            served.append(await rig.dial(frame(rig.admitted()) + frame(FIRST)))
            assert await rig.read(served[-1], 4) == frame(b"")
        assert await rig.is_closed(await rig.dial(frame(rig.admitted())))
        for sock in served:
            assert await rig.read(sock, 16) == frame(b"client alice")

    play(scenario, most=2)


def test_a_secret_is_good_for_some_seconds():
    """As long as TCP and TLS take over any link, and no longer; other secrets stay good."""
    now = [100.0]
    permits = Permits(lambda: now[0], seconds=10.0)
    old = permits.make(lambda _carrier: None, b"", EVERYBODY)
    now[0] += 9.0
    new = permits.make(lambda _carrier: None, b"", EVERYBODY)
    now[0] += 1.0
    assert permits.take(old) is None
    assert permits.take(new[:-1] + bytes([new[-1] ^ 1])) is None
    assert permits.take(new) is not None
    assert permits.take(new) is None


def test_admissions_that_nobody_uses_are_bounded(monkeypatch):
    """Beyond that peers get none, and use gRPC; when some are too old there is room again."""
    monkeypatch.setattr(frames, "_MAX_PERMITS", 3)
    now = [100.0]
    permits = Permits(lambda: now[0], seconds=10.0)
    made = [permits.make(lambda _carrier: None, b"", EVERYBODY) for _ in range(4)]
    assert [bool(secret) for secret in made] == [True, True, True, False]
    assert len(set(made)) == 4
    now[0] += 10.0
    assert permits.make(lambda _carrier: None, b"", EVERYBODY)


def test_a_port_in_use_is_an_error_that_says_what_to_do():
    """Unlike port 0, of which the system picks a free one."""

    async def scenario(_rig):
        """Is not reached."""

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} of 127.0.0.1.*--frames-port"):
            play(scenario, port=port)
