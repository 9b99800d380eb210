"""``disco run``: a script with an open session."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, DiscoError, SessionLost
from disco_client.main_program import exit_status, in_place_of_main, traceback_from
from disco_server.cli.options import (
    Controller,
    dial_options,
    exit_code_of,
    json_option,
    report_errors,
    say,
    wants_all,
)

if TYPE_CHECKING:
    from disco_client.session import Session

__all__ = ["run"]

_OUTPUT_S = 2.0
"""How long a script that has failed waits for what its workers execute, to show what they print."""


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(1),
    metavar="N",
    help="Open a session of this many workers on a cluster.  [default: those of the MPI launcher "
    "that started this command]",
)
@click.option(
    "--groups",
    "num_groups",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Divide them into this many groups.  [default: 1]",
)
@click.option("--name", help="Let lists call the session so.  [default: the script's name]")
@click.option("--ccl", metavar="NAME", help="Use this collective library.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=90.0,
    show_default=True,
    metavar="SECONDS",
    help="Wait so long for slots.",
)
@click.option("--logs/--no-logs", default=True, help="Show what workers print, or do not.")
@click.option(
    "--torch",
    "on_all",
    is_flag=True,
    help="Run a script of torchrun's, on every worker. Needs torch there, also for a script that "
    "does not import it.",
)
@json_option("Print one JSON object on standard error at the end, with session and exit code.")
@click.argument("script", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@report_errors
@dial_options
def run(
    script: Path,
    arguments: tuple[str, ...],
    on_all: bool,
    as_json: bool,
    controller: Controller,
    **wanted: Any,
) -> None:
    """Run a Python file, SCRIPT, with an open session.

    The session is its global ``session``. Everything after SCRIPT is for the script, in
    sys.argv. The session ends with it, and the exit code is the script's. Options stand
    before SCRIPT:

        disco run --workers 4 train.py --epochs 3

    Workers import modules from the path of their own; disco local puts the script's
    folder there:

        disco local --slots 4 -- disco run --workers 4 train.py

    With --torch every worker runs SCRIPT by itself, as torchrun starts it, and there is no
    global ``session``. It is sent to the workers, with what it imports from its folder, so
    their daemons must allow that: disco-worker --allow-load uploads. The exit code is that
    of the worker on which it failed first:

        disco run --torch --workers 4 ddp.py --epochs 3

    Without --workers an MPI launcher starts it, once for each worker, and needs no cluster.
    The first process runs SCRIPT, and its exit code counts:

        srun --mpi=pmi2 --ntasks 4 disco run train.py --epochs 3
    """
    started = monotonic()
    wanted["name"] = wanted["name"] or script.stem
    if on_all:
        wanted["hang_report"] = None  # one command takes as long as the script
    with contextlib.ExitStack() as stack:
        if wanted["num_workers"] is None:
            del wanted["num_workers"]
            code, session = _launched(script, wanted, stack)
        else:
            code = _compile(script)
            session = controller.open_session(**wanted)
        if on_all:
            status = _run_on_all(script, arguments, session)
        else:
            status = _run(code, script, arguments, session)
    if as_json:
        found = {
            "session": session.session_id,
            "name": session.name,
            "workers": session.num_workers,
            "seconds": monotonic() - started,
            "exit_code": status,
        }
        click.echo(json.dumps(found), err=True)
    sys.exit(status)


def _launched(
    script: Path, wanted: dict[str, Any], stack: contextlib.ExitStack
) -> tuple[object, Session]:
    """Opens the session of a launcher's processes; only the first one returns."""
    from disco_server.cli import launched

    launcher = stack.enter_context(launched.find_launcher())
    if launcher.rank:
        sys.exit(launched.serve_launched(launcher))
    try:
        code = _compile(script)
    except ConfigError:
        launched.leave(launcher)
        raise
    return code, stack.enter_context(launched.open_launched(launcher, wanted))


def _compile(script: Path) -> object:
    """Reads a script before anything is opened.

    Raises:
        ConfigError: It cannot be read, or is no Python.
    """
    try:
        return compile(script.read_bytes(), str(script), "exec")
    except OSError as error:
        msg = f"{script} cannot be read: {error.strerror}"
        raise ConfigError(msg) from None
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError) and wants_all():
            traceback.print_exception(error, limit=0)
        at = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        first = str(error).splitlines()[0].partition(" (")[0]
        msg = f"{script}{at} is no Python that can be run: {first}"
        raise ConfigError(msg) from None


def _run(code: object, script: Path, arguments: tuple[str, ...], session: Session) -> int:
    """Runs a script in a session, which ends with it; returns the exit code."""
    from disco_client.awaited_lines import await_output  # --help loads none of it

    argv, folder = [str(script), *arguments], str(script.resolve().parent)
    with in_place_of_main(str(script), argv, folder) as main:
        main["session"] = session
        try:
            with session:
                seconds: float | None = _OUTPUT_S
                try:
                    exec(code, main)  # type: ignore[arg-type]  # noqa: S102  (that is its purpose)
                    seconds = None  # the session's end waits for all commands as well
                finally:
                    await_output(session, seconds)
        except SystemExit as left:
            return _exit_code(left.code)
        except KeyboardInterrupt as error:
            _show(error, str(script))
            return 128 + signal.SIGINT
        except BaseException as error:  # noqa: BLE001  (a script may raise anything)
            _show(error, str(script))
            return 1
    return 0


def _exit_code(code: object) -> int:
    """What Python makes of the argument of sys.exit()."""
    status, text = exit_status(code)
    if text:
        click.echo(text, err=True)
    return status


def _show(error: BaseException, script: str) -> None:
    """Prints an exception as Python does, from the script on."""
    sys.stdout.flush()
    text = traceback_from(error, script)
    if text is None and isinstance(error, DiscoError):
        # It was found at the session's end, not by a line of the script.
        text = f"disco: {error}"
    say(text or "".join(traceback.format_exception(error)).rstrip("\n"), err=True)


def _run_on_all(script: Path, arguments: tuple[str, ...], session: Session) -> int:
    """Runs a script on every worker of a session, which ends with it; returns the exit code."""
    from disco_client.scripts import run_script  # --help loads none of it

    try:
        return run_script(session, script, arguments)
    except KeyboardInterrupt:
        say("disco: Ctrl-C has ended the script on all workers", err=True)
        return 128 + signal.SIGINT
    except DiscoError as error:
        # Of a lost worker the last lines are wanted as well.
        whole = isinstance(error, SessionLost) or wants_all()
        say(f"disco: {error if whole else str(error).splitlines()[0]}", err=True)
        return exit_code_of(error)
    finally:
        session.shutdown()
