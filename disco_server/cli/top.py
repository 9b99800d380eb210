"""``disco top``: what a cluster does, live."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
from rich.console import Group
from rich.text import Text

from disco_client.text import many
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    session_argument,
)
from disco_server.cli.output import (
    Column,
    FittedTable,
    count,
    duration,
    rate,
    repeat,
    show_live,
    size,
)
from disco_server.cli.sessions import choose, ranks_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from disco_client.wire.overview import Overview, SessionView

__all__ = ["top"]

_AGAIN_S = 1.1
"""After this long the controller has asked the nodes again."""


@click.command()
@session_argument(required=False)
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Let so much time pass from one look to the next.",
)
@click.option("--once", is_flag=True, help="Look once, and leave.")
@json_option("Print one JSON object a line for each look.")
@report_errors
@dial_options
def top(
    session: str | None, interval: float, once: bool, as_json: bool, controller: Controller
) -> None:
    """Show live what nodes, sessions and ranks do.

    With SESSION it shows that one alone; q or Ctrl-C ends it. Nodes are asked once a second
    at most, however many look. What is done in a second is the mean since they were asked
    before; bytes of collectives are those of the ranks' arrays.
    """
    from disco_client.transport.admin import ask_for_overview

    with controller.dialled() as line:

        def look() -> Overview:
            view = ask_for_overview(line)
            return view if session is None else _only(view, choose(view, session))

        if once or as_json:
            look()  # rates are known from the second look on
            time.sleep(_AGAIN_S)
        if as_json:
            repeat(lambda: _write(look()), interval, once=once)
        else:
            show_live(_drawn(look, controller.address), interval, once=once)


def _only(view: Overview, session: SessionView) -> Overview:
    from dataclasses import replace

    return replace(view, sessions=(session,))


def _write(view: Overview) -> None:
    click.echo(json.dumps({"time": time.time(), **view.as_dict()}))
    sys.stdout.flush()


def _drawn(look: Callable[[], Overview], address: str) -> Callable[[], RenderableType]:
    return lambda: _draw(look(), address)


def _draw(view: Overview, address: str) -> RenderableType:
    parts: list[RenderableType] = [_cluster(view, address), _sessions(view)]
    for session in view.sessions:
        if session.yours and session.ranks:
            parts += [
                Text(f"\n{session.name}", style="bold"),
                ranks_table(session.ranks, rates=True),
            ]
    return Group(*parts)


def _cluster(view: Overview, address: str) -> Text:
    slots, used = (
        sum(values)
        for values in ([node.slots for node in view.nodes], [node.used for node in view.nodes])
    )
    commands = [s.commands_per_s for s in view.sessions if s.commands_per_s is not None]
    moved = [s.collective_bytes_per_s for s in view.sessions]
    known = [each for each in moved if each is not None]
    text = Text.assemble(
        ("disco ", "bold"),
        f"{view.version} at {address}: {many(len(view.nodes), 'node')}, ",
        f"{used} of {slots} slots used, {many(len(view.sessions), 'session')}, ",
        f"commands {rate(sum(commands) if commands else None)}, ",
        f"collectives {rate(sum(known) if known else None, 'B')}",
    )
    for node in view.nodes:
        if node.state != "ready":
            text.append(f"\nnode {node.name} is {node.state}", "yellow")
        elif node.latency_s is None:
            text.append(f"\nnode {node.name} does not answer", "red")
    return text


_SESSIONS = (
    Column("session", 9, least=40),
    Column("owner", 0, least=10),
    Column("state", 6),
    Column("age", 3),
    Column("workers", 2, right=True),
    Column("executed", 5, right=True),
    Column("queued", 4, right=True),
    Column("commands", 8, right=True),
    Column("collectives", 7, right=True),
    Column("memory", 1, right=True),
)


def _sessions(view: Overview) -> FittedTable:
    rows: list[tuple[str, ...]] = []
    for s in view.sessions:
        known = (
            *(count(s.executed), count(s.queued), rate(s.commands_per_s)),
            *(rate(s.collective_bytes_per_s, "B"), size(s.memory_bytes)),
        )
        about = (s.name, s.owner, s.state, duration(s.age_s), str(s.num_workers))
        rows.append((*about, *(known if s.yours else 5 * ("",))))
    return FittedTable("", _SESSIONS, rows, framed=False)
