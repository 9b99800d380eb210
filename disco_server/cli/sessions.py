"""``disco sessions``: the sessions of a cluster, or what the ranks of one do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from disco_client.errors import NoSuchSession
from disco_server.cli.figures import count, duration, rate, size
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    session_argument,
)
from disco_server.cli.screen import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from disco_client.wire.overview import Overview, RankView, SessionView

__all__ = ["choose", "doing", "ranks_table", "sessions"]


@click.command()
@session_argument(required=False)
@json_option()
@report_errors
@dial_options
def sessions(session: str | None, as_json: bool, controller: Controller) -> None:
    """Lists sessions, or shows what each rank of SESSION does.

    SESSION is a name or an id. Of sessions that are somebody else's only what lists say
    is shown.
    """
    from disco_client.transport.watching import ask_for_overview

    with controller.dialled() as line:
        view = ask_for_overview(line)
    if session is not None:
        chosen = choose(view, session)
        if as_json:
            click.echo(json.dumps(chosen.as_dict()))
        else:
            console().print(_details(chosen))
    elif as_json:
        click.echo(json.dumps([each.as_dict() for each in view.sessions]))
    else:
        console().print(_list(view.sessions))


def choose(view: Overview, name: str) -> SessionView:
    """The session of that name or id; of several one's own, and of those the newest.

    Raises:
        NoSuchSession: There is none.
    """
    found = [s for s in view.sessions if name in (s.name, f"{s.session:016x}")]
    if not found:
        known = ", ".join(repr(s.name) for s in view.sessions) or "none"
        msg = f"expected a session that runs, got {name!r}; there run: {known}"
        raise NoSuchSession(msg)
    return max(found, key=lambda s: (s.yours, -s.age_s))


def _client(session: SessionView) -> str:
    """Whether its client is there, and if not how long it is waited for."""
    if session.attached:
        return "attached"
    left = session.lease_left_s
    return "away" if left is None else f"away, {duration(left)} left"


def _list(found: Sequence[SessionView]) -> Table:
    table = Table(title="sessions", title_justify="left")
    for column in ("session", "name", "owner", "state", "client", "age"):
        table.add_column(column, no_wrap=column == "session")
    for column in ("workers", "nodes", "commands", "queued"):
        table.add_column(column, justify="right")
    for s in found:
        known = (count(s.executed), count(s.queued)) if s.yours else ("", "")
        table.add_row(
            f"{s.session:016x}",
            Text(s.name),
            Text(s.owner),
            s.state,
            _client(s),
            duration(s.age_s),
            str(s.num_workers),
            str(len(s.nodes)) if s.ranks else "",
            *known,
        )
    return table


def _details(session: SessionView) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    facts = {
        "session": f"{session.name} ({session.session:016x})",
        "owner": session.owner,
        "state": f"{session.state}, for {duration(session.age_s)}",
        "client": _client(session),
        "workers": f"{session.num_workers} on {', '.join(session.nodes) or 'no node yet'}",
    }
    if session.yours:
        facts["commands"] = f"{session.executed} executed, {session.queued} queued"
        facts["memory"] = size(session.memory_bytes)
    for name, fact in facts.items():
        head.add_row(name, Text(fact))
    return Group(head, ranks_table(session.ranks))


def doing(rank: RankView) -> tuple[str, str]:
    """What a rank does, in words, and since when."""
    if rank.collective is not None:
        how = "" if rank.collective.met else "waits in "
        return how + rank.collective.text, duration(rank.collective.seconds)
    if rank.current is not None:
        return rank.current.what, duration(rank.current.seconds)
    return ("idle" if rank.state == "running" else "", "")


def ranks_table(ranks: Sequence[RankView], *, rates: bool = False) -> Table:
    """A row for each rank.

    Args:
        ranks: Which.
        rates: Whether to show how much they do in a second.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("rank", "node", "pid", "device", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("executed", justify="right", no_wrap=True)
    if rates:
        table.add_column("commands", justify="right", no_wrap=True)
        table.add_column("collectives", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("does", overflow="ellipsis", no_wrap=True)
    table.add_column("since", justify="right", no_wrap=True)
    for r in ranks:
        place = (str(r.worker), Text(r.node), str(r.pid), r.device, r.state)
        if r.state == "unknown":
            table.add_row(*place)
            continue
        lately = (rate(r.commands_per_s), rate(r.collective_bytes_per_s, "B")) if rates else ()
        what, since = doing(r)
        table.add_row(*place, count(r.executed), *lately, size(r.memory_bytes), Text(what), since)
    return table
