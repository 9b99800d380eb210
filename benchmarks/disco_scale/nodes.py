"""Pretended worker daemons: they answer as a real one does, and run no ranks.

Each acknowledges at once, so what is measured is the controller and the client alone. What they
say is made from the recording of a real daemon; only names and numbers are put in.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from disco_client.pb import commands_pb2, controller_pb2, node_pb2
from disco_client.transport.credentials import NO_CREDENTIALS
from disco_client.transport.grpc_options import NODE_STREAM_OPTIONS
from disco_client.wire.codec import (
    PROTOCOL,
    Action,
    EncodedEnvelope,
    EnvelopeKind,
    envelope,
    envelopes_in,
)
from disco_scale.recording import PAYLOADS, Recording
from disco_server.ipc.carriers import Carrier, open_carrier, open_line
from disco_server.ipc.outbox import Outbox
from disco_server.ipc.shares import workers_of

__all__ = ["PretendedNode", "Templates", "Traffic"]

_HEARTBEAT_S = 2.0
_SAMPLE_BEATS = 5
"""With one heartbeat of so many comes a sample of the machine."""

_STREAM = "/disco.v1.NodeService/Register"


@dataclass(slots=True)
class Traffic:
    """What came to some peers, by kind."""

    messages: Counter[str] = field(default_factory=Counter[str])
    nbytes: Counter[str] = field(default_factory=Counter[str])

    def count(self, kind: int, nbytes: int) -> None:
        """Counts an envelope."""
        name = EnvelopeKind(kind).name
        self.messages[name] += 1
        self.nbytes[name] += nbytes


class Templates:
    """The messages of a recording, and what nodes share so that it is decoded once.

    Args:
        recording: What a real daemon said.
    """

    def __init__(self, recording: Recording) -> None:
        self._payloads = {
            name: json_format.ParseDict(recording[name]["payload"], kind())
            for name, kind in PAYLOADS.items()
        }
        self.ack_every: int = recording["ACK_EVERY"]
        self.fence_items: Mapping[str, int] = recording["FENCE"]["items"]
        self._answers: dict[bytes, list[tuple[int, frozenset[int]]]] = {}
        self._fence = b"", ""

    def message(self, kind: str) -> Any:
        """A copy of the payload of a kind, to be filled in."""
        made: Message = type(self._payloads[kind])()
        made.CopyFrom(self._payloads[kind])
        return made

    def answers_in(self, raw: bytes, batch: EncodedEnvelope) -> list[tuple[int, frozenset[int]]]:
        """Which commands of a batch are answered, and by which workers; by all where it is empty.

        The same bytes come to every node, and are decoded for the first.
        """
        known = self._answers.get(raw)
        if known is None:
            if len(self._answers) > _KEPT_BATCHES:
                self._answers.clear()
            content = commands_pb2.Batch.FromString(batch.payload)
            known = self._answers[raw] = [
                (batch.first_seq + at, frozenset(command.workers))
                for at, command in _commands(content)
                if command.action == Action.SYNC_WORKER
            ]
        return known

    def fence_in(self, raw: bytes, received: EncodedEnvelope) -> str:
        """The name of a fence that all have come to; decoded for the first node, too."""
        if raw != self._fence[0]:
            result = node_pb2.FenceResult.FromString(received.payload)
            if result.error:
                raise ConnectionError(result.error)
            self._fence = raw, result.name
        return self._fence[1]


_KEPT_BATCHES = 64
_IN_COMMANDS = -1


def _commands(batch: commands_pb2.Batch) -> Iterator[tuple[int, commands_pb2.Command]]:
    """The commands of a batch that are no plain calls, each with its place."""
    if not batch.calls:
        yield from enumerate(batch.commands)
        return
    calls, commands = list(batch.calls), iter(batch.commands)
    at = number = 0
    while at < len(calls):
        if calls[at] == _IN_COMMANDS:
            yield number, next(commands)
            at += 1
        else:
            arguments = at + calls[at] + 3
            at = arguments + calls[arguments] + 1
        number += 1


@dataclass(slots=True)
class _Session:
    """One session's part on a node: its ranks, and how many replies each of them has sent."""

    workers: Sequence[int]
    received: int = 0
    acked: int = 0
    opened: int = 0
    numbers: Counter[int] = field(default_factory=Counter[int])


class PretendedNode:
    """One node's side of the protocol; what it says goes into its outbox.

    Args:
        templates: What a real daemon says.
        name: The node's name.
        slots: How many it offers.
        traffic: Counts what comes.

    Attributes:
        registered: Set once the controller knows it.
        resting: Set while it has no session.
        met: Set when all ranks of a session have opened their communicator.
        outbox: What it says.
        carrier: What carries its stream, once that is open.
    """

    def __init__(self, templates: Templates, name: str, slots: int, traffic: Traffic) -> None:
        self._templates = templates
        self._name = name
        self._slots = slots
        self._traffic = traffic
        self.sessions: dict[int, _Session] = {}
        self.registered, self.resting = asyncio.Event(), asyncio.Event()
        self.met = asyncio.Event()
        self.resting.set()
        self.outbox = Outbox()
        self._fences: dict[str, asyncio.Future[int]] = {}
        self.carrier: Carrier | None = None
        self._handlers = {
            EnvelopeKind.BATCH: self._batch,
            EnvelopeKind.HEARTBEAT: self._heartbeat,
            EnvelopeKind.REGISTERED: self._registered,
            EnvelopeKind.START_RANKS: self._start,
            EnvelopeKind.END_SESSION: self._end,
            EnvelopeKind.INSPECT: self._inspect,
            EnvelopeKind.OPEN_CCL: self._open,
            EnvelopeKind.FENCED: self._fenced,
            EnvelopeKind.RESUME: self._resume,
            EnvelopeKind.REFUSED: self._refused,
        }

    async def run(self, address: str) -> None:
        """Registers with a controller, and answers until the stream ends."""
        first = self.introduction()
        async with open_line(address, NO_CREDENTIALS, NODE_STREAM_OPTIONS) as line:
            carrier = self.carrier = await open_carrier(line, _STREAM, first)
            await carrier.send(first)
            writing = asyncio.ensure_future(carrier.send_from(self.outbox))
            beating = asyncio.ensure_future(self._beat())
            try:
                await carrier.receive(self.take)
            finally:
                writing.cancel()
                beating.cancel()
                carrier.close()

    async def _beat(self) -> None:
        raw = envelope(EnvelopeKind.HEARTBEAT)
        for number in itertools.count(1):
            if number % _SAMPLE_BEATS:
                self.outbox.post(raw, droppable=True)
            else:
                self.sample()
            await asyncio.sleep(_HEARTBEAT_S)

    def sample(self) -> None:
        """Sends a heartbeat with a sample of a machine that has eight GPUs."""
        host = controller_pb2.HostSample(
            cpu=0.5,
            memory=0.25,
            cores=128,
            memory_bytes=1 << 40,
            received_per_s=1e9,
            sent_per_s=1e9,
            gpus=[controller_pb2.GpuSample(busy=0.9, memory=0.5, memory_bytes=80 << 30)] * 8,
        )
        self._say(EnvelopeKind.HEARTBEAT, controller_pb2.Heartbeat(sample=host))

    def introduction(self) -> bytes:
        """The envelope with which it registers."""
        info = self._templates.message("REGISTER")
        info.name = info.host_id = self._name
        info.devices[:] = ["cpu"] * self._slots
        info.incarnation, info.protocol = secrets.randbits(63), PROTOCOL
        return envelope(EnvelopeKind.REGISTER, info.SerializeToString())

    def take(self, message: bytes) -> None:
        """Answers one message of the controller."""
        for raw, received in envelopes_in(message):
            self._traffic.count(received.kind, len(raw))
            handler = self._handlers.get(EnvelopeKind(received.kind))
            if handler is not None:
                handler(raw, received)

    def _say(self, kind: EnvelopeKind, message: Message | None = None, **fields: Any) -> None:
        payload = message.SerializeToString() if message is not None else b""
        raw = envelope(kind, payload, **fields)
        self.outbox.post(raw, session=fields.get("session", 0))

    # What it answers ------------------------------------------------------------------------

    def _registered(self, _raw: bytes, _received: EncodedEnvelope) -> None:
        self.registered.set()

    def _refused(self, _raw: bytes, received: EncodedEnvelope) -> None:
        raise ConnectionError(node_pb2.Refused.FromString(received.payload).message)

    def _heartbeat(self, raw: bytes, _received: EncodedEnvelope) -> None:
        self.outbox.post(raw, droppable=True)

    def _start(self, _raw: bytes, received: EncodedEnvelope) -> None:
        start = node_pb2.StartRanks.FromString(received.payload)
        workers = workers_of(start.nodes[start.node_index])
        self.sessions[received.session] = _Session(workers)
        self.resting.clear()
        ready = self._templates.message("RANKS_READY")
        rank = ready.ranks[0]
        del ready.ranks[:]
        for worker in workers:
            rank.worker, rank.node = worker, self._name
            ready.ranks.append(rank)
        self._say(EnvelopeKind.RANKS_READY, ready, session=received.session)

    def _end(self, _raw: bytes, received: EncodedEnvelope) -> None:
        self.sessions.pop(received.session, None)
        self._say(EnvelopeKind.SESSION_GONE, session=received.session)
        if not self.sessions:
            self.resting.set()

    def _batch(self, raw: bytes, received: EncodedEnvelope) -> None:
        session = self.sessions.get(received.session)
        if session is None or received.first_seq != session.received + 1:
            return
        session.received = received.last_seq
        for seq, chosen in self._templates.answers_in(raw, received):
            for worker in session.workers:
                if not chosen or worker in chosen:
                    self._reply(received.session, session, worker, seq, ack=seq)
            session.acked = seq
        if session.received - session.acked >= self._templates.ack_every:
            session.acked = session.received
            for worker in session.workers:
                self._reply(received.session, session, worker, 0, ack=session.acked)

    def _reply(
        self, session_id: int, session: _Session, worker: int, seq: int, *, ack: int
    ) -> None:
        session.numbers[worker] += 1
        reply = commands_pb2.Reply(seq=seq, ack=ack)
        number = session.numbers[worker]
        self._say(
            EnvelopeKind.REPLY,
            reply,
            session=session_id,
            worker=worker,
            first_seq=number,
            last_seq=ack,
        )

    def _open(self, _raw: bytes, received: EncodedEnvelope) -> None:
        if received.worker_plus_one:
            self.open_communicators(received.session, received.first_seq)
        else:
            self.met.set()

    def open_communicators(self, session_id: int, times: int | None = None) -> None:
        """Lets all its ranks of a session open their communicator, unless they have.

        Args:
            session_id: The session.
            times: How many times they shall have; None for once more.
        """
        session = self.sessions[session_id]
        times = session.opened + 1 if times is None else times
        if session.opened < times:
            session.opened = times
            for worker in session.workers:
                self._say(EnvelopeKind.OPEN_CCL, session=session_id, worker=worker, first_seq=times)

    def _resume(self, _raw: bytes, received: EncodedEnvelope) -> None:
        session = self.sessions.get(received.session)
        if session is None:
            return
        have = self._templates.message("HAVE")
        have.node, have.last_seq = self._name, session.received
        have.workers[:] = session.workers
        have.replies[:] = [session.numbers[worker] for worker in session.workers]
        self._say(EnvelopeKind.HAVE, have, session=received.session)

    def _inspect(self, _raw: bytes, received: EncodedEnvelope) -> None:
        asked = node_pb2.InspectNode.FromString(received.payload)
        found = self._templates.message("INSPECTED")
        glance = found.sessions[0]
        report = glance.ranks[0]
        del found.sessions[:], glance.ranks[:]
        found.request = asked.request
        found.received_ns = found.sent_ns = time.monotonic_ns()
        for number, session in self.sessions.items():
            glance.session, glance.received = number, session.received
            del glance.ranks[:]
            for worker in session.workers:
                report.worker, report.node = worker, self._name
                glance.ranks.append(report)
            found.sessions.append(glance)
        self._say(EnvelopeKind.INSPECTED, found)

    async def fence(
        self, session: int, name: str, place: tuple[int, int], sizes: Mapping[str, int]
    ) -> int:
        """Comes to a fence; returns how many bytes it leaves with.

        Args:
            session: The session.
            name: The fence.
            place: Its number among the nodes, and how many there are.
            sizes: How many bytes each of its items has.
        """
        index, count = place
        request = node_pb2.FenceRequest(
            name=name,
            participant=index,
            participants=count,
            items={f"{key}-{index}": b"c" * size for key, size in sizes.items()},
        )
        met = self._fences[name] = asyncio.get_running_loop().create_future()
        self._say(EnvelopeKind.FENCE, request, session=session)
        return await met

    def _fenced(self, raw: bytes, received: EncodedEnvelope) -> None:
        name = self._templates.fence_in(raw, received)
        self._fences.pop(name).set_result(len(received.payload))
