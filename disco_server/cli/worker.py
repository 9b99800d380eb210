"""The command ``disco-worker``."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from disco_client.output import logger_of
from disco_client.version import __version__
from disco_server.cli.options import (
    avoid_grpc_forks,
    quieten_grpc,
    report_errors,
    setting_options,
)
from disco_server.config import WorkerConfig
from disco_server.devices.probe import explain, require_devices
from disco_server.observe import logs
from disco_server.observe.lifetime import die_with_parent_in
from disco_server.settings import NoVisibleGpu

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="disco-worker")
@setting_options(WorkerConfig)
@report_errors
def main(config: Path | None, **flags: object) -> None:
    """Run a worker daemon: offer this machine's slots to a controller."""
    die_with_parent_in(os.environ)
    ignored: list[str] = []
    try:
        settings = WorkerConfig.load(flags, file=config, on_retired=ignored.append)
    except NoVisibleGpu as error:
        raise explain(error) from None
    if settings.device_check == "on":
        require_devices(settings.devices, where="--devices" if flags["devices"] else "devices")
    logs.setup(settings.log_level, settings.log_format)
    for line in ignored:
        logger_of("disco.worker").warning("%s", line)
    quieten_grpc()
    avoid_grpc_forks()
    from disco_server.worker.daemon import run  # loads gRPC, which --help need not

    sys.exit(run(settings))


if __name__ == "__main__":
    main()
