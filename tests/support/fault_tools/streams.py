"""Loses, delays, doubles or reorders messages of gRPC streams: :func:`injected` in this process.

A daemon with faults is ``python -m fault_tools.streams FAULTS MODULE ARGUMENT...``. The
product has no part in it: what opens and serves streams is replaced in the process.
Faults are entries with semicolons between them::

    POINT[KIND]:ACTION=WHICH
    controller.to_client[REPLY]:cut=3;client.send:delay=2-5/0.5;node.send:drop=1%;seed=7

POINT
    One of ``POINTS``.
``[KIND]``
    Only envelopes of this kind are counted, such as ``[BATCH]``; without it all are,
    heartbeats included.
ACTION
    ``drop`` loses the message. ``cut`` loses it and breaks the stream, as a failing
    connection does. ``duplicate`` lets it pass twice. ``delay`` holds it and all
    behind it for some seconds. ``swap`` holds it until the next one has passed; where
    none comes, or the stream breaks before, it is lost.
WHICH
    The n-th message, ``3``, from there to there, ``3-5``, or each one with these odds,
    ``2.5%``. A delay says behind it for how long, ``3/0.5``. Messages are counted over all
    streams of the process at that point.

``seed=NUMBER`` chooses which messages the odds meet. The first entry that meets a message
decides what happens to it; all of them count it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import random
import re
import runpy
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest

from disco_client.pb import envelope_pb2
from disco_client.transport import attachment
from disco_client.transport.carriers import StreamBroken
from disco_client.wire.codec import EnvelopeKind, envelopes_in
from disco_server.controller.node_streams import NodeStreams
from disco_server.controller.session_streams import ClientStreams
from disco_server.ipc.outbox import Outbox
from disco_server.worker import agent

POINTS = (
    "client.send",
    "client.receive",
    "controller.from_client",
    "controller.to_client",
    "controller.from_node",
    "controller.to_node",
    "node.receive",
    "node.send",
)
_ENTRY = re.compile(
    rf"(?P<point>{'|'.join(map(re.escape, POINTS))})"
    rf"(?:\[(?P<kind>{'|'.join(EnvelopeKind.__members__)})\])?:"
    r"(?:(?P<action>drop|cut|duplicate|swap)|(?P<delay>delay))="
    r"(?:(?P<odds>[0-9.]+)%|(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?)(?(delay)/(?P<seconds>[0-9.]+))"
)


class InjectedCut(StreamBroken):
    """A stream is broken on purpose; whoever reads or writes it sees it as broken."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.errno = errno.ECONNRESET  # as the system's; a signal handler's error may have none


@dataclass
class _Rule:
    """One entry, and how many messages it has counted."""

    point: str
    kind: EnvelopeKind | None
    action: str
    meant: Callable[[int], bool]
    seconds: float
    seen: int = 0

    def meets(self, kind: int) -> bool:
        if self.kind not in (None, kind):
            return False
        self.seen += 1
        return self.meant(self.seen)


class Faults:
    """What happens to the messages of this process.

    Args:
        text: The entries.

    Raises:
        ValueError: One of them is malformed.
    """

    def __init__(self, text: str) -> None:
        entries = [entry.strip() for entry in text.split(";")]
        seed = next((int(e.removeprefix("seed=")) for e in entries if e.startswith("seed=")), 0)
        self._rules = [
            _parse(entry, random.Random(seed * 1000 + number))
            for number, entry in enumerate(entries)
            if not entry.startswith("seed=")
        ]
        self._lock = threading.Lock()

    def find(self, point: str, raw: bytes) -> str | tuple[str, float]:
        """The action that meets a message, and its seconds; every entry counts it."""
        kind = envelope_pb2.Envelope.FromString(raw).kind
        with self._lock:
            met = [rule for rule in self._rules if rule.point == point and rule.meets(kind)]
            if not met:
                return "pass", 0.0
            say(f"{point}: {met[0].action} of message {met[0].seen}")
            return met[0].action, met[0].seconds


def say(what: str) -> None:
    """Writes a line of its own to where a daemon's log goes."""
    print(what, file=sys.stderr, flush=True)


def _parse(entry: str, dice: random.Random) -> _Rule:
    found = _ENTRY.fullmatch(entry)
    if found is None:
        msg = f"expected POINT[KIND]:ACTION=WHICH, got {entry!r}"
        raise ValueError(msg)
    odds, first = float(found["odds"] or 0) / 100, int(found["first"] or 0)
    last = int(found["last"] or first)
    return _Rule(
        found["point"],
        EnvelopeKind[found["kind"]] if found["kind"] else None,
        found["action"] or found["delay"],
        (lambda _: dice.random() < odds) if odds else (lambda seen: first <= seen <= last),
        float(found["seconds"] or 0),
    )


def _split(message: bytes) -> Iterator[bytes]:
    """The envelopes of a message, each of which faults count as one."""
    return (raw for raw, _ in envelopes_in(message))


class Passage:
    """One stream's way past a point; used by one thread or task at a time."""

    def __init__(self, faults: Faults, point: str) -> None:
        self._faults, self._point = faults, point
        self._held: list[bytes] = []

    def meet(self, raw: bytes) -> tuple[list[bytes], float]:
        """Takes a message; returns what passes now, and after how many seconds."""
        action, seconds = self._faults.find(self._point, raw)
        held, self._held = self._held, [raw] if action == "swap" else []
        if action == "cut":
            msg = f"the tests break the stream at {self._point}"
            raise InjectedCut(msg)
        times = {"drop": 0, "swap": 0, "duplicate": 2}.get(action, 1)
        return [raw] * times + held, seconds

    def blocking(self, messages: Iterable[bytes]) -> Iterator[bytes]:
        for raw in itertools.chain.from_iterable(map(_split, messages)):
            passed, pause = self.meet(raw)
            time.sleep(pause)
            yield from passed

    async def passing(self, message: bytes) -> AsyncIterator[bytes]:
        """What passes of a message, as time goes by."""
        for raw in _split(message):
            passed, pause = self.meet(raw)
            await asyncio.sleep(pause)
            for each in passed:
                yield each


class _Stand:
    """Stands for an object of gRPC, of which it replaces some attributes."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _FaultyMessages(_Stand):
    """What a client's stream sends."""

    def __init__(self, real: Any, passage: Passage) -> None:
        super().__init__(real)
        self._passage = passage
        self._passed: deque[bytes] = deque()

    def wait(self) -> bool:
        return bool(self._passed) or self._real.wait()

    def take(self) -> bytes | None:
        while not self._passed:
            if (message := self._real.take()) is None:
                return None
            self._real.left(message)  # and what becomes of it is the passage's affair
            self._passed.extend(self._passage.blocking([message]))
        return self._passed[0]

    def left(self, raw: bytes) -> None:
        if self._passed and self._passed[0] is raw:
            self._passed.popleft()

    def __iter__(self) -> Iterator[bytes]:
        while self.wait():
            while (raw := self.take()) is not None:
                self.left(raw)
                yield raw


class _FaultyStream(_Stand):
    """A client's stream, read by iteration or where it is ready."""

    def __init__(self, real: Any, passage: Passage) -> None:
        super().__init__(real)
        self._passage = passage
        self.arrived: deque[bytes] = deque()

    @property
    def polled(self) -> Any:
        return self if self._real.polled is not None else None

    def __iter__(self) -> Iterator[bytes]:
        for message in self._real:
            self.arrived.extend(self._passage.blocking([message]))
            while self.arrived:
                yield self.arrived.popleft()

    def receive(self) -> bool:
        goes_on, came = self._real.receive(), self._real.arrived
        while came:
            self.arrived.extend(self._passage.blocking([came.popleft()]))
        return goes_on


class _FaultyCarrier(_Stand):
    """A stream of a daemon, from either end, whatever carries it."""

    def __init__(self, real: Any, faults: Faults, incoming: str, outgoing: str) -> None:
        super().__init__(real)
        self._incoming = Passage(faults, incoming)
        self._outgoing = Passage(faults, outgoing)
        self._came: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def _read(self) -> None:
        """Reads on while earlier messages are delayed."""
        try:
            await self._real.receive(self._came.put_nowait)
        finally:
            self._came.put_nowait(None)

    async def receive(self, handle: Callable[[bytes], Any]) -> Any:
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        try:
            while (message := await self._came.get()) is not None:
                async for raw in self._incoming.passing(message):
                    if (found := handle(raw)) is not None:
                        return found
            self._came.put_nowait(None)
            return await self._reading
        except BaseException:
            self._reading.cancel()
            raise

    async def send(self, message: bytes) -> None:
        async for raw in self._outgoing.passing(message):
            await self._real.send(raw)

    async def send_from(self, outbox: Outbox) -> None:
        passed = Outbox()
        sending = asyncio.ensure_future(self._real.send_from(passed))

        async def write(message: bytes) -> None:
            async for raw in self._outgoing.passing(message):
                passed.post(raw)

        writing = asyncio.ensure_future(outbox.run(write))
        try:
            await asyncio.wait((sending, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
                passed.close()
            await sending
        finally:
            writing.cancel()
            sending.cancel()


@contextlib.contextmanager
def injected(text: str) -> Iterator[None]:
    """Lets streams that are opened or served in this process meanwhile have faults.

    Raises:
        ValueError: An entry is malformed.
    """
    faults = Faults(text)
    with pytest.MonkeyPatch.context() as patch:
        opened = _opening(attachment.open_stream, faults)
        patch.setattr("disco_client.transport.attachment.open_stream", opened)
        dialled = _dialling(agent.open_carrier, faults)
        patch.setattr("disco_server.worker.agent.open_carrier", dialled)
        for streams, method, peer in (
            (ClientStreams, "open", "client"),
            (NodeStreams, "register", "node"),
        ):
            patch.setattr(streams, method, _serving(getattr(streams, method), faults, peer))
        yield


def _opening(real: Any, faults: Faults) -> Any:
    """Opens the streams of clients."""

    @wraps(real)
    def open_one(line: Any, service: Any, first: Any, outgoing: Any, *more: Any) -> Any:
        outgoing = _FaultyMessages(outgoing, Passage(faults, "client.send"))
        made = real(line, service, first, outgoing, *more)
        return _FaultyStream(made, Passage(faults, "client.receive"))

    return open_one


def _dialling(real: Any, faults: Faults) -> Any:
    """Opens the streams of nodes."""

    @wraps(real)
    async def dial(*arguments: Any) -> Any:
        made = await real(*arguments)
        return _FaultyCarrier(made, faults, "node.receive", "node.send")

    return dial


def _serving(real: Any, faults: Faults, peer: str) -> Any:
    """Serves the streams of one kind of peer."""

    @wraps(real)
    async def serve(self: Any, carrier: Any) -> Any:
        points = f"controller.from_{peer}", f"controller.to_{peer}"
        return await real(self, _FaultyCarrier(carrier, faults, *points))

    return serve


if __name__ == "__main__":
    _, given, module, *rest = sys.argv
    sys.argv = [module, *rest]
    with injected(given):
        runpy.run_module(module, run_name="__main__", alter_sys=True)
