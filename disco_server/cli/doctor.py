"""``disco doctor``: whether this machine can do what sessions ask of it, and what one does."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click
from rich.table import Table
from rich.text import Text

from disco_client.version import __version__
from disco_server.cli.checkup import (
    gpu_kind,
    look_at_allreduce,
    look_at_controller,
    look_at_nodes,
    sections,
)
from disco_server.cli.options import EXIT_FAILED, Controller, dial_options, report_errors, say
from disco_server.cli.output import console
from disco_server.observe.checks import CheckResult, State

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["doctor"]

_GPU: Final = "gpu"
_COLOURS: Final = {
    State.OK: "green",
    State.MISSING: "yellow",
    State.BROKEN: "red",
    State.NOT_APPLICABLE: "dim",
}


@dataclass(frozen=True, slots=True)
class _Checked:
    """A result, its section, and whether it is required."""

    section: str
    required: bool
    result: CheckResult

    @property
    def is_problem(self) -> bool:
        """Whether it is broken, or missing though required."""
        state = self.result.state
        return state is State.BROKEN or (self.required and state is not State.OK)


@click.command()
@click.option("--gpu", is_flag=True, help="Fail also where this machine cannot work on GPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--session",
    metavar="NAME",
    help="Look at a session instead of this machine: show what each rank does, its Python "
    "stack, and what the session waits for.",
)
@click.option(
    "--cluster",
    is_flag=True,
    help="Check the cluster instead of this machine: releases, how far each node is away, and "
    "an allreduce on the workers of all free slots.",
)
@report_errors
@dial_options
def doctor(
    gpu: bool, as_json: bool, session: str | None, cluster: bool, controller: Controller
) -> None:
    """Check this machine, and say what to do about what is missing.

    The exit code is 0 where all that sessions on CPUs need is there and nothing is
    broken, else 1; with --gpu, what sessions on GPUs need must be there too. With
    --session it is 0 where the session goes on or is idle, 1 where a rank is busy and
    gets no further while doctor looks, or a node does not answer, and 5 where there is
    no such session.
    """
    if session is not None and cluster:
        raise click.UsageError("expected --session or --cluster, got both")
    if session is not None:
        _look_at(session, controller, as_json=as_json)
    if cluster:
        _look_at_cluster(controller, as_json=as_json)
    kind = gpu_kind()
    out = console(markup=False, quiet=as_json)
    checked: list[_Checked] = []
    for section in sections(kind, controller.credentials):
        required = section.required or (gpu and section.name == _GPU)
        with out.status(f"looking at {section.name}"):
            checked += [_Checked(section.name, required, each) for each in section.look()]
    if as_json:
        click.echo(json.dumps(_as_json(checked, kind)))
    else:
        _show(out, checked, kind)
    sys.exit(EXIT_FAILED if any(each.is_problem for each in checked) else 0)


def _look_at_cluster(controller: Controller, *, as_json: bool) -> NoReturn:
    from disco_client.transport.admin import ask_for_overview

    out = console(markup=False, quiet=as_json)
    with controller.dialled() as line, out.status("looking at the cluster"):
        view = ask_for_overview(line)
        found = [look_at_controller(line, view), *look_at_nodes(view)]
        found.append(look_at_allreduce(controller, view))
    checked = [_Checked("cluster", required=True, result=each) for each in found]
    # A busy cluster is no problem.
    ok = not any(c.is_problem and c.result.state is not State.NOT_APPLICABLE for c in checked)
    if as_json:
        about = {"version": __version__, "address": controller.address, "ok": ok}
        click.echo(json.dumps({**about, "checks": _checks(checked)}))
    else:
        _show_table(out, checked, f"the cluster at {controller.address}")
    sys.exit(0 if ok else EXIT_FAILED)


def _look_at(session: str, controller: Controller, *, as_json: bool) -> NoReturn:
    # Imported here: this must also run if gRPC is broken, and --help loads none of it.
    from disco_client.diagnosis import diagnose
    from disco_client.transport.admin import ask_for_inspection

    with controller.dialled() as line:
        diagnosis = diagnose(
            lambda stacks: ask_for_inspection(line, session, stacks=stacks, flights=False)
        )
    say(json.dumps(diagnosis.as_dict()) if as_json else str(diagnosis))
    sys.exit(0 if diagnosis.goes_on else EXIT_FAILED)


def _ready(checked: Sequence[_Checked], *, gpu: bool) -> bool:
    """Whether sessions on GPUs, or on CPUs, have what they need."""
    needed = [each for each in checked if (each.section == _GPU if gpu else each.section != _GPU)]
    return all(each.result.state is State.OK if gpu else not each.is_problem for each in needed)


def _as_json(checked: Sequence[_Checked], kind: str) -> dict[str, Any]:
    """The same for programs; keys are added to it and never change."""
    return {
        "version": __version__,
        "host": platform.node(),
        "ok": not any(each.is_problem for each in checked),
        "cpu_ready": _ready(checked, gpu=False),
        "gpu_ready": _ready(checked, gpu=True),
        "gpu_kind": kind,
        "checks": _checks(checked),
    }


def _checks(checked: Sequence[_Checked]) -> list[dict[str, Any]]:
    return [
        {"section": each.section, "required": each.required, **each.result.as_json()}
        for each in checked
    ]


def _show(out: Console, checked: Sequence[_Checked], kind: str) -> None:
    _show_table(out, checked, f"disco {__version__} on {platform.node()}")
    ways = {"CPUs": _ready(checked, gpu=False), f"GPUs ({kind})": _ready(checked, gpu=True)}
    for way, ready in ways.items():
        out.print(f"sessions on {way}: {'ready' if ready else 'not ready'}")


def _show_table(out: Console, checked: Sequence[_Checked], title: str) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("section", "check", "state", "found"):
        table.add_column(column, no_wrap=column != "found")
    before = ""
    for each in checked:
        found = each.result
        if before and before != each.section:
            table.add_section()
        word = "-" if found.state is State.NOT_APPLICABLE else found.state.value
        section = each.section if each.section != before else ""
        # As Text, because brackets in results would be taken for markup.
        state = Text(word, style=_COLOURS[found.state])
        table.add_row(section, found.name, state, Text(found.detail))
        before = each.section
    out.print(table)
    hints = [each.result for each in checked if each.result.hint]
    if hints:
        out.print("what to do:")
    for found in hints:
        # Not wrapped, so that a command can be copied.
        out.print(f"  {found.name}: {found.hint}", soft_wrap=True)
