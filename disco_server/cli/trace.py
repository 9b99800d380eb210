"""``disco trace``: what the ranks of a session did last, as a picture of time."""

from __future__ import annotations

import json
from pathlib import Path

import click

from disco_client.errors import ConfigError, SessionError
from disco_client.text import many
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
    session_argument,
)

__all__ = ["trace"]


@click.command()
@session_argument()
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Write there; - is standard output.  [default: SESSION.trace.json]",
)
@json_option("Print one JSON object that says what was written.")
@report_errors
@dial_options
def trace(session: str, output: str | None, as_json: bool, controller: Controller) -> None:
    """Write what the ranks of SESSION did last, as a trace.

    It has the last commands and collectives of every rank. SESSION is a
    name, an id, or the beginning of an id. It may run, hang, or have ended
    some minutes ago. The file is in Chrome's trace format: open it at
    https://ui.perfetto.dev.
    """
    # Imported here, so that --help loads none of it.
    from disco_client.tracing.trace import Flight
    from disco_client.transport.admin import ask_for_inspection

    with controller.dialled() as line:
        found = ask_for_inspection(line, session, stacks=False, flights=True)
    try:
        flight = Flight.of(found)
    except ValueError as error:
        msg = f"the records of session {session} cannot be read: {error}"
        raise SessionError(msg) from None
    for silence in found.silent:
        say(f"node {silence.node} did not answer; its ranks are left out", err=True)
    if output == "-":
        click.echo(json.dumps(flight.chrome_trace()))
        return
    path = Path(output or f"{found.name}.trace.json")
    try:
        flight.save(path)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise ConfigError(msg) from None
    commands = sum(len(rank.commands) for rank in flight.ranks)
    collectives = sum(len(rank.collectives) for rank in flight.ranks)
    if as_json:
        counts = {"ranks": len(flight.ranks), "commands": commands, "collectives": collectives}
        click.echo(json.dumps({"file": str(path), **counts}))
        return
    say(
        f"{path}: {many(len(flight.ranks), 'rank')}, {many(commands, 'command')}, "
        f"{many(collectives, 'collective')}; "
        "open it at https://ui.perfetto.dev"
    )
