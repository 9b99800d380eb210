"""``disco certs``: certificates for a test cluster, or for a small one."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import click

from disco_client.errors import ConfigError
from disco_server.cli.options import json_option, report_errors
from disco_server.settings import read_node_name

__all__ = ["certs"]

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ROLES = ("client", "worker", "observer", "admin")

_days = click.option(
    "--days",
    type=click.FloatRange(min=0, max=36500, min_open=True),
    default=365.0,
    show_default=True,
    help="Let them be valid for this many days.",
)
_hosts = click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Name a machine where a daemon listens, or its address, besides localhost; repeatable.",
)


@click.group()
def certs() -> None:
    """Make certificates for the daemons and clients of a cluster."""


@certs.command()
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@_hosts
@_days
@json_option("Print one JSON object with the files.")
@report_errors
def init(folder: Path, hosts: tuple[str, ...], days: float, as_json: bool) -> None:
    """Make an authority and certificates in DIR, which begins empty.

    There is one for the controller, and one for each role: worker, client, observer and
    admin. ca.key signs new ones: keep it away from the cluster.
    """
    from disco_server.ipc.authority import Authority  # help need not load cryptography

    if folder.exists() and any(folder.iterdir()):
        msg = f"expected a folder that is empty or not there, {folder} holds files"
        raise ConfigError(msg)
    serving = (*_LOCAL, socket.gethostname(), *hosts)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.create(days=days)
        authority.pem().write(folder, "ca")
        authority.issue("controller", hosts=serving, days=days).write(folder, "controller")
        for role in _ROLES:
            names = serving if role == "worker" else ()
            authority.issue(role, hosts=names, days=days).write(folder, role)
    except OSError as error:
        msg = f"{error.filename or folder} cannot be written: {error.strerror}"
        raise ConfigError(msg) from None
    except ValueError as error:
        msg = f"--host: expected names and addresses of machines: {error}"
        raise ConfigError(msg) from None
    if as_json:
        files = sorted(str(file) for file in folder.iterdir())
        click.echo(json.dumps({"folder": str(folder), "files": files}))
        return
    click.echo(_what_next(folder, hosts[0] if hosts else "localhost"))


def _what_next(folder: Path, host: str) -> str:
    where = folder.absolute()
    address = f"[{host}]:7600" if ":" in host else f"{host}:7600"
    listen = address if host != "localhost" else "127.0.0.1:7600"

    def files(name: str) -> str:
        return f"--tls-ca {where}/ca.pem --tls-cert {where}/{name}.pem --tls-key {where}/{name}.key"

    return "\n".join(
        (
            f"{where}: an authority (ca.pem), and certificates of controller, {', '.join(_ROLES)}",
            "",
            f"  disco-controller --listen {listen} --require-client-cert {files('controller')}",
            f"  disco-worker --controller {address} {files('worker')}",
            f"  disco status --address {address} {files('client')}",
            "",
            "in a program:",
            "",
            f'  disco_client.connect("{address}", num_workers=2, tls_ca="{where}/ca.pem",',
            f'      tls_cert="{where}/client.pem", tls_key="{where}/client.key")',
            "",
            "Keep ca.key away from the cluster. One more person, whose sessions are nobody else's:",
            "",
            f"  disco certs issue {folder} client NAME",
        )
    )


@certs.command()
@click.argument(
    "folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.argument("role", type=click.Choice(("controller", *_ROLES)))
@click.argument("name")
@_hosts
@_days
@json_option("Print one JSON object with the files.")
@report_errors
def issue(
    folder: Path, role: str, name: str, hosts: tuple[str, ...], days: float, as_json: bool
) -> None:
    """Make one more certificate with the authority in DIR.

    It is called ROLE-NAME.pem. NAME is a person, or of a worker its node, which may register
    under no other name.
    """
    from disco_server.ipc.authority import Authority

    read_node_name(name, "NAME")
    authority = Authority.load(folder / "ca.pem", folder / "ca.key")
    serving = (*_LOCAL, *hosts) if role in ("controller", "worker") else ()
    try:
        made = authority.issue(f"{role}/{name}", hosts=serving, days=days)
        cert, key = made.write(folder, f"{role}-{name}")
    except OSError as error:
        msg = f"{error.filename or folder} cannot be written: {error.strerror}"
        raise ConfigError(msg) from None
    except ValueError as error:
        msg = f"--host: expected names and addresses of machines: {error}"
        raise ConfigError(msg) from None
    click.echo(json.dumps({"cert": str(cert), "key": str(key)}) if as_json else f"{cert}\n{key}")
