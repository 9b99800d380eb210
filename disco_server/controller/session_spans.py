"""What a controller's spans tell of its sessions: how they are placed, begin and end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from disco_client.telemetry import spans
from disco_client.telemetry.base import NO_SPAN, Attributes, Span
from disco_server.core.cluster import (
    Effect,
    SessionGone,
    StartSession,
    TellEnded,
    TellQueued,
    TellReady,
)
from disco_server.core.session_state import End, EndReason, SessionTable

__all__ = ["OF_A_RANK", "SessionSpans"]


OF_A_RANK = (EndReason.RANK_LOST, EndReason.START_FAILED)
"""Ends that one rank is the cause of."""


@dataclass(slots=True)
class _Open:
    """The spans of one session, as far as they have begun."""

    start: Span = NO_SPAN
    place: Span = NO_SPAN
    end: Span = NO_SPAN

    @classmethod
    def begin(cls, session: SessionTable) -> Self:
        facts: dict[str, str | int] = {**_facts(session), "disco.num_workers": session.num_workers}
        start = spans.begin(
            "disco.session.start",
            facts,
            parent=session.passed_on.trace,
            began_s=session.created,
            kind="server",
        )
        place = spans.begin("disco.session.place", facts, parent=start, began_s=session.created)
        return cls(start, place)


class SessionSpans:
    """Makes spans from the effects of a controller's decisions alone."""

    def __init__(self) -> None:
        self._open: dict[int, _Open] = {}

    def see(self, effect: Effect) -> None:
        """Begins and ends what an effect begins and ends; to be called before it is carried out."""
        match effect:
            case TellQueued(session, place):
                self._of(session).place.note({"disco.queue.ahead": place.ahead})
            case StartSession(session):
                self._placed(session)
            case TellReady(session):
                self._of(session).start.end()
            case TellEnded(session, end):
                self._ended(session, end)
            case SessionGone(session_id):
                if (gone := self._open.pop(session_id, None)) is not None:
                    gone.end.end()
            case _:
                pass

    def ids(self, session: SessionTable) -> Mapping[str, str]:
        """What log lines about a session say of its trace."""
        found = self._open.get(session.session)
        if found is None:
            return {}
        return (found.start if found.end is NO_SPAN else found.end).ids

    def _of(self, session: SessionTable) -> _Open:
        found = self._open.get(session.session)
        if found is None:
            found = self._open[session.session] = _Open.begin(session)
            # Its nodes continue the trace from this process, if it makes spans at all.
            session.passed_on.trace = dict(found.start.headers) or session.passed_on.trace
        return found

    def _placed(self, session: SessionTable) -> None:
        found = self._of(session)
        found.place.note({"disco.nodes": [share.node for share in session.shares]})
        found.place.end()

    def _ended(self, session: SessionTable, end: End) -> None:
        if session.session not in self._open and session.shares:
            found = self._open[session.session] = _Open()  # begun by an earlier controller
        else:
            found = self._of(session)
        for unfinished in (found.place, found.start):
            unfinished.fail(end.message)  # does nothing where it has ended
            unfinished.end()
        found.end = spans.begin(
            "disco.session.end",
            {**_facts(session), **_facts_of_end(end)},
            parent=session.passed_on.trace,
        )
        if not end.as_wished:
            found.end.fail(end.message)


def _facts(session: SessionTable) -> dict[str, str]:
    return {"disco.session.id": f"{session.session:016x}", "disco.session.name": session.name}


def _facts_of_end(end: End) -> Attributes:
    facts: dict[str, str | int] = {
        "disco.end.reason": end.reason.name.lower(),
        "disco.end.message": end.message,
    }
    if end.reason in OF_A_RANK:
        facts |= {"disco.rank": end.worker, "disco.node": end.node}
    return facts
