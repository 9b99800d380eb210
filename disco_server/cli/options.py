"""What the commands share: their common options, and how they fail."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn, ParamSpec, TypeVar

import click

from disco_client.errors import DiscoError
from disco_server.config import LOG_FORMATS, LOG_LEVELS

__all__ = [
    "EXIT_REFUSED",
    "config_option",
    "daemon_options",
    "fail",
    "log_format_option",
    "log_level_option",
    "quieten_grpc",
    "report_errors",
    "spare_grpc_forks",
]

EXIT_REFUSED: Final = 2
"""The exit code of a command that could not do what it was told."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def config_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds ``--config FILE``, which arrives as ``config: Path | None``."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="DISCO_CONFIG",
        metavar="FILE",
        help="Settings as TOML, in tables [controller] and [worker]. "
        "Flags come first, then DISCO_* variables, then this file.",
    )(command)


def log_level_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds ``--log-level``, which arrives as ``log_level: str | None``."""
    return click.option(
        "--log-level",
        type=click.Choice(LOG_LEVELS, case_sensitive=False),
        help="What is logged: this and what is graver.  [default: info]",
    )(command)


def log_format_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds ``--log-format``, which arrives as ``log_format: str | None``."""
    return click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS, case_sensitive=False),
        help="Lines for people, or one JSON object a line.  [default: text]",
    )(command)


def daemon_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds all three: ``--config``, ``--log-level`` and ``--log-format``."""
    return config_option(log_level_option(log_format_option(command)))


def quieten_grpc() -> None:
    """Keeps gRPC's own lines out of the log, which nobody's format has room for.

    What they say is reported by this program too. To see them, set GRPC_VERBOSITY.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def spare_grpc_forks() -> None:
    """Tells gRPC that this process starts others by exec alone; to be called before it is loaded.

    Otherwise it ends its threads and starts them anew around a fork, and where the
    system has no more threads to give, the daemon stood still for good.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def fail(error: DiscoError) -> NoReturn:
    """Ends the command with the error's first line on stderr and `EXIT_REFUSED`."""
    lines = str(error).splitlines() or [type(error).__name__]
    context = click.get_current_context(silent=True)
    name = context.find_root().info_name if context is not None else None
    click.echo(f"{name or 'disco'}: {lines[0]}", err=True)
    raise SystemExit(EXIT_REFUSED)


def report_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a command end by `fail` where it raises a `DiscoError`.

    It stands below the options, next to the function. Other exceptions pass:
    they are faults of this program, and their traceback is wanted.
    """

    @functools.wraps(command)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except DiscoError as error:
            fail(error)

    return guarded
