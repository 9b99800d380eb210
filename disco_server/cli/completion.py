"""``disco completion``: what a shell needs to complete commands, options and sessions."""

from __future__ import annotations

import json

import click
from click.shell_completion import get_completion_class

from disco_server.cli.options import json_option

__all__ = ["completion"]

_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/disco.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
@json_option("One JSON object with the script.")
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Prints a script with which SHELL completes what is typed after disco.

    For bash, in ~/.bashrc:

        eval "$(disco completion bash)"

    For zsh the same in ~/.zshrc; for fish, into a file:

        disco completion fish > ~/.config/fish/completions/disco.fish

    Where a command takes a session, the names of those that run are completed, if the
    controller answers at once.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  (click knows those that may be chosen)
    made = kind(context.find_root().command, {}, "disco", "_DISCO_COMPLETE")
    # Not source(), which runs bash to see its version.
    script = made.source_template % made.source_vars()
    if as_json:
        click.echo(json.dumps({"shell": shell, "file": _WHERE[shell], "script": script}))
    else:
        click.echo(script)
