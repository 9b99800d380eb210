"""Ports without gRPC, and strangers there: their number, their time, and what they may send."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket

import pytest

from disco_server.observe import acceptor, http_connection, logs
from disco_server.observe.acceptor import Acceptor, listening_sockets
from disco_server.observe.http import HttpListener, identified
from disco_server.settings import Address

LIMIT_S = 20.0
HALF = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
HERE = Address("127.0.0.1", 0)


@pytest.fixture
def refusals(monkeypatch):
    """What is written down of whoever was refused."""
    written = []
    monkeypatch.setattr(logs.refusals, "record", lambda _event, **f: written.append(f["outcome"]))
    return written


class Visitor:
    """Connections to an HTTP port."""

    def __init__(self, url):
        self.loop = asyncio.get_running_loop()
        self.at = "127.0.0.1", int(url.rpartition(":")[2])
        self._opened = contextlib.ExitStack()

    async def dial(self, say=b""):
        sock = self._opened.enter_context(socket.socket())
        sock.setblocking(False)
        await self.loop.sock_connect(sock, self.at)
        await self.loop.sock_sendall(sock, say)
        return sock

    async def all_of(self, sock):
        """What comes until the other end closes the connection."""
        came = b""
        with contextlib.suppress(ConnectionResetError):
            while more := await self.loop.sock_recv(sock, 1 << 16):
                came += more
        return came

    def close(self):
        self._opened.close()


async def known(request):
    """Answers whoever it is, and calls it known."""
    from aiohttp import web

    identified(request)
    return web.Response(text="known\n")


def visit(scenario, metrics=bytes):
    """Runs a scenario with an HTTP port that knows whoever asks for /known."""

    async def run():
        async with asyncio.timeout(LIMIT_S):
            port = HttpListener(HERE, metrics, routes={"/known": known})
            visitor = Visitor(await port.open())
            try:
                await scenario(visitor)
            finally:
                visitor.close()
                await port.close()

    asyncio.run(run())


@pytest.mark.parametrize("say", [b"", HALF, b"G"], ids=["silent", "half", "a-byte"])
def test_whoever_sends_no_request_is_sent_away_after_a_while(monkeypatch, refusals, say):
    """After ten seconds, here a fraction of that, and it is written down."""
    assert acceptor.STRANGER_S == 10.0
    monkeypatch.setattr(acceptor, "STRANGER_S", 0.2)

    async def scenario(visitor):
        assert await visitor.all_of(await visitor.dial(say)) == b""

    visit(scenario)
    assert refusals == ["it did not say who it is within 0.2 s"]


def test_a_stranger_has_one_answer_and_who_is_known_keeps_the_connection(monkeypatch, refusals):
    """Also for longer than a stranger may, and for more bytes."""
    monkeypatch.setattr(acceptor, "STRANGER_S", 0.2)
    monkeypatch.setattr(http_connection, "_MOST_BYTES", 100)

    async def scenario(visitor):
        came = await visitor.all_of(await visitor.dial(HALF + b"\r\n"))
        assert came.startswith(b"HTTP/1.1 200")
        assert b"Connection: close" in came
        sock = await visitor.dial(b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n")
        for _ in range(5):
            came = b""
            while not came.endswith(b"known\n"):
                came += await visitor.loop.sock_recv(sock, 1 << 16)
            await asyncio.sleep(0.1)
            await visitor.loop.sock_sendall(sock, b"GET /known HTTP/1.1\r\nHost: x\r\n\r\n")

    visit(scenario)
    assert refusals == []


def test_a_stranger_that_sends_much_is_sent_away(refusals):
    """Headers and body alike: 32 KiB, of which nothing is kept."""

    async def scenario(visitor):
        line = b"X-Long: " + b"x" * 8000 + b"\r\n"
        for say in (HALF + 9 * line, b"POST /healthz HTTP/1.1\r\nContent-Length: 99999\r\n\r\n"):
            sock = await visitor.dial()
            with contextlib.suppress(ConnectionError):
                await visitor.loop.sock_sendall(sock, say + bytes(70_000) * (say[:1] == b"P"))
            assert b" 200 " not in await visitor.all_of(sock)

    visit(scenario)
    assert refusals == ["it sent more than 32768 bytes before it said who it is"] * 2


MALFORMED = [
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nno colon here\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n",
    b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET http://[::1 HTTP/1.1\r\nHost: x\r\n\r\n",
]


@pytest.mark.parametrize("say", MALFORMED)
def test_a_malformed_request_is_no_failure_of_the_daemon(refusals, caplog, say):
    """It is written down in a line at most; the next one is served."""

    async def scenario(visitor):
        sock = await visitor.dial(say)
        sock.shutdown(socket.SHUT_WR)
        assert b" 200 " not in await visitor.all_of(sock)
        assert b" 200 " in await visitor.all_of(await visitor.dial(HALF + b"\r\n"))

    visit(scenario)
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]
    assert len(refusals) <= 1


def test_a_failure_of_an_answer_is_logged_with_its_traceback(caplog):
    """It is the daemon's own."""

    def metrics():
        msg = "no metrics"
        raise ValueError(msg)

    async def scenario(visitor):
        ask = HALF.replace(b"healthz", b"metrics") + b"\r\n"
        assert b" 500 " in await visitor.all_of(await visitor.dial(ask))

    visit(scenario, metrics)
    assert "ValueError: no metrics" in caplog.text


def test_where_no_descriptor_is_free_it_waits_and_says_so_once(monkeypatch, caplog):
    """When there is one again, who has waited is served; the log has a line for each pause."""
    monkeypatch.setattr(acceptor, "_PAUSE_S", 0.2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def scenario():
        async with asyncio.timeout(LIMIT_S):
            served = asyncio.Event()

            async def introduce(_protocol):
                served.set()

            port = Acceptor("frames", listening_sockets(HERE), asyncio.Protocol, introduce)
            with contextlib.ExitStack() as stack:
                stack.callback(port.close)
                caller = stack.enter_context(socket.socket())
                # Whatever others close meanwhile, no new one has a number as low as this.
                resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
                try:
                    port.open()
                    caller.connect(port._sockets[0].getsockname())
                    await asyncio.sleep(0.5)
                    assert not served.is_set()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await served.wait()

    asyncio.run(scenario())
    said = [each.message for each in caplog.records]
    assert 1 <= len(said) <= 3
    assert all("no connection for frames is accepted now: [Errno 24]" in each for each in said)


def test_a_port_takes_a_sixth_of_the_descriptors_for_strangers():
    """Two ports of a daemon take a third together, and gRPC leaves that free."""
    from disco_server.observe.open_files import most_by_grpc

    async def most():
        return Acceptor("frames", [], asyncio.Protocol, lambda _made: asyncio.sleep(0))._most

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        assert asyncio.run(most()) == 50
        assert most_by_grpc(4096) == 300 - 100 - 64
        assert most_by_grpc(40) == 40
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
