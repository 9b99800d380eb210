"""The command ``disco``."""

from __future__ import annotations

import click

from disco_client.version import __version__
from disco_server.cli.certs import certs
from disco_server.cli.doctor import doctor
from disco_server.cli.local import local
from disco_server.cli.status import status
from disco_server.cli.trace import trace

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="disco")
def main() -> None:
    """One program on many devices, driven from one place."""


main.add_command(certs)
main.add_command(doctor)
main.add_command(local)
main.add_command(status)
main.add_command(trace)


if __name__ == "__main__":
    main()
