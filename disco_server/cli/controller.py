"""The command ``disco-controller``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from disco_client.version import __version__
from disco_server.cli.options import daemon_options, guard_options, quieten_grpc, report_errors
from disco_server.config import ControllerConfig
from disco_server.observe import logs
from disco_server.observe.lifetime import die_with_parent_in

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="disco-controller")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.  [default: 127.0.0.1:7600]",
)
@click.option(
    "--port-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Write the port here once ready.",
)
@click.option(
    "--session-lease",
    "session_lease_s",
    metavar="SECONDS",
    help="How long a session outlives a connection that may come back.  [default: 60]",
)
@click.option(
    "--node-lease",
    "node_lease_s",
    metavar="SECONDS",
    help="After how long a silent node is lost.  [default: 10]",
)
@click.option(
    "--node-return",
    "node_return_s",
    metavar="SECONDS",
    help="How long a node whose connection broke is waited for.  [default: 2]",
)
@click.option(
    "--tls-id-prefix",
    metavar="URI",
    help="What a URI in a certificate begins with that says its role.  [default: disco://]",
)
@click.option(
    "--max-connections",
    metavar="COUNT",
    help="How many connections it takes at a time.  [default: 4096]",
)
@click.option(
    "--max-sessions",
    metavar="COUNT",
    help="How many sessions it takes, waiting ones included.  [default: 1024]",
)
@click.option(
    "--max-client-sessions",
    metavar="COUNT",
    help="How many of them one client may have.  [default: 256]",
)
@click.option(
    "--expect-nodes",
    metavar="COUNT",
    help="How many nodes there will ever be; 0 where nobody knows.  [default: 0]",
)
@guard_options
@daemon_options
@report_errors
def main(config: Path | None, **flags: object) -> None:
    """Runs the controller: takes sessions and places them on worker daemons."""
    die_with_parent_in(os.environ)
    settings = ControllerConfig.load(flags, file=config)
    logs.setup(settings.log_level, settings.log_format)
    quieten_grpc()
    from disco_server.controller.daemon import run  # loads gRPC, which --help need not

    sys.exit(run(settings))


if __name__ == "__main__":
    main()
