"""``disco drain``: takes nodes out of the placement of sessions, and puts them back."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, SessionError
from disco_client.text import many, some
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    node_argument,
    report_errors,
    say,
)

if TYPE_CHECKING:
    from disco_client.transport.admin import DrainedNode
    from disco_client.transport.channel import ReloadingChannel

__all__ = ["drain"]

_LOOK_S = 0.25


@click.command()
@node_argument(nargs=-1, required=True)
@click.option("--wait", is_flag=True, help="Return when no session has slots there any more.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Wait no longer than that; the exit code is 1 if sessions are left.",
)
@click.option("--undo", is_flag=True, help="Let each NODE take sessions again.")
@click.option("--reason", metavar="TEXT", default="", help="Say why; lists show it to others.")
@json_option("Print one JSON object with a list of nodes.")
@report_errors
@dial_options
def drain(
    node: tuple[str, ...],
    wait: bool,
    timeout: float | None,
    undo: bool,
    reason: str,
    as_json: bool,
    controller: Controller,
) -> None:
    """Let each NODE take no new sessions.

    Sessions that run there go on until they end by themselves, and their
    programs find the node in session.draining. NODE is a name, or a
    beginning that no other node's has. The node stays drained, also when
    its daemon is started again, until you undo it:

        disco drain node-1 --wait --timeout 600 --reason 'new disk'
        disco drain node-1 --undo

    Where the controller asks for tokens or certificates, only
    administrators may do this.
    """
    if undo and (wait or timeout is not None or reason):
        raise ConfigError("expected --undo alone, or --wait, --timeout and --reason without it")
    if timeout is not None and not wait:
        raise ConfigError("expected --timeout together with --wait")
    from disco_client.transport.admin import drain_node

    with controller.dialled() as line:
        found: list[DrainedNode] = []
        for each in node:
            found.append(drain_node(line, each, undo=undo, reason=reason))
            if not as_json:  # at once, as the next one may be refused
                say(_told(found[-1], undo=undo))
        left = _wait(line, found, timeout) if wait else {}
    if as_json:
        click.echo(json.dumps({"nodes": [_about(each, left, waited=wait) for each in found]}))
    if left:
        waits = some([f"{name!r} with {many(held, 'slot')} in use" for name, held in left.items()])
        msg = (
            f"after {timeout:g} s sessions are left on node {waits}; wait longer, or end them: "
            "disco stop SESSION"
        )
        raise SessionError(msg)
    if wait and not as_json:
        say(f"no session is left on {some([repr(each.node) for each in found])}")


def _told(found: DrainedNode, *, undo: bool) -> str:
    if undo:
        return f"node {found.node!r} takes sessions again"
    there = some([f"{name!r} of {owner}" for _, name, owner in found.sessions])
    count = many(len(found.sessions), "session")
    return f"node {found.node!r} takes no new sessions" + f"; {count} there: {there}" * bool(there)


def _wait(
    line: ReloadingChannel, found: list[DrainedNode], timeout: float | None
) -> dict[str, int]:
    """Waits until no slot is held; returns how many are after the time, by the node's name."""
    from disco_client.transport.admin import list_cluster

    names = {each.node for each in found}
    deadline = None if timeout is None else monotonic() + timeout
    while True:
        nodes = list_cluster(line).nodes
        # A node that is not listed has gone, and its sessions with it.
        left = {n.name: n.held_slots for n in nodes if n.name in names and n.held_slots}
        if not left or (deadline is not None and monotonic() >= deadline):
            return left
        time.sleep(_LOOK_S)


def _about(found: DrainedNode, left: dict[str, int], *, waited: bool) -> dict[str, Any]:
    there = [
        {"session": f"{number:016x}", "name": name, "owner": owner}
        for number, name, owner in found.sessions
    ]
    held = left.get(found.node, 0) if waited else found.held_slots
    known = {"node": found.node, "state": found.state, "drained": found.drained}
    return {**known, "held_slots": held, "sessions": there}
