"""What the dashboard is told: the cluster each second, and more of the session looked at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

from disco_client.errors import DiscoError
from disco_client.pb import controller_pb2
from disco_client.verdict import judge
from disco_client.wire.inspection import Inspection, decode_inspection
from disco_client.wire.overview import Overview, RankView, SessionView
from disco_server.controller.finding import find_session
from disco_server.controller.hub import Hub
from disco_server.controller.logs import LogPart
from disco_server.controller.page_timeline import SECONDS, timeline
from disco_server.controller.streams import NotYours
from disco_server.core.access import Identity
from disco_server.core.session_state import SessionState

__all__ = ["Feed"]

INTERVAL_S: Final = 1.0
TIMELINE_S: Final = 2.0
VERDICT_S: Final = 10.0
"""How long a command may take before somebody asks why."""

LINES: Final = 500
"""Of a log that is opened, so many of the last lines."""

_NODES_S: Final = 5.0

Event = tuple[str, object]


class Feed:
    """The events of one who looks.

    Args:
        hub: What is shown.
        who: Who looks.
        session: The id of the session that he looks at, in hexadecimal; may be empty.
    """

    def __init__(self, hub: Hub, who: Identity, session: str) -> None:
        self._hub = hub
        self._who = who
        self._session = session

    def streams(self) -> tuple[AsyncGenerator[Event], ...]:
        """What comes at its own pace each."""
        if not self._session:
            return (self._overviews(),)
        return self._overviews(), self._timelines(), self._verdicts(), self._logs()

    async def _overviews(self) -> AsyncGenerator[Event]:
        while True:
            view = await self._hub.overviews.snapshot(self._who)
            yield "overview", view.as_dict()
            await asyncio.sleep(INTERVAL_S)

    async def _timelines(self) -> AsyncGenerator[Event]:
        """What each rank did in the last seconds, while somebody looks at its session."""
        while True:
            found = await self._inspect(flights=True)
            if found is not None:
                # Thousands of records, which would keep the daemon from its work.
                data = await asyncio.to_thread(timeline, found)
                yield "timeline", {"seconds": SECONDS, "ranks": data}
            await asyncio.sleep(TIMELINE_S)

    async def _verdicts(self) -> AsyncGenerator[Event]:
        """Why the session does not go on, when it does not seem to."""
        while True:
            view = await self._hub.overviews.snapshot(self._who)
            verdict = ""
            if self._stands_still(view):
                found = await self._inspect(stacks=True)
                verdict = judge(found.ranks, found.silent) if found is not None else ""
            yield "verdict", verdict
            await asyncio.sleep(TIMELINE_S)

    def _stands_still(self, view: Overview) -> bool:
        session = self._find(view)
        return session is not None and any(map(_is_stuck, session.ranks))

    def _find(self, view: Overview) -> SessionView | None:
        ids = (each for each in view.sessions if f"{each.session:016x}" == self._session)
        return next(ids, None)

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
        """Asks the nodes of the session; None where it is over, or is not his."""
        request = controller_pb2.InspectRequest(
            name=self._session, stacks=stacks, flights=flights, timeout_s=_NODES_S
        )
        try:
            return decode_inspection(await self._hub.inspections.inspect(request, self._who))
        except (LookupError, NotYours, DiscoError):
            return None


def _is_stuck(rank: RankView) -> bool:
    return rank.current is not None and rank.current.seconds > VERDICT_S


def _plain(part: LogPart) -> dict[str, object]:
    return {
        "lost": part.lost,
        "printed": [
            {
                "time": each.time_s,
                "worker": each.worker,
                "node": each.node,
                "stderr": each.stderr,
                "lines": each.lines,
            }
            for each in part.printed
        ],
    }
