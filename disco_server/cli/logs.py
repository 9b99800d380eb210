"""``disco logs``: what the ranks of a session print."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from disco_client.text import many
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
    session_argument,
)

if TYPE_CHECKING:
    from disco_client.transport.admin import LoggedLines

__all__ = ["logs"]


@click.command()
@session_argument()
@click.option("--rank", type=click.IntRange(0), metavar="N", help="Show one rank alone.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed, until Ctrl-C.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0),
    metavar="N",
    help="Begin with at most so many lines.  [default: all that are kept]",
)
@click.option("-t", "--timestamps", is_flag=True, help="Show when each line came.")
@json_option("Print one JSON object a line.")
@report_errors
@dial_options
def logs(
    session: str,
    rank: int | None,
    follow: bool,
    lines: int | None,
    timestamps: bool,
    as_json: bool,
    controller: Controller,
) -> None:
    """Show what the ranks of SESSION printed.

    SESSION is a name, an id, or the beginning of an id. The controller keeps
    the last 10000 lines of a session, in 1 MiB at most, for ten minutes
    beyond its end. A reader that is too slow misses lines, and is told how
    many.
    """
    from disco_client.transport.admin import read_logs

    with controller.dialled() as line, contextlib.suppress(KeyboardInterrupt):
        for part in read_logs(line, session, worker=rank, last=lines, follow=follow):
            if part.lost and as_json:
                click.echo(json.dumps({"lost": part.lost}))
            elif part.lost:
                click.echo(f"({many(part.lost, 'line')} lost, not read in time)", err=True)
            for text in part.lines:
                if as_json:
                    click.echo(json.dumps(_as_json(part, text)))
                else:
                    say(_prefix(part, named=rank is None, timestamps=timestamps) + text)


def _prefix(part: LoggedLines, *, named: bool, timestamps: bool) -> str:
    when = datetime.fromtimestamp(part.time_s, UTC).isoformat(" ", "milliseconds")
    who = f"[worker {part.worker} {part.node}] " if named else ""
    return f"{when} " * timestamps + who


def _as_json(part: LoggedLines, text: str) -> dict[str, object]:
    return {
        "time": part.time_s,
        "rank": part.worker,
        "node": part.node,
        "stream": "stderr" if part.stderr else "stdout",
        "line": text,
    }
