"""``disco run``: a script with an open session."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import traceback
from collections.abc import Generator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import click

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, DiscoError
from disco_server.cli.options import (
    Controller,
    dial_options,
    json_option,
    report_errors,
    say,
    wants_all,
)

if TYPE_CHECKING:
    from disco_client.session import Session

__all__ = ["run"]


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(1),
    required=True,
    metavar="N",
    help="Open a session of this many workers.",
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
@json_option("Print one JSON object on standard error at the end, with session and exit code.")
@click.argument("script", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@report_errors
@dial_options
def run(
    script: Path,
    arguments: tuple[str, ...],
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
    """
    code = _compile(script)
    started = monotonic()
    wanted["name"] = wanted["name"] or script.stem
    session = controller.open_session(**wanted)
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
    with _in_place_of_main(script, arguments) as main:
        main["session"] = session
        try:
            with session:
                exec(code, main)  # type: ignore[arg-type]  # noqa: S102  (that is its purpose)
        except SystemExit as left:
            return _exit_code(left.code)
        except KeyboardInterrupt as error:
            _show(error, str(script))
            return 128 + signal.SIGINT
        except BaseException as error:  # noqa: BLE001  (a script may raise anything)
            _show(error, str(script))
            return 1
    return 0


@contextlib.contextmanager
def _in_place_of_main(script: Path, arguments: tuple[str, ...]) -> Generator[dict[str, Any]]:
    """Sets up the process as if Python itself ran a script; yields the script's globals."""
    main = ModuleType("__main__")
    main.__dict__.update(__file__=str(script), __builtins__=__builtins__)
    before = sys.modules["__main__"], sys.argv, sys.path
    sys.modules["__main__"] = main
    sys.argv = [str(script), *arguments]
    sys.path = [str(script.resolve().parent), *sys.path]
    try:
        yield main.__dict__
    finally:
        sys.modules["__main__"], sys.argv, sys.path = before


def _exit_code(code: object) -> int:
    """What Python makes of the argument of sys.exit()."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    click.echo(code, err=True)
    return 1


def _show(error: BaseException, script: str) -> None:
    """Prints an exception as Python does, from the script on."""
    sys.stdout.flush()
    frames: TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    if frames is None and isinstance(error, DiscoError):
        # It was found at the session's end, not by a line of the script.
        say(f"disco: {error}", err=True)
    else:
        say("".join(traceback.format_exception(type(error), error, frames)).rstrip("\n"), err=True)
