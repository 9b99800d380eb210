"""Pretended programs, each of which has a session and does nothing with it."""

from __future__ import annotations

import asyncio

from disco_client.pb import controller_pb2
from disco_client.transport.credentials import NO_CREDENTIALS
from disco_client.transport.grpc_options import CHANNEL_OPTIONS
from disco_client.version import __version__
from disco_client.wire.codec import (
    PROTOCOL,
    EncodedEnvelope,
    EnvelopeKind,
    envelope,
    envelopes_in,
)
from disco_scale.nodes import Traffic
from disco_server.ipc.carriers import Carrier, open_carrier, open_line

__all__ = ["PretendedClient"]

_TIMEOUT_S = 600.0


class PretendedClient:
    """One program's side of a session.

    Args:
        address: The controller's.
        name: The session's name, and its owner's.
        workers: How many workers it asks for.
        traffic: Counts what comes.
        owner: Whose session it is; one of its own where that is empty.
        timeout_s: For how many seconds it waits for slots. Where that is not as usual, it is no
            failure to wait in vain.

    Attributes:
        carrier: What carries its stream, once that is open.
        queued: Set once it waits for slots.
        ready: Set once its session runs.
    """

    def __init__(
        self,
        address: str,
        name: str,
        workers: int,
        traffic: Traffic,
        *,
        owner: str = "",
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        self._address = address
        self._name = name
        self._workers = workers
        self._traffic = traffic
        self._owner = owner or name
        self._timeout_s = timeout_s
        self._session = 0
        self.carrier: Carrier | None = None
        self.queued, self.ready = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Asks for its session, and reads until that is over."""
        create = controller_pb2.CreateSession(
            protocol=PROTOCOL,
            version=__version__,
            num_workers=self._workers,
            num_groups=1,
            name=self._name,
            owner=f"{self._owner}@here:1",
            timeout_s=self._timeout_s,
        )
        first = envelope(EnvelopeKind.CREATE, create.SerializeToString())
        async with open_line(self._address, NO_CREDENTIALS, CHANNEL_OPTIONS) as line:
            self.carrier = await open_carrier(line, "/disco.v1.SessionService/Open", first)
            try:
                await self.carrier.send(first)
                await self.carrier.receive(self._take_all)
            finally:
                self.carrier.close()

    def _take_all(self, message: bytes) -> None:
        for raw, received in envelopes_in(message):
            self._take(raw, received)

    def _take(self, raw: bytes, received: EncodedEnvelope) -> None:
        self._traffic.count(received.kind, len(raw))
        if received.kind == EnvelopeKind.QUEUED:
            self.queued.set()
        elif received.kind == EnvelopeKind.READY:
            self._session = received.session
            self.ready.set()
        elif received.kind == EnvelopeKind.ENDED and not self.ready.is_set():
            if self._timeout_s < _TIMEOUT_S:
                return
            raise ConnectionError(controller_pb2.SessionEnded.FromString(received.payload).message)

    async def leave(self) -> None:
        """Ends its session."""
        if self.carrier is not None:
            await self.carrier.send(envelope(EnvelopeKind.CLOSE, session=self._session))
