"""``disco stack``: where in their Python code the ranks of a session are."""

from __future__ import annotations

import json

import click

from disco_client.errors import ConfigError
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
    session_argument,
)

__all__ = ["stack"]


@click.command()
@session_argument()
@click.argument("rank", required=False, type=click.IntRange(0))
@click.option("--rank", "named", type=click.IntRange(0), help="Show this rank alone, as RANK does.")
@json_option("Print one JSON object with a list of ranks.")
@report_errors
@dial_options
def stack(
    session: str, rank: int | None, named: int | None, as_json: bool, controller: Controller
) -> None:
    """Show where the ranks of SESSION, or RANK, are in their code.

    SESSION is a name, an id, or the beginning of an id. The ranks are not
    stopped for it, and one that hangs outside of Python shows where it left
    it. Equal stacks are shown once. `disco doctor --session SESSION` says
    what a session waits for.
    """
    if rank is not None and named is not None:
        raise click.UsageError(f"expected one rank, got {rank} and --rank {named}")
    rank = named if rank is None else rank
    # Imported here, so that --help loads none of it.
    from disco_client.hang_analysis import name_ranks
    from disco_client.transport.admin import ask_for_inspection

    with controller.dialled() as line:
        found = ask_for_inspection(line, session, stacks=True, flights=False)
    if rank is not None and rank >= found.num_workers:
        msg = f"expected a rank from 0 to {found.num_workers - 1}, got {rank}"
        raise ConfigError(msg)
    ranks = [each for each in found.ranks if rank in (None, each.worker)]
    if as_json:
        shown = [
            {"worker": r.worker, "node": r.node, "pid": r.pid, "stack": r.stack, "note": r.note}
            for r in ranks
        ]
        silent = [each.node for each in found.silent]
        click.echo(json.dumps({"session": found.name, "ranks": shown, "silent": silent}))
        return
    alike: dict[str, list[int]] = {}
    for each in ranks:
        text = each.stack.rstrip() or f"  ({each.note or 'it has no stack'})"
        alike.setdefault(text, []).append(each.worker)
    say("\n\n".join(f"{name_ranks(workers)}:\n{text}" for text, workers in alike.items()))
    for silence in found.silent:
        say(f"node {silence.node} did not answer; its ranks are left out", err=True)
