"""``disco status``: what a cluster has and runs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from disco_client.errors import ConnectionFailed
from disco_server.cli.options import Controller, dial_options, report_errors

if TYPE_CHECKING:
    from disco_client.pb import controller_pb2

__all__ = ["status"]

_TIMEOUT_S = 5.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of tables.")
@report_errors
@dial_options
def status(controller: Controller, as_json: bool) -> None:
    """Shows nodes, slots and sessions."""
    # Help loads none of what this needs.
    import grpc
    from google.protobuf.json_format import MessageToDict

    from disco_client.pb import controller_pb2
    from disco_client.transport.reaching import details

    address = controller.address
    with controller.dialled() as line:
        ask = line.unary_unary(
            "/disco.v1.SessionService/List",
            response_deserializer=controller_pb2.ListResult.FromString,
        )
        try:
            found = ask(b"", timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            msg = f"the controller at {address} does not answer ({details(error)})"
            raise ConnectionFailed(msg) from None
    if as_json:
        content = MessageToDict(
            found, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        click.echo(json.dumps(content))
        return
    _print_tables(found, address)


def _print_tables(found: controller_pb2.ListResult, address: str) -> None:
    console = Console(width=None if os.isatty(1) else 120)
    nodes = Table(title=f"nodes at {address}", title_justify="left")
    for column in ("node", "slots", "free", "devices", "version"):
        nodes.add_column(column)
    for node in found.nodes:
        kinds = ", ".join(sorted(set(node.devices)))
        nodes.add_row(node.name, str(node.slots), str(node.free_slots), kinds, node.version)
    sessions = Table(title="sessions", title_justify="left")
    for column in ("session", "name", "state", "workers", "nodes", "owner", "age"):
        sessions.add_column(column)
    for s in found.sessions:
        where = ", ".join(sorted({rank.node for rank in s.ranks}))
        sessions.add_row(
            f"{s.session:016x}",
            s.name,
            s.state,
            str(s.num_workers),
            where,
            s.owner,
            f"{s.age_s:.0f} s",
        )
    console.print(nodes)
    console.print(sessions)
