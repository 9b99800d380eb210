"""Why a session has no room, and what to do about it: in words for who asked for it."""

from __future__ import annotations

from collections.abc import Iterable

from disco_client.wording import many
from disco_server.core.membership import Membership
from disco_server.core.placement import kind_for
from disco_server.core.session_state import SessionState, SessionTable

__all__ = ["no_room"]


def no_room(
    asked: SessionTable,
    members: Membership,
    sessions: Iterable[SessionTable],
    now: float,
    *,
    never: bool,
) -> str:
    """Says how many slots there are, who holds them, and how to go on.

    Args:
        asked: The session that has none.
        members: The nodes.
        sessions: Those that may hold slots.
        now: The time.
        never: Whether it would not fit although all slots were free, and no others come.
    """
    kinds, wanted = members.slots_by_kind, kind_for(asked.ccl)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    what = f"{f'{wanted} ' * bool(wanted)}workers"
    there = (
        f"the cluster has {many(members.total_slots, 'slot')}"
        f"{f' ({by_kind})' * (bool(wanted) or len(kinds) > 1)} on "
        f"{many(len(members.nodes), 'node')}"
    )
    text = f"no room for {asked.num_workers} {what}"
    if never:
        more = _go_on(asked, members, "start it with more nodes or slots")
        return f"{text}: {there}, and there will be no others; {more}"
    text += f" in time: {there}, {members.free_slots} of them free"
    held = [
        f"{each.name!r} holds {each.num_workers} ({each.owner}{_away(each, now)})"
        for each in sessions
        if each.shares and each is not asked
    ]
    if held:
        text += "; session " + ", ".join(held)
    return f"{text}; {_go_on(asked, members, 'add nodes or slots')}"


def _go_on(asked: SessionTable, members: Membership, more: str) -> str:
    kinds, wanted = members.slots_by_kind, kind_for(asked.ccl)
    most = kinds.get(wanted, 0) if wanted else max(kinds.values(), default=0)
    if not members.nodes:
        return "start a worker daemon: disco-worker --controller HOST:PORT"
    if most >= asked.num_workers:
        return "wait longer (timeout=...) or end a session"
    if wanted:
        return f"{more} with --devices {wanted}, ask for fewer, or leave out ccl"
    one_kind = " (those of one session have devices of one kind)" if len(kinds) > 1 else ""
    return f"{more}, or ask for fewer workers{one_kind}"


def _away(session: SessionTable, now: float) -> str:
    """Says of a session whose program is away how long it holds its slots yet."""
    if session.state is not SessionState.DETACHED:
        return ""
    return f", which is away; free in {max(0.0, session.deadline - now):.0f} s unless it comes back"
