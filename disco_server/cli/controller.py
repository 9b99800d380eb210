"""The command ``disco-controller``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from disco_client.version import __version__
from disco_server.cli.options import quieten_grpc, report_errors, setting_options
from disco_server.config import ControllerConfig
from disco_server.observe import logs
from disco_server.observe.lifetime import die_with_parent_in

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="disco-controller")
@setting_options(ControllerConfig)
@report_errors
def main(config: Path | None, **flags: object) -> None:
    """Run the controller: take sessions and place them on worker daemons."""
    die_with_parent_in(os.environ)
    settings = ControllerConfig.load(flags, file=config)
    logs.setup(settings.log_level, settings.log_format)
    quieten_grpc()
    from disco_server.controller.daemon import run  # loads gRPC, which --help need not

    sys.exit(run(settings))


if __name__ == "__main__":
    main()
