"""What a real worker daemon says, asked by a controller that follows a script.

The script begins a session on the daemon, has it acknowledge commands, look at its ranks, meet
at a fence, and end. Each answer is kept by its kind. Pretended nodes answer as the recording
does; the same script played to them shows whether they still do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf import json_format
from google.protobuf.message import Message

from disco_client.pb import commands_pb2, controller_pb2, node_pb2
from disco_client.version import __version__
from disco_client.wire.codec import (
    Action,
    EncodedEnvelope,
    EnvelopeKind,
    envelope,
    envelopes_in,
)
from disco_server.core.nodes import NodeShare
from disco_server.ipc.outbox import Outbox
from disco_server.ipc.shares import encode_share

__all__ = ["PAYLOADS", "RECORDED", "Recording", "read", "record_real", "shape_of", "write"]

RECORDED = Path(__file__).with_name("recorded.json")

PAYLOADS: Mapping[str, type[Message]] = {
    "REGISTER": node_pb2.RegisterNode,
    "HEARTBEAT": controller_pb2.Heartbeat,
    "RANKS_READY": node_pb2.RanksReady,
    "REPLY": commands_pb2.Reply,
    "INSPECTED": node_pb2.NodeInspected,
    "HAVE": controller_pb2.Have,
}
"""What is in the payload of each kind of envelope that nodes send; the others are empty."""

_SESSION, _SHARE = 0x5CA1E, 2
_UNANSWERED, _PLAIN_BATCH = 40, 64
_PATIENCE_S = 30.0

Recording: TypeAlias = dict[str, Any]
"""By kind, the envelope and its payload as JSON; FENCE is a request of its own, with the sizes of
its items, and ACK_EVERY the number of commands after which a rank acknowledges them unasked."""


class _ScriptedController:
    """Plays the controller for one daemon, and keeps what it answers."""

    def __init__(self) -> None:
        self.kept: Recording = {}
        self._outbox = Outbox()
        self._heard: asyncio.Queue[EncodedEnvelope] = asyncio.Queue()
        self._seq = 0

    def add_to(self, server: grpc.aio.Server) -> None:
        """Offers what a daemon asks of a controller."""
        untyped: Any = grpc
        stream = untyped.stream_stream_rpc_method_handler(self._register)
        service = grpc.method_handlers_generic_handler("disco.v1.NodeService", {"Register": stream})
        server.add_generic_rpc_handlers((service,))

    async def _register(self, stream: Any, context: Any) -> None:
        writing = asyncio.ensure_future(self._outbox.run(context.write))
        try:
            async for message in stream:
                for _, received in envelopes_in(message):
                    self._heard.put_nowait(received)
        finally:
            writing.cancel()

    def _say(self, kind: EnvelopeKind, message: Message | None = None, **fields: Any) -> None:
        payload = message.SerializeToString() if message is not None else b""
        self._outbox.post(envelope(kind, payload, **fields))

    async def _next(self, kind: EnvelopeKind) -> EncodedEnvelope:
        """Waits for an envelope of a kind, and keeps it; heartbeats may come between."""
        while True:
            async with asyncio.timeout(_PATIENCE_S):
                received = await self._heard.get()
            if received.kind == kind:
                self._keep(kind.name, received)
                return received

    def _keep(self, name: str, received: EncodedEnvelope) -> None:
        payload = PAYLOADS.get(name)
        content = payload.FromString(received.payload) if payload else None
        received.ClearField("payload")
        self.kept[name] = {"envelope": _json(received), "payload": _json(content)}

    def _batch(self, *commands: commands_pb2.Command) -> None:
        first, self._seq = self._seq + 1, self._seq + len(commands)
        numbers = {"session": _SESSION, "first_seq": first, "last_seq": self._seq}
        self._say(EnvelopeKind.BATCH, commands_pb2.Batch(commands=commands), **numbers)

    async def play(self, *, with_fence: bool) -> None:
        """Plays the script; only the ranks of a real daemon have something to meet for."""
        await self._next(EnvelopeKind.REGISTER)
        welcome = node_pb2.NodeRegistered(version=__version__, heartbeat_s=2.0)
        self._say(EnvelopeKind.REGISTERED, welcome)
        self._say(EnvelopeKind.START_RANKS, _start(), session=_SESSION)
        await self._next(EnvelopeKind.RANKS_READY)
        self._batch(commands_pb2.Command(action=_action(Action.SYNC_WORKER)))
        await self._next(EnvelopeKind.REPLY)
        await self._next(EnvelopeKind.REPLY)
        await self._count_unasked()
        await self._look()
        received = controller_pb2.Received(replies=[9, 9, 0, 0])
        self._say(EnvelopeKind.RESUME, received, session=_SESSION)
        await self._next(EnvelopeKind.HAVE)
        await self._beat()
        self._say(EnvelopeKind.OPEN_CCL, session=_SESSION, worker=2, first_seq=1)
        for _ in range(_SHARE):
            await self._next(EnvelopeKind.OPEN_CCL)
        if with_fence:
            await self._meet()
        self._say(EnvelopeKind.END_SESSION, session=_SESSION)
        await self._next(EnvelopeKind.SESSION_GONE)

    async def _meet(self) -> None:
        """Keeps the first fence that brings items; the session's other node never comes."""
        while True:
            async with asyncio.timeout(_PATIENCE_S):
                received = await self._heard.get()
            if received.kind == EnvelopeKind.FENCE:
                request = node_pb2.FenceRequest.FromString(received.payload)
                if request.items:
                    break
        sizes = {key: len(value) for key, value in request.items.items()}
        self.kept["FENCE"] = {**_json(request), "items": sizes}

    async def _count_unasked(self) -> None:
        """Finds out after how many commands ranks acknowledge those that want no answer."""
        plain = commands_pb2.Command(action=_action(Action.KILL_REG), reg=1)
        before = self._seq
        for _ in range(_UNANSWERED):
            self._batch(*[plain] * _PLAIN_BATCH)
        said = await self._heard_reply()
        self.kept["ACK_EVERY"] = said.ack - before
        self._batch(commands_pb2.Command(action=_action(Action.SYNC_WORKER)))
        answers = 0  # until all ranks are done, and what they are seen to do is the same each time
        while answers < _SHARE:
            answers += (await self._heard_reply()).seq == self._seq

    async def _look(self) -> None:
        """Looks at the ranks, until they are past the command that they have answered."""
        done = False
        while not done:
            self._say(EnvelopeKind.INSPECT, node_pb2.InspectNode(request=1, all=True))
            await self._next(EnvelopeKind.INSPECTED)
            (session,) = self.kept["INSPECTED"]["payload"]["sessions"]
            done = not any("current" in rank for rank in session["ranks"])

    async def _heard_reply(self) -> commands_pb2.Reply:
        while True:
            async with asyncio.timeout(_PATIENCE_S):
                received = await self._heard.get()
            if received.kind == EnvelopeKind.REPLY:
                return commands_pb2.Reply.FromString(received.payload)

    async def _beat(self) -> None:
        """Sends a heartbeat; its answer has a number, and the daemon's own has none."""
        self._say(EnvelopeKind.HEARTBEAT, controller_pb2.Heartbeat(count=7))
        found = {"counted": "", "own": ""}
        while not all(found.values()):
            received = await self._next(EnvelopeKind.HEARTBEAT)
            answers = "count" in self.kept["HEARTBEAT"]["payload"]
            found["counted" if answers else "own"] = str(received)
        self.kept["HEARTBEAT"]["payload"] = {"count": "7"}


def _action(action: Action) -> Any:
    return int(action)  # the enum's numbers are those of the wire


def _start() -> node_pb2.StartRanks:
    """A session of four workers, of which the daemon has the first two."""
    nodes = [
        encode_share(NodeShare(name, workers, (0, 1), ("cpu",) * _SHARE), name)
        for name, workers in (("recorded", (0, 1)), ("other", (2, 3)))
    ]
    return node_pb2.StartRanks(
        session_name="recorded",
        num_workers=2 * _SHARE,
        num_groups=1,
        ccl="mpi",
        transfer_key=b"transfer-key-16b",
        nodes=nodes,
        node_index=0,
        owner="recorder@here:1",
        lease_s=10.0,
    )


def _json(message: Message | None) -> Any:
    if message is None:
        return {}
    return json_format.MessageToDict(message, preserving_proto_field_name=True)


async def record(
    begin: Callable[[str], Any], end: Callable[[Any], Any], *, with_fence: bool = True
) -> Recording:
    """Plays the script to a daemon.

    Args:
        begin: Starts the daemon, which connects to the address; may be awaited.
        end: Ends what that returned; may be awaited.
        with_fence: Whether its ranks meet at a fence.
    """
    server, controller = grpc.aio.server(), _ScriptedController()
    controller.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        daemon = await begin(f"127.0.0.1:{port}")
        try:
            await controller.play(with_fence=with_fence)
        finally:
            await end(daemon)
    finally:
        await server.stop(None)
    return controller.kept


async def record_real() -> Recording:
    """Plays the script to a real worker daemon of two slots, a process that it starts and ends."""

    async def begin(address: str) -> asyncio.subprocess.Process:
        options = ("--controller", address, "--slots", "2", "--name", "recorded", "--http", "off")
        environ = {k: v for k, v in os.environ.items() if not k.startswith("DISCO_")}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "disco_server.cli.worker",
            *options,
            env=environ,
            stdout=asyncio.subprocess.DEVNULL,
        )

    async def end(daemon: asyncio.subprocess.Process) -> None:
        daemon.terminate()
        await daemon.wait()

    return await record(begin, end)


def shape_of(said: Any) -> Any:
    """Which fields something has that was said, without their values; the order does not count."""
    if isinstance(said, dict):
        fields = cast("dict[str, Any]", said)
        return {key: shape_of(value) for key, value in sorted(fields.items())}
    if isinstance(said, list):
        items = cast("list[Any]", said)
        if not all(isinstance(each, dict) for each in items):
            return sorted({type(each).__name__ for each in items})
        return [shape_of({key: value for each in items for key, value in each.items()})]
    return type(said).__name__


def read() -> Recording:
    """The recording that is kept."""
    return json.loads(RECORDED.read_text("utf-8"))


def write(recording: Recording) -> None:
    """Keeps a recording, without what it says of the machine."""
    register = recording["REGISTER"]["payload"]
    register |= {"host": "here", "host_id": "here", "array_address": "here:1", "pid": 1}
    RECORDED.write_text(json.dumps(recording, indent=1, sort_keys=True) + "\n", "utf-8")
