"""The dashboard: a page that shows what the cluster does, and acts on it for those who may.

A viewer must show the same credentials as a caller of the gRPC port, and sees what that
caller would see. The page itself is the same for every viewer and holds no data; it
requests only its own files, its streams and the answers below. What changes something is a
POST, which another site cannot make a browser send: it has to come from this page's own
address, as JSON, and no cookie identifies anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import ipaddress
import json
import secrets
import socket
import urllib.parse
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from disco_client.errors import DiscoError
from disco_client.hang_analysis import judge
from disco_client.pb import controller_pb2
from disco_client.text import many
from disco_client.tracing.chrome_trace import ChromeTrace
from disco_client.tracing.trace import Flight
from disco_client.wire.overview import decode_overview, describe_late
from disco_client.wire.reports import Inspection, decode_inspection
from disco_server.controller.asked_interrupts import GRACE_S, CannotInterrupt
from disco_server.controller.edge import NotYours, find_session
from disco_server.controller.page_holdings import MOST_FROM, MOST_STEPS, programs, tensors
from disco_server.controller.page_timeline import (
    MOST_RANKS,
    MOST_SECONDS,
    MOST_SPANS,
    Stretch,
    timeline,
)
from disco_server.controller.page_views import Selection, select
from disco_server.core.access import METHODS, Identity, Role
from disco_server.core.load import KEPT_S
from disco_server.core.session_state import SessionState, SessionTable
from disco_server.observe import logs
from disco_server.observe.http import identified
from disco_server.observe.logs import refusals

if TYPE_CHECKING:
    from aiohttp import web

    from disco_server.controller.auth import AuthInterceptor
    from disco_server.controller.hub import Hub
    from disco_server.controller.logs import SessionLog

__all__ = ["MOST_FILES", "MOST_WATCHERS", "Feed", "Page"]


# What the dashboard receives: the cluster each second, and more of the session it shows.


INTERVAL_S: Final = 1.0
DIAGNOSIS_EVERY_S: Final = 2.0
DIAGNOSIS_S: Final = 10.0
"""How long a command may take before it is diagnosed."""

LINES: Final = 2_000
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
        wanted: Which part of it.
    """

    def __init__(self, hub: Hub, who: Identity, wanted: Selection) -> None:
        self._hub = hub
        self._who = who
        self._wanted = wanted

    async def overviews(self) -> AsyncGenerator[Event]:
        """The cluster, once a second."""
        may = _may(self._who)
        while True:
            view = await self._hub.overviews.snapshot(
                self._who, ended=True, ranks_of_ended=self._wanted.session
            )
            # Thousands of rows, which would block the daemon's event loop.
            shown = await asyncio.to_thread(_select, view, self._wanted)
            yield "overview", {**shown, "may": may}
            await asyncio.sleep(INTERVAL_S)

    async def diagnoses(self) -> AsyncGenerator[Event]:
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
            await asyncio.sleep(DIAGNOSIS_EVERY_S)

    def _stands_still(self, view: controller_pb2.OverviewResult) -> bool:
        wanted = self._wanted.session
        mine = (each for each in view.sessions if f"{each.info.session:016x}" == wanted)
        return any(
            rank.report.current.seconds > DIAGNOSIS_S for each in mine for rank in each.ranks
        )

    async def lines(self) -> AsyncGenerator[Event]:
        """What its ranks print."""
        try:
            session = find_session(self._hub.cluster, self._wanted.session, self._who, ended=True)
        except (LookupError, NotYours) as error:
            yield "refused", str(error.args[0])
            return
        async for part in _log_of(self._hub, session).read(last=LINES, follow=True):
            yield "logs", _plain(part)

    async def _inspect(self, *, stacks: bool = False) -> Inspection | None:
        """Asks the nodes of the session; None where it is over, or the viewer may not see it."""
        request = controller_pb2.InspectRequest(
            name=self._wanted.session, stacks=stacks, timeout_s=_NODES_S
        )
        try:
            return decode_inspection(await self._hub.inspections.inspect(request, self._who))
        except (LookupError, NotYours, DiscoError):
            return None


def _select(raw: controller_pb2.OverviewResult, wanted: Selection) -> dict[str, Any]:
    return select(decode_overview(raw), wanted)


def _log_of(hub: Hub, session: SessionTable) -> SessionLog:
    return hub.logs.of(session.session, over=session.state is SessionState.GONE)


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


MOST_WATCHERS: Final = 32
"""How many streams an owner may read; a page has two when it shows a session, and each costs a look
at the cluster's lists in a second."""

MOST_FILES: Final = 8
"""How many files an owner may have asked for that it has not read to the end: what ranks printed,
of which each holds up to a mebibyte, and their records."""

MOST_NODES: Final = 64
"""For how many nodes one answer has their last hour."""

_MOST_PARTS: Final = 360
_MOST_DIGITS: Final = 18
_MOST_SEQ: Final = 10**_MOST_DIGITS - 1
_MOST_BODY: Final = 4096
_PIECE: Final = 64 << 10
"""How many characters of a file are encoded at a time."""

_UNREAD_BYTES: Final = 64 << 10
"""How much of an answer the system may hold, which takes twice of it for its own records."""

_AT_ONCE: Final = 2
"""How many answers are made from the records of ranks at a time; each takes up to a second."""

Answer: TypeAlias = "Callable[[web.Request], Awaitable[web.StreamResponse]]"

_FILES: Final = Path(__file__).parent / "dashboard"
_TYPES: Final = {
    "/": ("index.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/timeline.js": ("timeline.js", "text/javascript"),
    "/held.js": ("held.js", "text/javascript"),
    "/programs.js": ("programs.js", "text/javascript"),
    "/tensors.js": ("tensors.js", "text/javascript"),
    "/output.js": ("output.js", "text/javascript"),
    "/actions.js": ("actions.js", "text/javascript"),
    "/text.js": ("text.js", "text/javascript"),
}
_STOP: Final = "/disco.v1.SessionService/Close"
_OF_RUNNING: Final = ("close refused", "interrupt refused")
_INTERRUPT: Final = "/disco.v1.SessionService/Interrupt"
_DRAIN: Final = "/disco.v1.SessionService/Drain"
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


class _OwnerLimit:
    """Counts what each owner has under way, so that no owner has all of it.

    Args:
        most: How many an owner may have.
        what: What is counted, for the error.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._counts: Counter[str] = Counter()

    @contextlib.contextmanager
    def counted(self, owner: str) -> Generator[None]:
        """Counts one more for as long as the block lasts.

        Raises:
            HTTPTooManyRequests: The owner has as many as it may.
        """
        from aiohttp import web

        if self._counts[owner] >= self._most:
            msg = f"{self._most} {self._what} already; close one, and ask again\n"
            raise web.HTTPTooManyRequests(text=msg)
        self._counts[owner] += 1
        try:
            yield
        finally:
            self._counts[owner] -= 1
            if not self._counts[owner]:
                del self._counts[owner]


class Page:
    """What a controller's HTTP port answers besides metrics and health.

    Args:
        hub: What is shown.
        interceptor: Authenticates viewers.
        token: What viewers have to show where the interceptor asks callers for nothing; empty
            for nothing here either.
    """

    def __init__(self, hub: Hub, interceptor: AuthInterceptor, token: str = "") -> None:
        self._hub = hub
        self._interceptor = interceptor
        self._token = token
        self._streams = _OwnerLimit(MOST_WATCHERS, "streams of yours are read")
        self._files = _OwnerLimit(MOST_FILES, "files of yours are on their way, and not read,")
        self._making = asyncio.Semaphore(_AT_ONCE)

    def routes(self) -> Mapping[str, Answer]:
        """The handler of each path that is read."""
        return {
            **dict.fromkeys(_TYPES, self._file),
            "/events": self._events,
            "/session": self._session,
            "/load": self._load,
            "/timeline": self._timeline,
            "/stack": self._stack,
            "/programs": self._programs,
            "/tensors": self._tensors,
            "/trace": self._trace,
            "/logs": self._logs,
        }

    def actions(self) -> Mapping[str, Answer]:
        """The handler of each path to which something is posted."""
        return {"/stop": self._stop, "/interrupt": self._interrupt, "/drain": self._drain}

    async def _file(self, request: web.Request) -> web.Response:
        from aiohttp import web

        self._check_host(request)
        name, kind = _TYPES[request.path]
        text = (_FILES / name).read_text()
        return web.Response(text=text, content_type=kind, headers=_HEADERS)

    # Streams --------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Sends what the cluster does, as server-sent events, until the viewer disconnects."""
        feed, owner = self._feed(request)
        return await self._carry(request, owner, feed.overviews())

    async def _session(self, request: web.Request) -> web.StreamResponse:
        """Sends what the ranks of a session print, and why it stands still."""
        feed, owner = self._feed(request)
        return await self._carry(request, owner, feed.diagnoses(), feed.lines())

    def _feed(self, request: web.Request) -> tuple[Feed, str]:
        from aiohttp import web

        who = self._admit(request)
        try:
            return Feed(self._hub, who, Selection.read(request.query)), _owner_of(request, who)
        except ValueError as error:
            raise web.HTTPBadRequest(text=f"{error}\n") from None

    async def _carry(
        self, request: web.Request, owner: str, *streams: AsyncGenerator[Event]
    ) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
        with self._streams.counted(owner):
            try:
                await response.prepare(request)
                _bound_unread(request)
                async with asyncio.TaskGroup() as tasks:
                    for stream in streams:
                        tasks.create_task(_write(stream, response))
            except* ConnectionError:
                pass  # the viewer has disconnected
        return response

    # Answers --------------------------------------------------------------------------

    async def _load(self, request: web.Request) -> web.Response:
        """What the machines of some nodes did in the last hour, or less."""
        self._admit(request)
        names = request.query.getall("node", [])[:MOST_NODES]
        parts = _number(request, "parts", 60, _MOST_PARTS, least=1)
        seconds = _number(request, "seconds", round(KEPT_S), round(KEPT_S), least=1)
        now, known = self._hub.clock(), self._hub.cluster.members.nodes
        found = {name: known[name].load for name in names if name in known}
        nodes = await asyncio.to_thread(
            lambda: {name: load.series(now, parts, seconds) for name, load in found.items()}
        )
        return _json({"seconds": seconds, "parts": parts, "nodes": nodes})

    async def _timeline(self, request: web.Request) -> web.Response:
        """What some ranks of a session did in the last seconds."""
        spans = _number(request, "spans", 600, MOST_SPANS, least=10)
        thousandths = _number(request, "ms", 10_000, round(MOST_SECONDS * 1e3), least=1)
        found = await self._inspect(request, flights=True)
        async with self._making:
            stretch = Stretch.until_now(thousandths / 1e3, spans)
            told = await asyncio.to_thread(timeline, found, stretch)
        return _json({**told, "num_workers": found.num_workers})

    async def _stack(self, request: web.Request) -> web.Response:
        """Where in its Python code a rank is."""
        found = await self._inspect(request, stacks=True)
        silent = [
            {"worker": worker, "stack": "", "note": f"node {each.node} did not answer"}
            for each in found.silent
            for worker in each.workers
        ]
        ranks = [
            {"worker": r.worker, "node": r.node, "pid": r.pid, "stack": r.stack, "note": r.note}
            for r in found.ranks
        ]
        return _json({"ranks": ranks + silent})

    async def _programs(self, request: web.Request) -> web.Response:
        """The captured programs of one rank, and the steps of one of them."""
        asked = controller_pb2.HoldingsRequest(
            program=_number(request, "program", 0, _MOST_SEQ),
            programs_from=_number(request, "from", 0, MOST_FROM),
        )
        first = _number(request, "step", 0, MOST_FROM)
        count = _number(request, "steps", MOST_STEPS, MOST_STEPS, least=1)
        found = await self._inspect(request, flights=True, holdings=asked)
        async with self._making:
            told = await asyncio.to_thread(programs, found, asked, first, count)
        return _json({**told, "num_workers": found.num_workers})

    async def _tensors(self, request: web.Request) -> web.Response:
        """The published tensors of one rank, and the layout of one of them."""
        asked = controller_pb2.HoldingsRequest(tensors_from=_number(request, "from", 0, MOST_FROM))
        name = request.query.get("name", "")
        first = _number(request, "place", 0, MOST_FROM)
        found = await self._inspect(request, holdings=asked)
        async with self._making:
            told = await asyncio.to_thread(tensors, found, asked, name, first)
        return _json({**told, "num_workers": found.num_workers})

    async def _trace(self, request: web.Request) -> web.StreamResponse:
        """What some ranks did last, in Chrome's trace format."""
        with self._files.counted(_owner_of(request, self._admit(request))):
            found = await self._inspect(request, flights=True)
            async with self._making:
                text = await asyncio.to_thread(_chrome_trace, found)
            return await _send_file(
                request, f"{found.name}.trace.json", "application/json", _pieces(text)
            )

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        """The lines of a session that are kept."""
        who = self._admit(request)
        with self._files.counted(_owner_of(request, who)):
            session = self._find(request, who, "logs refused")
            lines = _lines_of(_log_of(self._hub, session))
            return await _send_file(request, f"{session.name}.log", "text/plain", lines)

    async def _inspect(
        self,
        request: web.Request,
        *,
        stacks: bool = False,
        flights: bool = False,
        holdings: controller_pb2.HoldingsRequest | None = None,
    ) -> Inspection:
        """Asks the nodes of some ranks of the session that a request is about.

        What ranks hold is asked of one alone.
        """
        from aiohttp import web

        who = self._admit(request)
        session = self._find(request, who, "inspection refused")
        first = _number(request, "first", 0, max(session.num_workers - 1, 0))
        count = _number(request, "count", 1, MOST_RANKS if holdings is None else 1, least=1)
        asked = controller_pb2.InspectRequest(
            name=f"{session.session:016x}",
            stacks=stacks,
            flights=flights,
            holdings=holdings,
            timeout_s=_NODES_S,
        )
        workers = range(first, min(first + count, session.num_workers))
        try:
            return decode_inspection(await self._hub.inspections.inspect(asked, who, workers))
        except NotYours as error:
            raise web.HTTPForbidden(text=f"{error}\n") from None
        except LookupError as error:
            raise web.HTTPNotFound(text=f"{error.args[0]}\n") from None

    def _find(
        self, request: web.Request, who: Identity, event: str, name: str = ""
    ) -> SessionTable:
        """The session that a request names, which the caller must be allowed to use."""
        from aiohttp import web

        name = name or request.query.get("session", "")
        try:
            return find_session(self._hub.cluster, name, who, ended=event not in _OF_RUNNING)
        except NotYours as error:
            self._note(request, str(who), str(error), event)
            raise web.HTTPForbidden(text=f"{error}\n") from None
        except LookupError as error:
            raise web.HTTPNotFound(text=f"{error.args[0]}\n") from None

    # Actions --------------------------------------------------------------------------

    async def _stop(self, request: web.Request) -> web.Response:
        """Ends a session, whose name the viewer has confirmed."""
        who, session = await self._act_on_session(request, _STOP, "close refused")
        self._hub.stop_session(session, who, str(request.remote), what="dashboard")
        return _json({"session": f"{session.session:016x}", "name": session.name})

    async def _interrupt(self, request: web.Request) -> web.Response:
        """Has the program of a session interrupt it; its name has been confirmed."""
        from aiohttp import web

        who, session = await self._act_on_session(request, _INTERRUPT, "interrupt refused")
        try:
            late = await self._hub.interrupts.ask(
                session, who, str(request.remote), grace=GRACE_S, what="dashboard"
            )
        except CannotInterrupt as error:
            raise web.HTTPConflict(text=f"{error}\n") from None
        if late:
            raise web.HTTPConflict(text=f"{describe_late(late, GRACE_S)}\n")
        return _json({"session": f"{session.session:016x}", "name": session.name})

    async def _drain(self, request: web.Request) -> web.Response:
        """Lets a node take no new sessions, or take them again; its name has been confirmed."""
        from aiohttp import web

        who, asked = await self._act(request, _DRAIN)
        name = asked.get("node", "")
        node = self._hub.cluster.members.nodes.get(name)
        if node is None:
            raise web.HTTPNotFound(text=f"expected a node that is here, got {name!r}\n")
        if asked.get("confirm") != name:
            raise web.HTTPConflict(text=f"expected the node's name, {name!r}, as confirm\n")
        undo = asked.get("undo") == "yes"
        self._hub.drain_node(name, who, str(request.remote), undo=undo, by="dashboard")
        return _json({"node": name, "state": node.state})

    async def _act_on_session(
        self, request: web.Request, method: str, refused: str
    ) -> tuple[Identity, SessionTable]:
        """Checks a request to change something about a session; returns the caller and that."""
        from aiohttp import web

        who, asked = await self._act(request, method)
        session = self._find(request, who, refused, asked.get("session", ""))
        if asked.get("confirm") != session.name:
            raise web.HTTPConflict(
                text=f"expected the session's name, {session.name!r}, as confirm\n"
            )
        return who, session

    async def _act(self, request: web.Request, method: str) -> tuple[Identity, dict[str, str]]:
        """Checks that a request to change something comes from this page, by one who may.

        Returns:
            The caller, and what the request says.
        """
        from aiohttp import web

        who = self._admit(request)
        if request.headers.get("Origin") != f"{request.scheme}://{request.host}":
            problem = "expected a request of this page's own address, as its Origin says"
            self._note(request, str(who), problem)
            raise web.HTTPForbidden(text=f"{problem}\n")
        if request.content_type != "application/json":
            # A form of another site cannot send this type.
            raise web.HTTPUnsupportedMediaType(text="expected application/json\n")
        if not _allowed(who, method):
            problem = f"{who} may not do this"
            self._note(request, str(who), problem)
            raise web.HTTPForbidden(text=f"{problem}\n")
        body = await request.read()  # aiohttp refuses more than a mebibyte
        if len(body) > _MOST_BODY:
            raise web.HTTPRequestEntityTooLarge(_MOST_BODY, len(body))
        try:
            asked: object = json.loads(body)
        except (ValueError, RecursionError):
            asked = None
        found = cast("dict[str, object]", asked) if isinstance(asked, dict) else {"": None}
        said = {key: value for key, value in found.items() if isinstance(value, str)}
        if len(said) < len(found):
            raise web.HTTPBadRequest(text="expected a JSON object of texts\n")
        return who, said

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
        if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
            self._note(request, "", "a page of another site asked")
            raise web.HTTPForbidden(text="expected a request of this page\n")
        word, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token.strip() if word.lower() == "bearer" else ""
        found = self._identify(given, _names(request))
        if not isinstance(found, Identity):
            self._note(request, "", found)
            raise web.HTTPUnauthorized(text=found, headers={"WWW-Authenticate": "Bearer"})
        if not _allowed(found, _WATCH):
            problem = f"{found} may not look at the cluster"
            self._note(request, str(found), problem)
            raise web.HTTPForbidden(text=problem)
        identified(request)
        return found

    def _identify(self, token: str, names: tuple[str, ...]) -> Identity | str:
        """Identifies a viewer; a text that says what was expected where that is not possible."""
        if self._token and not secrets.compare_digest(token.encode(), self._token.encode()):
            came = "another one" if token else "none"
            return f"this page asks for the token of its address, as it was printed; {came} came"
        return self._interceptor.identify(token, names)

    def _note(self, request: web.Request, who: str, problem: str, event: str = "refused") -> None:
        what = f"dashboard {request.path}"
        refusals.record(event, who=who, peer=str(request.remote), what=what, outcome=problem)


def _owner_of(request: web.Request, who: Identity) -> str:
    """Tells apart whose requests are counted; without authentication by where they come from."""
    return who.principal or str(request.remote)


def _allowed(who: Identity, method: str) -> bool:
    """Whether a caller may call a method of the gRPC port."""
    return who.role in (METHODS[method] or frozenset[Role]()) or who.role is Role.ANYBODY


def _may(who: Identity) -> dict[str, bool]:
    """What the page offers to a viewer."""
    return {
        "stop": _allowed(who, _STOP),
        "interrupt": _allowed(who, _INTERRUPT),
        "drain": _allowed(who, _DRAIN),
    }


def _number(request: web.Request, name: str, default: int, most: int, *, least: int = 0) -> int:
    """A parameter of a request."""
    from aiohttp import web

    text = request.query.get(name, str(default))
    digits = text if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else "-1"
    if not least <= int(digits) <= most:
        raise web.HTTPBadRequest(
            text=f"expected a number from {least} to {most} as {name}, got {text[:20]!r}\n"
        )
    return int(text)


def _json(data: object) -> web.Response:
    from aiohttp import web

    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return web.Response(text=text, content_type="application/json", headers=_HEADERS)


def _bound_unread(request: web.Request) -> None:
    """Lets little of an answer lie between its maker and a peer that does not read it.

    Linux alone takes 3 MB for one that reads nothing.
    """
    transport = request.transport
    if transport is None:  # the viewer has disconnected
        return
    transport.set_write_buffer_limits(0)
    sock: Any = transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)


async def _send_file(
    request: web.Request, name: str, kind: str, parts: AsyncGenerator[str]
) -> web.StreamResponse:
    """Answers with something to be saved as a file, and returns when little of it is unread.

    Each part is made when those before are on their way, so a slow reader holds one of them.
    """
    from aiohttp import web

    quoted = urllib.parse.quote(name, safe="")
    disposition = f"attachment; filename*=UTF-8''{quoted}"
    headers = {
        **_HEADERS,
        "Content-Disposition": disposition,
        "Content-Type": f"{kind}; charset=utf-8",
    }
    response = web.StreamResponse(headers=headers)
    with contextlib.suppress(ConnectionError):  # the viewer has disconnected
        await response.prepare(request)
        _bound_unread(request)
        async with contextlib.aclosing(parts):
            async for part in parts:
                await response.write(part.encode())
        await response.write_eof()
    return response


async def _pieces(text: str) -> AsyncGenerator[str]:
    for at in range(0, len(text), _PIECE):
        yield text[at : at + _PIECE]


async def _lines_of(log: SessionLog) -> AsyncGenerator[str]:
    """What ranks printed, as a text for people."""
    async for part in log.read():
        if part.lost:
            yield f"... {many(part.lost, 'line')} not kept any more\n"
        for each in part.printed:
            at, said = logs.time_text(each.time_s), each.lines
            kind = "err" if said.stderr else "out"
            begin = f"{at} {said.worker} {said.node} {kind}"
            yield "".join(f"{begin} {line}\n" for line in said.lines)


def _chrome_trace(found: Inspection) -> str:
    """The records of ranks as a file; without those that cannot be read."""
    out = io.StringIO()
    try:
        flight = Flight.of(found)
    except ValueError:  # a rank's own code wrote into its records
        return json.dumps({"traceEvents": []})
    ChromeTrace(flight.session, flight.ranks, None).write(out)
    return out.getvalue()


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


async def _write(stream: AsyncGenerator[Event], response: web.StreamResponse) -> None:
    """Writes the events of a stream; a slow reader makes it wait."""
    async with contextlib.aclosing(stream):
        async for name, data in stream:
            await response.write(_event(name, data))
