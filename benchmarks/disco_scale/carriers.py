"""What carries the messages of a pretended peer: send, receive, close.

What the peers say is in :mod:`~disco_scale.nodes`; they are handed one of these.
"""

from __future__ import annotations

from typing import Any, Protocol

import grpc

from disco_client.transport.channel import CHANNEL_OPTIONS, NODE_STREAM_OPTIONS, target

__all__ = ["GrpcPeerStream", "PeerStream"]

_OPTIONS = {"NodeService/Register": NODE_STREAM_OPTIONS, "SessionService/Open": CHANNEL_OPTIONS}


class PeerStream(Protocol):
    """A stream of encoded messages to a controller, over a connection of its own."""

    async def send(self, message: bytes) -> None:
        """Sends a message."""
        ...

    async def receive(self) -> bytes | None:
        """Waits for a message; None once the stream has ended."""
        ...

    async def ask(self, method: str, request: bytes) -> bytes:
        """Makes a call beside the stream; returns the answer."""
        ...

    async def close(self) -> None:
        """Ends the stream and its connection."""
        ...


class GrpcPeerStream:
    """A stream of gRPC.

    Args:
        address: The controller's.
        method: Which stream, such as ``NodeService/Register``.
    """

    def __init__(self, address: str, method: str) -> None:
        self._channel = grpc.aio.insecure_channel(target(address), options=_OPTIONS[method])
        untyped: Any = self._channel
        self._stream: Any = untyped.stream_stream(f"/disco.v1.{method}")()

    async def send(self, message: bytes) -> None:
        """Sends a message."""
        await self._stream.write(message)

    async def receive(self) -> bytes | None:
        """Waits for a message; None once the stream has ended."""
        message = await self._stream.read()
        return None if message is grpc.aio.EOF else message

    async def ask(self, method: str, request: bytes) -> bytes:
        """Makes a call beside the stream; returns the answer."""
        untyped: Any = self._channel
        return await untyped.unary_unary(f"/disco.v1.{method}")(request)

    async def close(self) -> None:
        """Ends the stream and its connection."""
        self._stream.cancel()
        await self._channel.close()
