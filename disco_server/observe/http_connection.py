"""A connection at a daemon's HTTP port, and what a stranger may do there.

Importing this takes a quarter of a second, which a daemon without the port saves.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from disco_server.observe.acceptor import peer_text
from disco_server.observe.logs import refusals

__all__ = ["HttpConnection", "close_after"]

_MOST_BYTES = 32 << 10
"""What a stranger may send, headers included; aiohttp alone takes a mebibyte of headers."""


class HttpConnection(web.RequestHandler):
    """A connection, whose peer is a stranger until a handler has identified it.

    Args:
        server: Answers its requests.

    Attributes:
        known: Set when the peer is a stranger no more, or has left.
    """

    def __init__(self, server: web.Server) -> None:
        loop, nothing = asyncio.get_running_loop(), cast("Any", None)
        super().__init__(server, loop=loop, access_log=nothing)
        self.known = asyncio.Event()
        self._taken = 0

    def data_received(self, data: bytes) -> None:
        """Called by asyncio; ends the connection of a stranger that sends too much."""
        self._taken += len(data)
        if self._taken > _MOST_BYTES and not self.known.is_set():
            self._refuse(f"it sent more than {_MOST_BYTES} bytes before it said who it is")
            if self.transport is not None:
                self.transport.abort()
            return
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by asyncio."""
        super().connection_lost(exc)
        self.known.set()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Called by aiohttp; what a peer sends is written down in a line, of which few are."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            self._refuse(f"expected an HTTP request, got a malformed one: {error}")
        else:
            super().log_exception(*args, **kw)

    def _refuse(self, why: str) -> None:
        refusals.record("refused", peer=peer_text(self.peername), what="http", outcome=why)


async def close_after(request: web.Request, response: web.StreamResponse) -> None:
    """Lets a stranger have one answer on a connection, so that none is cut off by its deadline."""
    if not cast("HttpConnection", request.protocol).known.is_set():
        response.force_close()
        response.headers["Connection"] = "close"  # aiohttp has made the headers already
