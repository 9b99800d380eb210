"""Which part of a cluster a page shows: as many rows of each list as fit on a screen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, TypeVar

from disco_client.wire.overview import NodeView, Overview, SessionView

__all__ = ["ROWS", "Selection", "select"]


ROWS: Final = 25
"""How many rows of a list a page shows at a time."""

_MOST_FROM: Final = 10**6
_LONGEST: Final = 128
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a page shows.

    Attributes:
        session: The id of the session that is shown with its ranks, in hexadecimal; may be empty.
        nodes_from, sessions_from, over_from, waiting_from, ranks_from: The first row of each list.
        nodes_find, sessions_find, over_find: What the names of nodes, or the names, owners and
            ids of sessions, contain; empty for all.
    """

    session: str = ""
    nodes_from: int = 0
    sessions_from: int = 0
    over_from: int = 0
    waiting_from: int = 0
    ranks_from: int = 0
    nodes_find: str = ""
    sessions_find: str = ""
    over_find: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Selection:
        """Reads the parameters of a request.

        Raises:
            ValueError: A first row is no number, or too large.
        """
        given: dict[str, Any] = {}
        for each in fields(cls):
            text = query.get(each.name, "")
            if not text:
                continue
            if each.name.endswith("_from"):
                if not (text.isascii() and text.isdigit()) or int(text[:9]) > _MOST_FROM:
                    msg = f"expected a number from 0 to {_MOST_FROM} as {each.name}, got {text!r}"
                    raise ValueError(msg)
                given[each.name] = int(text)
            else:
                given[each.name] = text[:_LONGEST]
        return cls(**given)


def select(view: Overview, wanted: Selection) -> dict[str, Any]:
    """What the page draws, without any list that is longer than `ROWS`.

    Args:
        view: The cluster, with sessions that ended lately.
        wanted: What is shown of it.
    """
    nodes = _found(view.nodes, wanted.nodes_find, lambda node: (node.name,))
    live = [each for each in view.sessions if each.ended_s is None]
    over = [each for each in view.sessions if each.ended_s is not None]
    over.sort(key=lambda each: each.ended_s or 0.0)
    chosen = next((s for s in view.sessions if f"{s.session:016x}" == wanted.session), None)
    queued = [each for each in live if each.state == "queued"]  # in their order
    live = [each for each in live if each.state != "queued"]
    found = _found(live, wanted.sessions_find, _texts)
    ended = _found(over, wanted.over_find, _texts)
    return {
        "version": view.version,
        "taken_s": view.taken_s,
        "totals": _totals(view.nodes, live, len(queued)),
        "nodes": _page(nodes, wanted.nodes_from, asdict),
        "sessions": _page(found, wanted.sessions_from, _row),
        "over": _page(ended, wanted.over_from, _row),
        "waiting": _page(queued, wanted.waiting_from, _row),
        "session": None if chosen is None else _whole(chosen, wanted.ranks_from),
    }


def _texts(session: SessionView) -> tuple[str, ...]:
    return session.name, session.owner, f"{session.session:016x}", session.end_reason


def _found(items: Sequence[_T], text: str, texts: Callable[[_T], tuple[str, ...]]) -> Sequence[_T]:
    if not text:
        return items
    wanted = text.casefold()
    return [item for item in items if any(wanted in each.casefold() for each in texts(item))]


def _page(
    items: Sequence[_T], first: int, as_dict: Callable[[_T], dict[str, Any]]
) -> dict[str, Any]:
    """Some rows, and how many there are; the last ones where there are no more so many."""
    if first >= len(items):
        first = max(len(items) - 1, 0) // ROWS * ROWS
    rows = [as_dict(item) for item in items[first : first + ROWS]]
    return {"found": len(items), "from": first, "rows": rows}


def _row(session: SessionView) -> dict[str, Any]:
    """A session without its ranks, of which it has the sums."""
    found = replace(session, ranks=()).as_dict()
    del found["ranks"], found["nodes"]
    found["memory_bytes"] = session.memory_bytes
    found["commands_per_s"] = session.commands_per_s
    found["collective_bytes_per_s"] = session.collective_bytes_per_s
    return found


def _whole(session: SessionView, first: int) -> dict[str, Any]:
    """A session with some of its ranks."""
    ranks = _page(session.ranks, first, lambda rank: rank.as_dict())
    return {**_row(session), "ranks": ranks}


def _totals(
    nodes: Sequence[NodeView], live: Sequence[SessionView], queued: int
) -> dict[str, float | None]:
    loads = [node.load.cpu for node in nodes if node.load is not None]
    gpus = [gpu.busy for node in nodes if node.load is not None for gpu in node.load.gpus]
    return {
        "nodes": len(nodes),
        "away": sum(node.state == "away" for node in nodes),
        "draining": sum(node.state == "draining" for node in nodes),
        "slots": sum(node.slots for node in nodes),
        "used": sum(node.used for node in nodes),
        "sessions": len(live),
        "waiting": queued,
        "commands_per_s": sum(each.commands_per_s or 0.0 for each in live),
        "cpu": sum(loads) / len(loads) if loads else None,
        "gpu": sum(gpus) / len(gpus) if gpus else None,
    }
