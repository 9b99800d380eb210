"""``disco status``: what a cluster has and runs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.table import Table
from rich.text import Text

from disco_client.errors import AccessDenied, ConnectionFailed
from disco_server.cli.figures import duration
from disco_server.cli.options import Controller, dial_options, json_option, report_errors
from disco_server.cli.screen import repeat, show_live

if TYPE_CHECKING:
    from disco_client.pb import controller_pb2
    from disco_client.transport.line import Line

__all__ = ["status"]

_TIMEOUT_S = 5.0
_INTERVAL_S = 2.0


@click.command()
@click.option("--watch", is_flag=True, help="Show it every 2 s, until q or Ctrl-C.")
@json_option("One JSON object instead of tables; with --watch, one a line.")
@report_errors
@dial_options
def status(controller: Controller, watch: bool, as_json: bool) -> None:
    """Shows nodes, slots and sessions."""
    with controller.dialled() as line:
        if as_json:
            repeat(lambda: _write(_ask(line)), _INTERVAL_S, once=not watch)
        else:
            show_live(lambda: _draw(_ask(line), line.address), _INTERVAL_S, once=not watch)


def _ask(line: Line) -> controller_pb2.ListResult:
    # Help loads none of what this needs.
    import grpc

    from disco_client.pb import controller_pb2
    from disco_client.transport.apart import ask
    from disco_client.transport.reaching import denied, details

    listing = line.unary_unary(
        "/disco.v1.SessionService/List",
        response_deserializer=controller_pb2.ListResult.FromString,
    )
    try:
        return ask(listing, b"", timeout=_TIMEOUT_S)
    except grpc.RpcError as error:
        refused: AccessDenied | None = denied(error)
        msg = f"the controller at {line.address} does not answer ({details(error)})"
        raise refused or ConnectionFailed(msg) from None


def _write(found: controller_pb2.ListResult) -> None:
    from google.protobuf.json_format import MessageToDict

    content: dict[str, Any] = MessageToDict(
        found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    click.echo(json.dumps(content))
    sys.stdout.flush()


def _draw(found: controller_pb2.ListResult, address: str) -> Group:
    nodes = Table(title=f"nodes at {address}", title_justify="left")
    for column in ("node", "state", "slots", "free", "devices", "version", "here for"):
        nodes.add_column(column)
    for node in found.nodes:
        kinds = ", ".join(sorted(set(node.devices)))
        counts = (str(node.slots), str(node.free_slots))
        age = duration(node.age_s)
        nodes.add_row(Text(node.name), node.state, *counts, Text(kinds), node.version, age)
    sessions = Table(title="sessions", title_justify="left")
    for column in ("session", "name", "state", "workers", "nodes", "owner", "age"):
        sessions.add_column(column, no_wrap=column == "session")
    for s in found.sessions:
        where = ", ".join(sorted({rank.node for rank in s.ranks}))
        left = f", {duration(s.lease_left_s)} left" * s.HasField("lease_left_s")
        sessions.add_row(
            f"{s.session:016x}",
            Text(s.name),
            s.state + left,
            str(s.num_workers),
            Text(where),
            Text(s.owner),
            duration(s.age_s),
        )
    return Group(nodes, sessions)
