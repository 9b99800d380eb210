"""Pretended programs, each of which has a session and does nothing with it."""

from __future__ import annotations

import asyncio

from disco_client.pb import controller_pb2
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EncodedEnvelope, EnvelopeKind, envelope
from disco_scale.carriers import PeerStream
from disco_scale.nodes import Traffic

__all__ = ["PretendedClient"]

_TIMEOUT_S = 600.0


class PretendedClient:
    """One program's side of a session.

    Args:
        name: The session's name, and its owner's.
        workers: How many workers it asks for.
        traffic: Counts what comes.

    Attributes:
        queued: Set once it waits for slots.
        ready: Set once its session runs.
    """

    def __init__(self, name: str, workers: int, traffic: Traffic) -> None:
        self._name = name
        self._workers = workers
        self._traffic = traffic
        self._session = 0
        self._carrier: PeerStream | None = None
        self.queued, self.ready = asyncio.Event(), asyncio.Event()

    async def run(self, carrier: PeerStream) -> None:
        """Asks for its session, and reads until that is over."""
        self._carrier = carrier
        create = controller_pb2.CreateSession(
            protocol=PROTOCOL,
            version=__version__,
            num_workers=self._workers,
            num_groups=1,
            name=self._name,
            owner=f"{self._name}@here:1",
            timeout_s=_TIMEOUT_S,
        )
        await carrier.send(envelope(EnvelopeKind.CREATE, create.SerializeToString()))
        while (message := await carrier.receive()) is not None:
            received = EncodedEnvelope.FromString(message)
            for raw in received.joined or (message,):
                self._take(raw)

    def _take(self, raw: bytes) -> None:
        received = EncodedEnvelope.FromString(raw)
        self._traffic.count(received.kind, len(raw))
        if received.kind == EnvelopeKind.QUEUED:
            self.queued.set()
        elif received.kind == EnvelopeKind.READY:
            self._session = received.session
            self.ready.set()
        elif received.kind == EnvelopeKind.ENDED and not self.ready.is_set():
            raise ConnectionError(controller_pb2.SessionEnded.FromString(received.payload).message)

    async def leave(self) -> None:
        """Ends its session."""
        if self._carrier is not None:
            await self._carrier.send(envelope(EnvelopeKind.CLOSE, session=self._session))
