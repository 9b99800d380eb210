"""The daemon's line to a controller that misbehaves: it is given up, and dialled again."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise

import grpc
import pytest

from disco_client.backoff import Backoff
from disco_client.pb import node_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_server.config import WorkerConfig
from disco_server.worker import agent as module
from disco_server.worker.agent import Agent
from disco_server.worker.fork_server import ForkServer


async def silent(_stream, context):
    """Takes the call and says nothing, as a process whose loop is stuck."""
    await asyncio.Event().wait()


async def nonsense(_stream, context):
    """Speaks, but not this protocol."""
    await context.write(b"\xff\xff\xff\xff")
    await asyncio.Event().wait()


async def wrong_kinds(_stream, context):
    """Speaks the protocol, and asks for what makes no sense."""
    await context.write(envelope(EnvelopeKind.START_RANKS, b"\xff\xff", session=5))
    await asyncio.Event().wait()


async def short(_stream, context):
    """Hangs up at once."""


async def refusing(_stream, context):
    """Will have nothing to do with this node."""
    refused = node_pb2.Refused(message="not you").SerializeToString()
    await context.write(envelope(EnvelopeKind.REFUSED, refused))


async def failing(_stream, context):
    """Breaks."""
    await context.abort(grpc.StatusCode.INTERNAL, "broken")


@pytest.mark.parametrize(
    "handler", [silent, nonsense, wrong_kinds, short, refusing, failing], ids=lambda h: h.__name__
)
def test_a_controller_that_misbehaves_is_dialled_again(handler, monkeypatch, caplog):
    """Each time from the beginning, for as long as the daemon lives; the log says why once."""
    monkeypatch.setattr(module, "_SILENCE_S", 0.3)
    monkeypatch.setattr(module, "_HEARTBEAT_S", 0.05)
    caplog.set_level(logging.WARNING, "disco.worker")
    introduced = asyncio.Queue()

    async def register(stream, context):
        introduced.put_nowait(EncodedEnvelope.FromString(await anext(aiter(stream))).kind)
        await handler(stream, context)

    async def play():
        server = grpc.aio.server()
        handlers = {"Register": grpc.stream_stream_rpc_method_handler(register)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("disco.v1.NodeService", handlers),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        config = WorkerConfig(controller=f"127.0.0.1:{port}", slots=1)
        running = asyncio.ensure_future(
            Agent(config, ForkServer({}), backoff=Backoff(0.01, 0.05)).run()
        )
        try:
            async with asyncio.timeout(20):
                for _ in range(4):
                    getting = asyncio.ensure_future(introduced.get())
                    await asyncio.wait((getting, running), return_when=asyncio.FIRST_COMPLETED)
                    assert not running.done(), f"the agent gave up: {running}"
                    assert await getting == EnvelopeKind.REGISTER
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(None)

    asyncio.run(play())
    said = [record.getMessage() for record in caplog.records]
    assert any("trying again" in line for line in said)
    assert all(line != after for line, after in pairwise(said)), "the same reason twice"
    if handler is refusing:
        assert "not you" in said[0]


def test_a_cancellation_that_grpc_keeps_to_itself_ends_the_daemon_s_line(monkeypatch):
    """As it does while a stream is prepared that the peer has already ended."""
    connecting = asyncio.Event()

    async def connect_once(_agent):
        connecting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "the controller closed the connection"

    monkeypatch.setattr(Agent, "_connect_once", connect_once)

    async def play():
        running = asyncio.ensure_future(Agent(WorkerConfig(slots=1), ForkServer({})).run())
        await connecting.wait()
        running.cancel()
        await asyncio.wait((running,), timeout=20)
        assert running.cancelled()

    asyncio.run(play())
