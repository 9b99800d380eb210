"""The dashboard: a page that shows what the cluster does, and the stream of events that feeds it.

A viewer must show the same credentials as a caller of the gRPC port, and sees what that
caller would see. The page itself is the same for every viewer and holds no data; it
requests only its own files and its stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from disco_client.diagnosis import judge
from disco_client.errors import DiscoError
from disco_client.pb import controller_pb2
from disco_client.tracing.timeline import RankFlight
from disco_client.tracing.trace import Flight
from disco_client.wire.reports import (
    Inspection,
    decode_inspection,
    decode_overview,
    what_is_done,
)
from disco_server.controller.edge import NotYours, find_session
from disco_server.core.access import METHODS, Identity, Role
from disco_server.core.session_state import SessionState
from disco_server.observe.logs import refusals

if TYPE_CHECKING:
    from aiohttp import web

    from disco_server.controller.auth import AuthInterceptor
    from disco_server.controller.hub import Hub

__all__ = ["MOST_WATCHERS", "PARTS", "SECONDS", "Feed", "Page", "timeline"]


# The last seconds of each rank, in so many parts of equal length as a screen can show.


SECONDS: Final = 10.0
PARTS: Final = 200
_NAMED: Final = 40
"""For how many of the longest commands the name is sent."""

_PART_NS: Final = round(SECONDS * 1e9) // PARTS
Span = tuple[int, int]


def timeline(found: Inspection, now_ns: int | None = None) -> list[dict[str, object]]:
    """Says of each rank how much of each part of the last `SECONDS` went into what.

    Args:
        found: With the records of the ranks.
        now_ns: The controller's monotonic clock, for which times were corrected.

    Returns:
        For each rank ``busy``, ``wait`` and ``collective``, each `PARTS` shares from 0 to 1:
        of commands, of waiting for other ranks in collectives, and of collectives once all
        ranks had entered; and ``longest``, the longest commands, with names and seconds ago.
    """
    now = time.monotonic_ns() if now_ns is None else now_ns
    try:
        ranks = Flight.of(found).ranks
    except ValueError:  # a rank's own code wrote into its records
        return []
    return [_of_rank(rank, now) for rank in ranks]


def _of_rank(rank: RankFlight, now: int) -> dict[str, object]:
    begin = now - PARTS * _PART_NS
    commands = [c for c in rank.commands if (c.end_ns or now) > begin]
    collectives = [c for c in rank.collectives if (c.left_ns or now) > begin]
    waits = [(c.entered_ns, c.met_ns or c.left_ns or now) for c in collectives]
    moves = [(c.met_ns, c.left_ns or now) for c in collectives if c.met_ns]
    longest = sorted(commands, key=lambda c: c.start_ns - (c.end_ns or now))[:_NAMED]
    return {
        "worker": rank.worker,
        "node": rank.node,
        "busy": _shares(((c.start_ns, c.end_ns or now) for c in commands), begin),
        "wait": _shares(waits, begin),
        "collective": _shares(moves, begin),
        "longest": [
            {
                "what": what_is_done(command.action, command.name),
                "seq": command.seq,
                "ago": (now - command.start_ns) / 1e9,
                "seconds": ((command.end_ns or now) - command.start_ns) / 1e9,
                "running": not command.end_ns,
            }
            for command in longest
        ],
    }


def _shares(spans: Iterable[Span], begin: int) -> list[float]:
    """How much of each part is covered; commands that were timed together count once."""
    filled = [0] * PARTS
    last = begin
    for start, end in spans:
        at, stop = max(start, last), min(end, begin + PARTS * _PART_NS)
        last = max(last, stop)
        while at < stop:
            part = (at - begin) // _PART_NS
            edge = min(begin + (part + 1) * _PART_NS, stop)
            filled[part] += edge - at
            at = edge
    return [round(each / _PART_NS, 3) for each in filled]


# What the dashboard receives: the cluster each second, and more of the session it shows.


INTERVAL_S: Final = 1.0
TIMELINE_S: Final = 2.0
DIAGNOSIS_S: Final = 10.0
"""How long a command may take before it is diagnosed."""

LINES: Final = 500
"""How many of the last lines of a log are shown when it is opened."""

_NODES_S: Final = 5.0

_LOOK_S: Final = 0.75
"""The time between the two inspections that a diagnosis compares."""

Event = tuple[str, object]


class Feed:
    """The events for one viewer.

    Args:
        hub: What is shown.
        who: The viewer's identity.
        session: The id of the session that is viewed, in hexadecimal; may be empty.
    """

    def __init__(self, hub: Hub, who: Identity, session: str) -> None:
        self._hub = hub
        self._who = who
        self._session = session

    def streams(self) -> tuple[AsyncGenerator[Event], ...]:
        """The streams of events, each of its own period."""
        if not self._session:
            return (self._overviews(),)
        return self._overviews(), self._timelines(), self._diagnoses(), self._logs()

    async def _overviews(self) -> AsyncGenerator[Event]:
        while True:
            view = await self._hub.overviews.snapshot(self._who)
            yield "overview", decode_overview(view).as_dict()
            await asyncio.sleep(INTERVAL_S)

    async def _timelines(self) -> AsyncGenerator[Event]:
        """What each rank did in the last seconds, while its session is viewed."""
        while True:
            found = await self._inspect(flights=True)
            if found is not None:
                # Thousands of records, which would block the daemon's event loop.
                data = await asyncio.to_thread(timeline, found)
                yield "timeline", {"seconds": SECONDS, "ranks": data}
            await asyncio.sleep(TIMELINE_S)

    async def _diagnoses(self) -> AsyncGenerator[Event]:
        """Why the session makes no progress, when it seems to make none."""
        while True:
            view = await self._hub.overviews.snapshot(self._who)
            verdict = ""
            if self._stands_still(view):
                before = await self._inspect()
                await asyncio.sleep(_LOOK_S)
                found = await self._inspect(stacks=True)
                if found is not None and before is not None:
                    verdict = judge(found.ranks, found.silent, before=before.ranks)
            yield "verdict", verdict
            await asyncio.sleep(TIMELINE_S)

    def _stands_still(self, view: controller_pb2.OverviewResult) -> bool:
        mine = (each for each in view.sessions if f"{each.info.session:016x}" == self._session)
        return any(
            rank.report.current.seconds > DIAGNOSIS_S for each in mine for rank in each.ranks
        )

    async def _logs(self) -> AsyncGenerator[Event]:
        """What its ranks print."""
        try:
            session = find_session(self._hub.cluster, self._session, self._who, ended=True)
        except (LookupError, NotYours) as error:
            yield "refused", str(error.args[0])
            return
        log = self._hub.logs.of(session.session, over=session.state is SessionState.GONE)
        async for part in log.read(last=LINES, follow=True):
            yield "logs", _plain(part)

    async def _inspect(self, *, stacks: bool = False, flights: bool = False) -> Inspection | None:
        """Asks the nodes of the session; None where it is over, or the viewer may not see it."""
        request = controller_pb2.InspectRequest(
            name=self._session, stacks=stacks, flights=flights, timeout_s=_NODES_S
        )
        try:
            return decode_inspection(await self._hub.inspections.inspect(request, self._who))
        except (LookupError, NotYours, DiscoError):
            return None


def _plain(part: controller_pb2.LogsPart) -> dict[str, object]:
    return {
        "lost": part.lost,
        "printed": [
            {
                "time": each.time_s,
                "worker": each.lines.worker,
                "node": each.lines.node,
                "stderr": each.lines.stderr,
                "lines": list(each.lines.lines),
            }
            for each in part.printed
        ],
    }


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
"""Callers that may call this method may view the page."""

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
        interceptor: Authenticates viewers.
    """

    def __init__(self, hub: Hub, interceptor: AuthInterceptor) -> None:
        self._hub = hub
        self._interceptor = interceptor
        self._watchers = 0

    def routes(self) -> Mapping[str, Answer]:
        """The handler of each path."""
        return {**dict.fromkeys(_TYPES, self._file), "/events": self._events}

    async def _file(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._check_host(request)
        name, kind = _TYPES[request.path]
        text = (_FILES / name).read_text()
        return web.Response(text=text, content_type=kind, headers=_HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Sends what changes, as server-sent events, until the viewer disconnects."""
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
            pass  # the viewer has disconnected
        finally:
            self._watchers -= 1
        return response

    # Admission ------------------------------------------------------------------------

    def _check_host(self, request: web.Request) -> None:
        """Refuses requests by a foreign host name, as DNS rebinding makes them.

        Without authentication, a browser on this machine would give the page's data to any site
        whose name resolves to this machine; a request by address cannot come from such a site.
        """
        from aiohttp import web

        if isinstance(self._interceptor.identify("", ()), Identity) and not _is_address(
            request.host
        ):
            raise web.HTTPForbidden(
                text="expected an address or localhost as the host, since nobody is asked here"
                " who he is\n"
            )

    def _admit(self, request: web.Request) -> Identity:
        from aiohttp import web

        self._check_host(request)
        word, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip() if word.lower() == "bearer" else ""
        found = self._interceptor.identify(given, _names(request))
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
    """Writes the events of a stream; a slow reader makes it wait."""
    async with contextlib.aclosing(stream):
        async for name, data in stream:
            await response.write(_event(name, data))
