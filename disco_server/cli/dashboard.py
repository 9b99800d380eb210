"""``disco dashboard``: says where the controller's dashboard is, and opens it."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import click

from disco_client.errors import SessionError
from disco_client.transport.address import Address
from disco_client.transport.credentials import is_local
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from disco_client.transport.credentials import Credentials

__all__ = ["dashboard", "page_at"]

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (a host that others may have chosen)


class PagePlace(NamedTuple):
    """Where a browser of this machine finds the page.

    Attributes:
        url: Its address.
        tunnel: What has to be run before; empty where nothing has.
    """

    url: str
    tunnel: str = ""


@click.command()
@click.option(
    "--open/--no-open",
    "opened",
    default=True,
    help="Open it in a browser if this machine has a screen, or only print it.",
)
@click.option("--show-token", is_flag=True, help="Print the token that the page asks for.")
@json_option("Print one JSON object with the address.")
@report_errors
@dial_options
def dashboard(opened: bool, show_token: bool, as_json: bool, controller: Controller) -> None:
    """Print the address of the dashboard, and open it.

    Where the controller asks for a token, the page has a field for it, and
    this says where yours is. The token is not part of the address, which
    other users of this machine can read while a browser starts. That of a
    cluster of `disco local` is, and is only printed.
    """
    from disco_client.transport.admin import list_cluster

    with controller.dialled() as line:
        served = list_cluster(line).dashboard
    if not served:
        msg = (
            f"the controller at {controller.address} serves no dashboard; start it with "
            "--http HOST:PORT"
        )
        raise SessionError(msg)
    place = page_at(served, controller.address)
    secret = bool(urlsplit(place.url).fragment)
    began = opened and not place.tunnel and not secret and _open(place.url)
    token = controller.credentials.plain_token() if show_token else ""
    if as_json:
        about = {**place._asdict(), "opened": began}
        click.echo(json.dumps({**about, "token": token} if show_token else about))
        return
    say(f"dashboard at {place.url}")
    if place.tunnel:
        say(f"it listens on the controller's machine alone; run first: {place.tunnel}")
    if secret and opened:
        say("open it yourself: as a browser starts, other users can read the token in its address")
    for hint in _login(controller.credentials):
        say(hint)
    if token:
        say(token)


def page_at(served: str, address: str) -> PagePlace:
    """Where a browser of this machine finds a dashboard.

    Args:
        served: The URL at which the controller listens.
        address: Where this machine reaches the controller.
    """
    parts, reached = urlsplit(served), Address.parse(address)
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    if parts.scheme == "unix":
        tunnel = f"socat TCP-LISTEN:7601,bind=127.0.0.1,fork UNIX-CONNECT:{parts.path}"
        return PagePlace(f"http://127.0.0.1:7601/{fragment}", tunnel)
    host = parts.hostname or ""
    if host in _EVERYWHERE:
        host = "localhost" if reached.path else reached.host
    where = str(Address(host, parts.port or 0))
    url = f"{parts.scheme}://{where}/{fragment}"
    if is_local(where) and not is_local(address):
        return PagePlace(url, f"ssh -N -L {parts.port}:{where} {reached.host}")
    return PagePlace(url)


def _open(url: str) -> bool:
    """Opens a browser, but none that would take this terminal; returns whether it began."""
    names = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    screen = sys.platform == "darwin" or any(map(os.environ.get, names))
    try:
        return screen and webbrowser.open(url)
    except webbrowser.Error:
        return False


def _login(credentials: Credentials) -> Iterable[str]:
    """What the page, or the browser, will ask for."""
    if credentials.token_file is not None:
        yield f"it asks for your token, which is in {credentials.token_file}"
    elif credentials.token:
        yield "it asks for your token, which --show-token prints"
    if credentials.ca is not None:
        yield f"your browser has to trust {credentials.ca}, which signed its certificate"
    if credentials.cert is not None:
        yield (
            "where it asks for your certificate, import what this makes: openssl pkcs12 -export "
            f"-in {credentials.cert} -inkey {credentials.key} -out disco.p12"
        )
