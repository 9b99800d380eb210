"""Who may use the service: keys, and the pages of browsers."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from aiohttp import web

from llm.asked import Refused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["OPEN", "demand_key", "let_origins_read"]

OPEN = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
"""What needs no key: probes and Prometheus have none. It says how much is done, and no text."""

_REMEMBERED_S = 600
"""How long a browser need not ask again."""


def demand_key(app: web.Application, keys: Sequence[str]) -> None:
    """Lets only requests pass that have a key, but for those of `OPEN`.

    Args:
        app: The application, whose last middleware says what is refused.
        keys: One of them is enough.
    """
    digests = [_digest(key.encode()) for key in keys]

    def knows(given: str) -> bool:
        kind, _, key = given.partition(" ")
        digest = _digest(key.strip().encode("utf-8", "surrogateescape"))
        # Digests have one length, and all of them are compared: the time says nothing of a key.
        known = [hmac.compare_digest(digest, each) for each in digests]
        return kind.lower() == "bearer" and any(known)

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        given = request.headers.get("Authorization", "")
        if request.path not in OPEN and not knows(given):
            raise Refused(
                "expected the service's key, as Authorization: Bearer KEY; ask whoever runs it",
                status=401,
                code="invalid_api_key",
            )
        return await handler(request)

    app.middlewares.append(check)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def let_origins_read(app: web.Application, origins: Sequence[str]) -> None:
    """Lets the pages of some origins use an application (CORS, fetch.spec.whatwg.org).

    Args:
        app: The application.
        origins: Such as ``https://chat.example``; ``*`` for all.
    """

    def allowed(http: web.BaseRequest) -> str:
        origin = http.headers.get("Origin", "")
        return origin if origin in origins or "*" in origins else ""

    async def add_headers(http: web.Request, response: web.StreamResponse) -> None:
        response.headers.add("Vary", "Origin")
        if origin := allowed(http):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"

    @web.middleware
    async def preflight(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        asks = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not asks or not allowed(request):
            return await handler(request)
        # OpenAI's clients send headers of their own; a key is checked when the request comes.
        named = request.headers.get("Access-Control-Request-Headers")
        headers = {
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Allow-Headers": named or "Authorization, Content-Type",
            "Access-Control-Max-Age": str(_REMEMBERED_S),
        }
        return web.Response(status=204, headers=headers)

    app.middlewares.insert(0, preflight)
    app.on_response_prepare.append(add_headers)
