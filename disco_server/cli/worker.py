"""The command ``disco-worker``."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

from disco_client.version import __version__
from disco_server.cli.options import (
    daemon_options,
    guard_options,
    quieten_grpc,
    report_errors,
    spare_grpc_forks,
)
from disco_server.config import ON_OFF, WorkerConfig
from disco_server.devices.probe import explain, require_devices
from disco_server.observe import logs
from disco_server.observe.lifetime import die_with_parent_in
from disco_server.settings import NoVisibleGpu

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="disco-worker")
@click.option(
    "--controller", metavar="HOST:PORT", help="The controller to join.  [default: 127.0.0.1:7600]"
)
@click.option(
    "--slots",
    type=int,
    metavar="N",
    help="How many workers fit here.  [default: CPU cores, or one for each of --devices]",
)
@click.option(
    "--devices",
    metavar="LIST",
    help="cpu; cuda or rocm for every visible GPU; or numbered GPUs such as cuda:0,1. A GPU is "
    "one slot.  [default: cpu]",
)
@click.option(
    "--device-check",
    type=click.Choice(ON_OFF, case_sensitive=False),
    help="Whether GPUs are tried before they are offered; off starts a second earlier.  "
    "[default: on]",
)
@click.option(
    "--name", metavar="NAME", help="This node's name, unique in the cluster.  [default: host name]"
)
@click.option(
    "--allow-module",
    "allow_modules",
    multiple=True,
    metavar="PATTERN",
    help="What sessions may import and call as a whole, besides the functions of numpy and cupy "
    "that workers offer; repeatable.",
)
@click.option(
    "--allow-function",
    "allow_functions",
    multiple=True,
    metavar="PATTERN",
    help="Other functions of numpy and cupy that sessions may call, such as numpy.load; "
    "repeatable.  [default: none]",
)
@click.option(
    "--allow-read",
    multiple=True,
    metavar="PATH",
    help="A folder or file that sessions may read weights from; repeatable.  [default: none]",
)
@click.option(
    "--allow-save",
    multiple=True,
    metavar="DIR",
    help="A folder in which sessions may save checkpoints; repeatable.  [default: none]",
)
@click.option(
    "--allow-load",
    multiple=True,
    metavar="PATH",
    help="A folder or file that sessions may load modules from, or 'uploads' for what clients "
    "bring; repeatable.  [default: none]",
)
@click.option(
    "--module-cache",
    metavar="DIR",
    help="Where uploaded modules are kept.  [default: ~/.cache/disco/modules]",
)
@click.option(
    "--module-cache-mib",
    type=int,
    metavar="N",
    help="How many MiB of them are kept.  [default: 10240]",
)
@click.option("--warm", metavar="N", hidden=True)
@click.option(
    "--rank-threads",
    type=int,
    metavar="N",
    help="Threads of a worker's numerical libraries.  [default: an equal share of the cores]",
)
@click.option(
    "--env",
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A variable that workers get besides what computing needs; * and ? match; repeatable.",
)
@click.option(
    "--max-memory",
    metavar="SIZE",
    help="How much memory a worker may allocate, such as 4GiB.  [default: no limit]",
)
@click.option(
    "--core-dumps",
    type=click.Choice(ON_OFF, case_sensitive=False),
    help="Whether workers that crash may leave a core dump.  [default: off]",
)
@click.option(
    "--user",
    metavar="NAME",
    help="The user as whom workers run, where the daemon is root.  [default: the daemon's]",
)
@click.option(
    "--work-dir",
    metavar="DIR",
    help="Where workers get folders of their own.  [default: the system's temporary folder]",
)
@click.option(
    "--max-registers",
    type=int,
    metavar="N",
    help="How many references a session may hold.  [default: 1048576]",
)
@click.option(
    "--max-array-mib",
    type=int,
    metavar="N",
    help="How large a host array may be that a client brings.  [default: this machine's memory]",
)
@click.option(
    "--array-listen",
    metavar="HOST:PORT",
    help="Where clients bring and fetch host arrays.  [default: in shared memory if the "
    "controller is on this machine, otherwise a free port]",
)
@guard_options
@daemon_options
@report_errors
def main(config: Path | None, **flags: object) -> None:
    """Runs a worker daemon: offers this machine's slots to a controller."""
    die_with_parent_in(os.environ)
    try:
        settings = WorkerConfig.load(flags, file=config)
    except NoVisibleGpu as error:
        raise explain(error) from None
    if settings.device_check == "on":
        require_devices(settings.devices, where="--devices" if flags["devices"] else "devices")
    logs.setup(settings.log_level, settings.log_format)
    for line in WorkerConfig.retired(flags, file=config):
        logging.getLogger("disco.worker").warning("%s", line)
    quieten_grpc()
    spare_grpc_forks()
    from disco_server.worker.daemon import run  # loads gRPC, which --help need not

    sys.exit(run(settings))


if __name__ == "__main__":
    main()
