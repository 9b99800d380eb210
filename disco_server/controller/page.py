"""The dashboard: a page that shows what the cluster does, and the stream of events it lives on.

Who looks is asked what the other door of the controller asks, and sees what he would see
there. The page itself is the same for everybody and holds no data; it asks for nothing
but itself and its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from disco_server.controller.gate import Gate
from disco_server.controller.hub import Hub
from disco_server.controller.page_feed import Feed
from disco_server.core.access import METHODS, Identity, Role
from disco_server.observe.audit import refusals

if TYPE_CHECKING:
    from aiohttp import web

__all__ = ["MOST_WATCHERS", "Page"]

MOST_WATCHERS: Final = 64
"""How many streams there may be; each costs a look at the cluster's lists in a second."""

Answer: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

_FILES: Final = Path(__file__).parent / "dashboard"
_TYPES: Final = {
    "/": ("index.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
}
_WATCH: Final = "/disco.v1.SessionService/Overview"
"""Whoever may call that may look at the page."""

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self';"
    " connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Page:
    """What a controller's HTTP port answers besides metrics and health.

    Args:
        hub: What is shown.
        gate: Knows who is let in.
    """

    def __init__(self, hub: Hub, gate: Gate) -> None:
        self._hub = hub
        self._gate = gate
        self._watchers = 0

    def routes(self) -> Mapping[str, Answer]:
        """What answers which path."""
        return {**dict.fromkeys(_TYPES, self._file), "/events": self._events}

    async def _file(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._check_host(request)
        name, kind = _TYPES[request.path]
        text = (_FILES / name).read_text()
        return web.Response(text=text, content_type=kind, headers=_HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Sends what changes, as server-sent events, until whoever looks has seen enough."""
        from aiohttp import web

        who = self._admit(request)
        if self._watchers >= MOST_WATCHERS:
            raise web.HTTPServiceUnavailable(text=f"{MOST_WATCHERS} people look already")
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        self._watchers += 1
        try:
            await response.prepare(request)
            feed = Feed(self._hub, who, request.query.get("session", ""))
            async with asyncio.TaskGroup() as tasks:
                for stream in feed.streams():
                    tasks.create_task(_carry(stream, response))
        except* ConnectionError:
            pass  # whoever looked has left
        finally:
            self._watchers -= 1
        return response

    # Who is let in --------------------------------------------------------------------

    def _check_host(self, request: web.Request) -> None:
        """Refuses pages of others that borrow a name to read what only this machine may.

        Where nobody is asked who he is, a browser here would show what this page shows to
        any site whose name is made to lead to this machine; an address has no such name.
        """
        from aiohttp import web

        if isinstance(self._gate.identify("", ()), Identity) and not _is_address(request.host):
            raise web.HTTPForbidden(
                text="expected an address or localhost as the host, since nobody is asked here"
                " who he is\n"
            )

    def _admit(self, request: web.Request) -> Identity:
        from aiohttp import web

        self._check_host(request)
        word, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip() if word.lower() == "bearer" else ""
        found = self._gate.identify(given, _names(request))
        if not isinstance(found, Identity):
            self._note(request, "", found)
            raise web.HTTPUnauthorized(text=found, headers={"WWW-Authenticate": "Bearer"})
        allowed = METHODS[_WATCH] or frozenset[Role]()
        if found.role not in allowed and found.role is not Role.ANYBODY:
            problem = f"{found} may not look at the cluster"
            self._note(request, str(found), problem)
            raise web.HTTPForbidden(text=problem)
        return found

    def _note(self, request: web.Request, who: str, problem: str) -> None:
        refusals.record(
            "refused", who=who, peer=str(request.remote), what="dashboard", outcome=problem
        )


def _is_address(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _names(request: web.Request) -> tuple[str, ...]:
    """The URIs in the certificate of a browser, if it has shown one."""
    transport = request.transport
    shown: Any = transport.get_extra_info("peercert") if transport is not None else None
    names: tuple[tuple[str, str], ...] = shown.get("subjectAltName", ()) if shown else ()
    return tuple(value for kind, value in names if kind == "URI")


def _event(name: str, data: object) -> bytes:
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return f"event: {name}\ndata: {text}\n\n".encode()


async def _carry(stream: AsyncGenerator[tuple[str, object]], response: web.StreamResponse) -> None:
    """Writes what a stream brings; a slow reader makes it wait."""
    async with contextlib.aclosing(stream):
        async for name, data in stream:
            await response.write(_event(name, data))
