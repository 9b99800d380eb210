"""``disco cluster``: clusters in the jobs of a batch system."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disco_client.errors import ConfigError
from disco_server.cli.options import json_option, report_errors, say
from disco_server.cli.output import Column, FittedTable, console

if TYPE_CHECKING:
    from disco_server.clusters.slurm import ClusterStatus

__all__ = ["cluster"]

_on = click.option(
    "--on",
    type=click.Choice(("slurm",)),
    default="slurm",
    show_default=True,
    help="Use this batch system.",
)
_folder = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="DISCO_JOB_DIR",
    show_envvar=True,
    metavar="DIR",
    help="Keep the files of clusters there; all nodes must share it.  "
    "[default: ~/.local/state/disco/slurm]",
)


def _sizes(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what a job asks for."""
    count = click.IntRange(min=1)
    for option in (
        click.option("--option", "options", multiple=True, metavar="TEXT", help=_OPTION_HELP),
        click.option("--account", metavar="NAME", help="Let this account pay."),
        click.option("--partition", metavar="NAME", help="Use this partition."),
        click.option("--time", metavar="TIME", help="End it then, as 30 minutes or 1:00:00."),
        click.option("--gpus", type=click.IntRange(min=0), default=0, help=_GPUS_HELP),
        click.option("--slots", type=count, default=1, show_default=True, help=_SLOTS_HELP),
        click.option("--nodes", type=count, default=1, show_default=True, help=_NODES_HELP),
    ):
        command = option(command)
    return command


_GPUS_HELP = "Ask for so many GPUs on each node, which are its slots then."
_NODES_HELP = "Ask for so many nodes."
_OPTION_HELP = "Give this to sbatch, as --option --mem=8G; repeatable."
_SLOTS_HELP = "Give each node so many slots, a CPU each; beside --gpus, so many CPUs."


@click.group()
def cluster() -> None:
    """Start a cluster in a job of Slurm, or end it.

    Run it where jobs are submitted, such as a login node of Slurm.
    """


@cluster.command()
@click.argument("name", required=False)
@_on
@_sizes
@_folder
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait no longer in the queue; then the job is taken out of it.",
)
@json_option("Print one JSON object when the cluster is ready.")
@report_errors
def start(name: str | None, on: str, as_json: bool, **wanted: Any) -> None:
    """Start a cluster, and wait until it is ready.

    It goes on until it is stopped or its time ends, and commands and programs find it by
    themselves, as it becomes the current context:

        disco cluster start training --nodes 4 --slots 16 --time 1:00:00
        python program.py
        disco cluster stop training
    """
    del on  # there is one
    from disco_client.transport.contexts import Context, Contexts
    from disco_server.clusters import SlurmCluster

    made = SlurmCluster(name=name, detach=True, **wanted)
    if made.name in Contexts.read().entries:
        msg = f"expected a name that no context has; disco context remove {made.name}"
        raise ConfigError(msg)
    made.start()
    contexts = Contexts.read()
    tls = made.tls
    known = Context(made.address, tls["tls_ca"], tls["tls_cert"], tls["tls_key"])
    contexts.add(made.name, known)
    contexts.current = made.name
    try:
        contexts.write()
    except ConfigError:
        made.stop()
        raise
    if as_json:
        about = {"cluster": made.name, "job": made.job, "address": made.address}
        click.echo(json.dumps({**about, "nodes": made.nodes, **tls}))
        return
    say(
        f"cluster ready at {made.address}, which is the context {made.name!r} now; "
        f"disco cluster stop {made.name} stops it"
    )


_COLUMNS = (
    Column("cluster", 9, least=20),
    Column("job", 6),
    Column("state", 8),
    Column("nodes", 5, right=True),
    Column("slots", 4, right=True),
    Column("time left", 3),
    Column("address", 7, least=20),
    Column("reason", 2),
)


@cluster.command("list")
@_on
@_folder
@json_option()
@report_errors
def list_all(on: str, folder: Path | None, as_json: bool) -> None:
    """List your clusters; those that have ended too, until you stop them."""
    del on
    from disco_server.clusters.slurm import list_clusters

    found = list_clusters(folder)
    if as_json:
        click.echo(json.dumps([_about(each) for each in found]))
        return
    rows = [
        (
            *(each.name, each.job.job, each.job.state, str(each.nodes), str(each.slots)),
            *(each.job.left, each.address, each.job.reason.replace("None", "")),
        )
        for each in found
    ]
    console().print(FittedTable("clusters", _COLUMNS, rows))


def _about(each: ClusterStatus) -> dict[str, Any]:
    job = {"job": each.job.job, "state": each.job.state, "reason": each.job.reason}
    size = {"nodes": each.nodes, "slots": each.slots, "left": each.job.left}
    return {"cluster": each.name, **job, **size, "address": each.address}


@cluster.command()
@click.argument("name")
@_on
@_folder
@json_option("Print one JSON object with what was stopped.")
@report_errors
def stop(name: str, on: str, folder: Path | None, as_json: bool) -> None:
    """Stop the cluster NAME, whatever its jobs do, and wait for their end."""
    del on
    from disco_client.transport.contexts import Contexts
    from disco_server.clusters import SlurmCluster

    stopped = SlurmCluster.attach(name, folder=folder, wait=False)
    jobs = list(stopped.jobs)
    stopped.stop()
    contexts = Contexts.read()
    known = contexts.entries.get(name)
    if known is not None and Path(known.tls_ca).is_relative_to(stopped.folder):
        contexts.remove(name)
        contexts.write()
    about = {"stopped": name, "jobs": jobs}
    click.echo(json.dumps(about) if as_json else f"stopped {name}")
