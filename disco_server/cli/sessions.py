"""``disco sessions``: the sessions of a cluster, or what the ranks of one do."""

from __future__ import annotations

import json
import sys
import time
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from disco_client.clock import monotonic
from disco_client.errors import NoSuchSession, SessionError
from disco_client.text import ids_beginning_with, many, natural, some
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
    session_argument,
)
from disco_server.cli.output import (
    Column,
    FittedTable,
    console,
    count,
    duration,
    rate,
    repeat,
    show_live,
    shown_ids,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import RenderableType

    from disco_client.pb import controller_pb2
    from disco_client.transport.channel import ReloadingChannel
    from disco_client.wire.overview import Overview, RankView, SessionView

__all__ = ["choose", "doing", "interrupt", "ranks_table", "sessions", "status", "stop"]


_LISTED = (
    Column("session", 4),
    Column("name", 9, least=40),
    Column("owner", 1, least=10),
    Column("state", 8),
    Column("client", 5, least=8),
    Column("age", 6),
    Column("workers", 7, right=True),
    Column("nodes", 0, right=True),
    Column("commands", 3, right=True),
    Column("queued", 2, right=True),
)
_ENDED = (
    Column("session", 4),
    Column("name", 9, least=40),
    Column("owner", 1, least=10),
    Column("state", 6),
    Column("ended", 7),
    Column("workers", 0, right=True),
    Column("reason", 8, least=32, folded=True),
)


@click.command()
@session_argument(required=False)
@click.option(
    "--all",
    "with_ended",
    is_flag=True,
    help="Show also those that ended or failed within the last ten minutes, and why.",
)
@json_option()
@report_errors
@dial_options
def sessions(session: str | None, with_ended: bool, as_json: bool, controller: Controller) -> None:
    """List sessions, or show what each rank of SESSION does.

    SESSION is a name, an id, or the beginning of an id. Of other owners'
    sessions only what lists say is shown.
    """
    from disco_client.transport.admin import ask_for_overview

    with controller.dialled() as line:
        view = ask_for_overview(line, ended=with_ended)
    if session is not None:
        chosen = choose(view, session)
        if as_json:
            click.echo(json.dumps(chosen.as_dict()))
        else:
            console().print(_details(chosen))
    elif as_json:
        click.echo(json.dumps([each.as_dict() for each in view.sessions]))
    else:
        ids = shown_ids(each.session for each in view.sessions)
        console().print(_list(view.sessions, ids))
        if with_ended:
            console().print(_list_ended(view.sessions, ids))


def choose(view: Overview, name: str) -> SessionView:
    """The session of that name or id; of several the caller's own, and of those the newest.

    Raises:
        NoSuchSession: There is none, or several ids begin so.
    """
    found = [s for s in view.sessions if name in (s.name, f"{s.session:016x}")]
    found = found or _beginning_with(view, name)
    if not found:
        known = ", ".join(repr(s.name) for s in view.sessions if s.ended_s is None) or "none"
        msg = f"expected a session that runs, got {name!r}; there run: {known}"
        raise NoSuchSession(msg)
    return max(found, key=lambda s: (s.yours, s.ended_s is None, -s.age_s))


def _beginning_with(view: Overview, given: str) -> list[SessionView]:
    """The session whose id begins so: of those that run first, then of the caller's own."""
    for over in (False, True):
        listed = {s.session: s for s in view.sessions if (s.ended_s is not None) == over}
        found = [listed[each] for each in ids_beginning_with(listed, given)]
        found = [s for s in found if s.yours] or found
        if len(found) > 1:
            several = some(sorted(f"{s.session:016x} ({s.name!r})" for s in found))
            msg = f"expected one session, got {given!r}, with which several ids begin: {several}"
            raise NoSuchSession(msg)
        if found:
            return found
    return []


def _client(session: SessionView) -> str:
    """Whether its client is connected, and if not how long the session waits for it."""
    if session.attached:
        return "attached"
    left = session.lease_left_s
    return "away" if left is None else f"away, {duration(left)} left"


def _list(found: Sequence[SessionView], ids: Mapping[int, str]) -> FittedTable:
    rows: list[tuple[str, ...]] = []
    for s in found:
        if s.ended_s is not None:
            continue
        known = (count(s.executed), count(s.queued)) if s.yours else ("", "")
        where = str(len(s.nodes)) if s.ranks else ""
        life = (s.state, _client(s), duration(s.age_s))
        named = (ids[s.session], s.name, s.owner)
        rows.append((*named, *life, str(s.num_workers), where, *known))
    return FittedTable("sessions", _LISTED, rows)


def _list_ended(found: Sequence[SessionView], ids: Mapping[int, str]) -> FittedTable:
    """A table of the sessions that are over, the last one first."""
    over = sorted(((s.ended_s, s) for s in found if s.ended_s is not None), key=itemgetter(0))
    rows = [
        (
            *(ids[s.session], s.name, s.owner, s.state, f"{duration(ago)} ago"),
            *(str(s.num_workers), s.end_message),
        )
        for ago, s in over
    ]
    return FittedTable("ended within the last ten minutes", _ENDED, rows)


def _details(session: SessionView) -> RenderableType:
    head = Table.grid(padding=(0, 2))
    state = f"{session.state}, began {duration(session.age_s)} ago"
    if session.state == "queued":
        state += f": {session.waits_for}"
    if session.ends_in_s is not None:
        state += f"; ends in {duration(session.ends_in_s)} ({session.ends_by})"
    facts = {
        "session": f"{session.name} ({session.session:016x})",
        "owner": session.owner,
        "state": state,
        "client": _client(session) + f", over {session.carrier}" * bool(session.carrier),
        "workers": f"{session.num_workers} on {', '.join(session.nodes) or 'no node yet'}",
    }
    if session.ended_s is not None:
        ended = f"{session.state} {duration(session.ended_s)} ago"
        facts["state"] = f"{ended}: {session.end_message}" if session.yours else ended
        del facts["client"]
    elif session.yours:
        facts["commands"] = f"{session.executed} executed, {session.queued} queued"
        facts["memory"] = size(session.memory_bytes)
    for name, fact in facts.items():
        head.add_row(name, Text(fact))
    return head if session.ended_s is not None else Group(head, ranks_table(session.ranks))


def doing(rank: RankView) -> tuple[str, str]:
    """What a rank does, in words, and since when."""
    if rank.collective is not None:
        how = "" if rank.collective.met else "waits in "
        return how + rank.collective.text, duration(rank.collective.seconds)
    if rank.current is not None:
        return rank.current.what, duration(rank.current.seconds)
    return ("idle" if rank.state == "running" else "", "")


_RANKS = (
    Column("rank", 9),
    Column("node", 6, least=8),
    Column("pid", 1),
    Column("device", 0),
    Column("state", 5),
    Column("executed", 4, right=True),
    Column("commands", 3, right=True),
    Column("collectives", 2, right=True),
    Column("memory", 2, right=True),
    Column("does", 8, least=16),
    Column("since", 7, right=True),
)
_RATES = ("commands", "collectives")


def ranks_table(ranks: Sequence[RankView], *, rates: bool = False) -> FittedTable:
    """A row for each rank.

    Args:
        ranks: The ranks.
        rates: Whether to show rates per second.
    """
    columns = [column for column in _RANKS if rates or column.name not in _RATES]
    rows: list[tuple[str, ...]] = []
    for r in ranks:
        place = (str(r.worker), r.node, str(r.pid), r.device, r.state)
        if r.state == "unknown":
            rows.append((*place, *("" for _ in columns[len(place) :])))
            continue
        lately = (rate(r.commands_per_s), rate(r.collective_bytes_per_s, "B")) if rates else ()
        rows.append((*place, count(r.executed), *lately, size(r.memory_bytes), *doing(r)))
    return FittedTable("", columns, rows, framed=False)


# ``disco status``: what a cluster has and runs.


_TIMEOUT_S = 5.0
_INTERVAL_S = 2.0


@click.command()
@click.option("--watch", is_flag=True, help="Show it every 2 s, until q or Ctrl-C.")
@json_option("Print one JSON object instead of tables; with --watch, one a line.")
@report_errors
@dial_options
def status(controller: Controller, watch: bool, as_json: bool) -> None:
    """Show nodes, slots and sessions."""
    with controller.dialled() as line:
        if as_json:
            repeat(lambda: _write(_ask(line)), _INTERVAL_S, once=not watch)
        else:
            show_live(lambda: _draw(_ask(line), line.address), _INTERVAL_S, once=not watch)


def _ask(line: ReloadingChannel) -> controller_pb2.ListResult:
    from disco_client.transport.admin import list_cluster  # --help loads none of it

    return list_cluster(line, _TIMEOUT_S, activity=True)


def _write(found: controller_pb2.ListResult) -> None:
    from google.protobuf.json_format import MessageToDict

    content: dict[str, Any] = MessageToDict(
        found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    for session in content["sessions"]:
        session["session"] = f"{int(session['session']):016x}"  # as commands take it
    click.echo(json.dumps(content))
    sys.stdout.flush()


_NODES = (
    Column("node", 9, least=40),
    Column("state", 8, least=10),
    Column("slots", 6),
    Column("free", 7),
    Column("devices", 5, least=8),
    Column("version", 3),
    Column("stream", 1),
    Column("here for", 4),
)
_SESSIONS = (
    Column("session", 4),
    Column("name", 9, least=40),
    Column("state", 8, least=8),
    Column("workers", 7),
    Column("nodes", 2, least=10),
    Column("owner", 3, least=10),
    Column("stream", 1),
    Column("age", 6),
)
_NOTE = Column("why", 7, least=16, folded=True)
"""Shown where there is something to say."""


def _draw(found: controller_pb2.ListResult, address: str) -> Group:
    nodes: list[tuple[str, ...]] = []
    for node in found.nodes:
        kinds = ", ".join(sorted(set(node.devices)))
        counts = (str(node.slots), str(node.free_slots))
        lately = (node.version, node.carrier, duration(node.age_s))
        nodes.append((node.name, _state_of(node), *counts, kinds, *lately))
    sessions: list[tuple[str, ...]] = []
    ids = shown_ids(each.session for each in found.sessions)
    for s in found.sessions:
        where = ", ".join(sorted({rank.node for rank in s.ranks}, key=natural))
        left = f", {duration(s.lease_left_s)} left" * s.HasField("lease_left_s")
        life = (s.owner, s.carrier, duration(s.age_s))
        known = (s.state + left, str(s.num_workers), where, *life)
        sessions.append((ids[s.session], s.name, *known, _note(s)))
    noted = any(row[-1] for row in sessions)
    shown = sessions if noted else [row[:-1] for row in sessions]
    return Group(
        FittedTable(f"nodes at {address}", _NODES, nodes),
        FittedTable("sessions", (*_SESSIONS, _NOTE) if noted else _SESSIONS, shown),
    )


def _note(session: controller_pb2.SessionInfo) -> str:
    """What a session waits for, or which limit ends it soon."""
    from disco_client.wire.overview import limit_name

    if session.HasField("ends_in_s"):
        return f"ends in {duration(session.ends_in_s)}: {limit_name(session.ends_by)}"
    return session.waits_for


def _state_of(node: controller_pb2.NodeInfo) -> str:
    """Whether it takes sessions, and of one that drains who wanted it and what is still there."""
    if node.state != "draining":
        return node.state
    held = f", {many(node.held_slots, 'slot')} in use" * bool(node.held_slots)
    return f"DRAINING{f' ({node.drained})' * bool(node.drained)}{held}"


# ``disco stop``: ends sessions.


_GONE_S = 15.0
_LOOK_S = 0.1


@click.command()
@session_argument(nargs=-1)
@json_option("Print one JSON object with what was stopped.")
@report_errors
@dial_options
def stop(session: tuple[str, ...], as_json: bool, controller: Controller) -> None:
    """End each SESSION, and wait until its slots are free.

    SESSION is a name, an id, or the beginning of an id. Its program is told
    that the session is over. You may end what is yours; administrators may
    end everything.
    """
    from disco_client.transport.admin import ask_for_sessions, close_session

    stopped: list[dict[str, str]] = []
    with controller.dialled() as line:
        for name in session:
            number, called = close_session(line, name)
            deadline = monotonic() + _GONE_S
            while any(each == number for each, _ in ask_for_sessions(line)):
                if monotonic() > deadline:
                    msg = (
                        f"session {called!r} is over, but after {_GONE_S:g} s some of its ranks "
                        "have not ended; see the logs of their worker daemons"
                    )
                    raise SessionError(msg)
                time.sleep(_LOOK_S)
            stopped.append({"session": f"{number:016x}", "name": called})
            if not as_json:
                say(f"session {called!r} ({number:016x}) is stopped")
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))


# ``disco interrupt``: ends what a session executes.


@click.command()
@session_argument()
@click.option(
    "--grace",
    type=click.FloatRange(0, 60),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Give workers so long to react.",
)
@click.option(
    "--force", is_flag=True, help="End the processes of workers that have not reacted then."
)
@json_option("Print one JSON object with what was interrupted.")
@report_errors
@dial_options
def interrupt(
    session: str, grace: float, force: bool, as_json: bool, controller: Controller
) -> None:
    """End what SESSION executes; the session goes on.

    Its program does this, as by session.interrupt(): what runs ends, and
    what was issued and has not begun is left out. SESSION is a name, an
    id, or the beginning of an id. You may interrupt what is yours;
    administrators may interrupt everything.
    """
    from disco_client.transport.admin import interrupt_session
    from disco_client.wire.overview import describe_late

    with controller.dialled() as line:
        number, name, late = interrupt_session(line, session, grace=grace, force=force)
    if as_json:
        found = {"session": f"{number:016x}", "name": name, "late": late}
        click.echo(json.dumps({"interrupted": found}))
    else:
        say(f"session {name!r} ({number:016x}) is interrupted")
    if late:
        raise SessionError(describe_late(late, grace))
