"""``disco stop``: ends sessions."""

from __future__ import annotations

import json
import time

import click

from disco_client.errors import SessionError
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    session_argument,
)

__all__ = ["stop"]

_GONE_S = 15.0
_LOOK_S = 0.1


@click.command()
@session_argument(nargs=-1)
@json_option("One JSON object with what was stopped.")
@report_errors
@dial_options
def stop(session: tuple[str, ...], as_json: bool, controller: Controller) -> None:
    """Ends each SESSION, given by its name or its id, and waits until its slots are free.

    Its program is told that the session is over. You may end what is yours;
    administrators may end everything.
    """
    from disco_client.transport.watching import ask_for_sessions, close_session

    stopped: list[dict[str, str]] = []
    with controller.dialled() as line:
        for name in session:
            number, called = close_session(line, name)
            deadline = time.monotonic() + _GONE_S
            while any(each == number for each, _ in ask_for_sessions(line)):
                if time.monotonic() > deadline:
                    msg = (
                        f"session {called!r} is over, but after {_GONE_S:g} s some of its ranks "
                        "have not ended; see the logs of their worker daemons"
                    )
                    raise SessionError(msg)
                time.sleep(_LOOK_S)
            stopped.append({"session": f"{number:016x}", "name": called})
            if not as_json:
                click.echo(f"session {called!r} ({number:016x}) is stopped")
    if as_json:
        click.echo(json.dumps({"stopped": stopped}))
