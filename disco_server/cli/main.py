"""The command ``disco``."""

from __future__ import annotations

import errno
import json
import signal
import sys
import traceback
from typing import Any

import click
from click.shell_completion import get_completion_class

from disco_client.version import __version__
from disco_server.cli.bench import bench
from disco_server.cli.certs import certs
from disco_server.cli.cluster import cluster
from disco_server.cli.contexts import context
from disco_server.cli.dashboard import dashboard
from disco_server.cli.doctor import doctor
from disco_server.cli.drain import drain
from disco_server.cli.local import local
from disco_server.cli.logs import logs
from disco_server.cli.options import EXIT_FAILED, json_option, keep_examples, wants_all
from disco_server.cli.run import run
from disco_server.cli.sessions import interrupt, sessions, status, stop
from disco_server.cli.stack import stack
from disco_server.cli.top import top
from disco_server.cli.trace import trace

__all__ = ["completion", "main"]


# ``disco completion``: a script by which shells complete commands, options and sessions.


_WHERE = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/disco.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(tuple(_WHERE)))
@json_option("Print one JSON object with the script.")
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print a script by which SHELL completes commands.

    For bash, put this into ~/.bashrc, and for zsh the same into ~/.zshrc:

        eval "$(disco completion bash)"

    For fish, write it into a file:

        disco completion fish > ~/.config/fish/completions/disco.fish

    Where a command takes a session or a node, the names of those that run
    are completed, if the controller answers at once.
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


_EPILOG = """Exit codes: 0 done; 1 failed, or something is wrong; 2 an option, a setting or a
file cannot be as it is; 3 no controller answers; 4 it lets you not in, or that is somebody
else's; 5 there is no such session, node or cluster."""


class _Disco(click.Group):
    """Reports errors in one line, faults of this program included."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except ModuleNotFoundError:
            raise  # the entry point says which extra provides it
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of the output is gone; click exits silently
            if wants_all():
                traceback.print_exc()
            lines = str(error).splitlines() or [""]
            click.echo(
                f"disco: a fault of this program: {type(error).__name__}: {lines[0]}; "
                "disco --verbose ... shows where",
                err=True,
            )
            sys.exit(EXIT_FAILED)


@click.group(cls=_Disco, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_EPILOG)
@click.version_option(__version__, prog_name="disco")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    envvar="DISCO_VERBOSE",
    show_envvar=True,
    help="Show where an error came from.",
)
def main(verbose: bool) -> None:
    """Run one program on many devices, driven from one place."""
    del verbose  # read where errors are reported


for _command in (
    *(bench, certs, cluster, completion, context, dashboard, doctor, drain, interrupt, local),
    *(logs, run, sessions, stack, status, stop, top, trace),
):
    main.add_command(_command)
keep_examples(main)


if __name__ == "__main__":
    main()
