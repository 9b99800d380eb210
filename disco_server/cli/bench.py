"""``disco bench``: a quick look at how fast a cluster is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from disco_client.text import many
from disco_client.version import __version__
from disco_server.cli.options import Controller, dial_options, json_option, report_errors
from disco_server.cli.output import console, duration, rate, size

if TYPE_CHECKING:
    from disco_client.session import Session
    from disco_server.cli.measuring import Figure

__all__ = ["bench"]

_SIZES = "4KiB,64KiB,1MiB,16MiB"
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_LARGEST = 4 << 30
_WAIT_S = 30.0


def _read_sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    found: list[int] = []
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", word)
        scale = _UNITS.get(match[2]) if match else None
        nbytes = int(match[1]) * scale if match and scale else 0
        if not 0 < nbytes <= _LARGEST:
            raise click.BadParameter(f"expected sizes up to 4GiB, such as {_SIZES}; got {word!r}")
        found.append(nbytes)
    return tuple(sorted(set(found)))


@click.command()
@click.option(
    "--workers",
    type=click.IntRange(1),
    metavar="N",
    help="Measure on this many workers.  [default: all free slots, at most 16]",
)
@click.option(
    "--sizes",
    callback=_read_sizes,
    default=_SIZES,
    show_default=True,
    metavar="LIST",
    help="Measure arrays of these sizes.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    metavar="N",
    help="Measure each figure this many times.",
)
@json_option()
@report_errors
@dial_options
def bench(
    workers: int | None, sizes: tuple[int, ...], rounds: int, as_json: bool, controller: Controller
) -> None:
    """Measure how fast the cluster is.

    It takes some seconds, in a session of its own. Commands and syncs are those of this
    program, so they take the way between it and the cluster. Of each figure the median of
    the rounds is shown, and the best.
    """
    # Imported here, so that --help loads none of it.
    from disco_client.transport.admin import ask_for_overview
    from disco_server.cli.measuring import free_workers, measure_all

    with controller.dialled() as line:
        count = workers or free_workers(ask_for_overview(line))
    options = {"name": "disco-bench", "logs": False, "timeout": _WAIT_S}
    with controller.open_session(num_workers=count, **options) as session:
        if as_json:
            figures = [figure.as_dict() for figure in measure_all(session, sizes, rounds)]
            click.echo(json.dumps({**_about(session, controller), "figures": figures}))
            return
        out = console()
        table = _table(f"{many(count, 'worker')} at {controller.address}")
        with out.status("measuring"):
            for figure in measure_all(session, sizes, rounds):
                _add(table, figure)
        out.print(table)


def _about(session: Session, controller: Controller) -> dict[str, object]:
    return {
        "version": __version__,
        "address": controller.address,
        "workers": session.num_workers,
        "nodes": sorted({rank.node for rank in session.workers}),
        "devices": sorted({rank.device for rank in session.workers}),
    }


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("measured")
    for column in ("array", "typical", "best"):
        table.add_column(column, justify="right")
    return table


def _add(table: Table, figure: Figure) -> None:
    def text(value: float) -> str:
        if figure.unit == "s":
            return duration(value)
        return rate(value, "B" if figure.unit == "B/s" else "")

    array = size(figure.nbytes) if figure.nbytes else ""
    table.add_row(Text(figure.name), array, text(figure.typical), text(figure.best))
