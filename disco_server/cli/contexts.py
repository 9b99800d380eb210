"""``disco context``: controllers under names."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disco_client.errors import ConfigError
from disco_server.cli.options import credential_options, json_option, report_errors, say
from disco_server.cli.output import Column, FittedTable, console

if TYPE_CHECKING:
    from disco_client.transport.contexts import Context

__all__ = ["context"]


@click.group()
def context() -> None:
    """Keep controllers under names, with certificates and token.

    Commands and programs use the current one where nothing else names a
    controller: neither --address, nor DISCO_ADDRESS, nor the program itself.
    They are in ~/.config/disco/contexts.json, or the file that DISCO_CONTEXTS
    names, which only you can read.
    """


@context.command()
@click.argument("name")
@click.option("--address", metavar="HOST:PORT", required=True, help="Reach the controller there.")
@functools.partial(credential_options, environ=False)
@click.option(
    "--token",
    "with_token",
    is_flag=True,
    help="Ask for your token, or read it from standard input, and keep it in the file.",
)
@click.option("--use", "used", is_flag=True, help="Make it the current one.")
@json_option("Print one JSON object with what was added.")
@report_errors
def add(
    name: str, address: str, with_token: bool, used: bool, as_json: bool, **files: Path | None
) -> None:
    """Add a controller as NAME, or replace it."""
    from disco_client.transport.contexts import Context, Contexts
    from disco_client.transport.credentials import Credentials

    known: dict[str, Any] = {
        option: str(path.absolute()) for option, path in files.items() if path is not None
    }
    if with_token:
        if "token_file" in known:
            raise ConfigError("expected --token or --token-file, got both")
        known["token"] = _read_token()
    made = Context(address, **known)
    Credentials.read(**made.credentials, environ={})  # type: ignore[arg-type]  (refuses at once)
    contexts = Contexts.read()
    contexts.add(name, made)
    if used:
        contexts.current = name
    contexts.write()
    _report(as_json, f"context {name!r} is {address}", name, made, contexts.current == name)


def _read_token() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("token", hide_input=True, err=True)).strip()
    token = sys.stdin.readline().strip()
    if not token:
        raise ConfigError("expected a token as the line of standard input, got none")
    return token


@context.command()
@click.argument("name")
@json_option("Print one JSON object with what is used.")
@report_errors
def use(name: str, as_json: bool) -> None:
    """Make NAME the current context."""
    from disco_client.transport.contexts import Contexts

    contexts = Contexts.read()
    found = contexts.get(name)
    contexts.current = name
    contexts.write()
    _report(as_json, f"context {name!r} is used: {found.address}", name, found, current=True)


@context.command()
@click.argument("name")
@json_option("Print one JSON object with what was removed.")
@report_errors
def remove(name: str, as_json: bool) -> None:
    """Remove NAME; the controller itself goes on."""
    from disco_client.transport.contexts import Contexts

    contexts = Contexts.read()
    removed = contexts.remove(name)
    contexts.write()
    _report(as_json, f"context {name!r} is removed", name, removed, current=False)


_COLUMNS = (
    Column("context", 9, least=20),
    Column("address", 8, least=30),
    Column("certificates", 3),
    Column("token", 4),
)


@context.command("list")
@json_option()
@report_errors
def list_all(as_json: bool) -> None:
    """List contexts; the current one has a star."""
    from disco_client.transport.contexts import Contexts

    contexts = Contexts.read()
    if as_json:
        shown = [_about(n, c, n == contexts.current) for n, c in contexts.entries.items()]
        click.echo(json.dumps(shown))
        return
    rows: list[tuple[str, ...]] = []
    for name, each in contexts.entries.items():
        kept = _about(name, each, name == contexts.current)
        certificates = ", ".join(key for key in ("tls_ca", "tls_cert") if kept[key])
        rows.append(
            (f"{name} *" if kept["current"] else name, each.address, certificates, kept["token"])
        )
    console().print(FittedTable("contexts", _COLUMNS, rows))


def _about(name: str, each: Context, current: bool) -> dict[str, Any]:
    """What is shown of one: everything but its token."""
    token = "kept" if each.token else each.token_file
    files = {key: getattr(each, key) for key in ("tls_ca", "tls_cert", "tls_key")}
    return {"context": name, "current": current, "address": each.address, **files, "token": token}


def _report(as_json: bool, text: str, name: str, each: Context, current: bool) -> None:
    if as_json:
        click.echo(json.dumps(_about(name, each, current)))
    else:
        say(text)
