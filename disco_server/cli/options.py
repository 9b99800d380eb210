"""Common options and error handling of the commands."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, cast

import click

from disco_client.descriptors import OF_A_CONNECTION, check_descriptors
from disco_client.errors import (
    AccessDenied,
    ConfigError,
    ConnectionFailed,
    DiscoError,
    NoSuchCluster,
    NoSuchNode,
    NoSuchSession,
)
from disco_client.text import for_terminal
from disco_client.transport.address import DEFAULT_ADDRESS, Address
from disco_server.config import Settings
from disco_server.settings import OneOf, Setting, read_path, read_switch

if TYPE_CHECKING:
    from disco_client.session import Session
    from disco_client.transport.channel import ReloadingChannel
    from disco_client.transport.credentials import Credentials

__all__ = [
    "EXIT_DENIED",
    "EXIT_FAILED",
    "EXIT_UNKNOWN",
    "EXIT_UNREACHED",
    "EXIT_USAGE",
    "Controller",
    "ShownVariable",
    "avoid_grpc_forks",
    "config_option",
    "credential_options",
    "dial_options",
    "exit_code_of",
    "fail",
    "json_option",
    "keep_examples",
    "node_argument",
    "quieten_grpc",
    "report_errors",
    "say",
    "session_argument",
    "setting_option",
    "setting_options",
    "wants_all",
]

EXIT_FAILED: Final = 1
"""The exit code of a command that failed, or that found something wrong."""
EXIT_USAGE: Final = 2
"""The exit code of a command with an invalid option, setting or file."""
EXIT_UNREACHED: Final = 3
"""The exit code of a command that reached no controller."""
EXIT_DENIED: Final = 4
"""The exit code of a command that was refused, or asked for another owner's session."""
EXIT_UNKNOWN: Final = 5
"""The exit code of a command for a session, node or cluster that does not exist."""

_EXITS: Final[tuple[tuple[type[DiscoError], int], ...]] = (
    (ConfigError, EXIT_USAGE),
    (AccessDenied, EXIT_DENIED),
    (ConnectionFailed, EXIT_UNREACHED),
    (NoSuchSession, EXIT_UNKNOWN),
    (NoSuchNode, EXIT_UNKNOWN),
    (NoSuchCluster, EXIT_UNKNOWN),
)

_CREDENTIALS = ("tls_ca", "tls_cert", "tls_key", "token_file")
_REACH_S = 5.0
_COMPLETE_S = 0.7
"""How long a completion may take."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class ShownVariable(click.Option):
    """An option whose help names its variable of the environment, which is read elsewhere.

    Where a setting comes from is decided in one place for commands, daemons and programs.
    """

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Leaves the variable to whoever reads the setting."""
        del ctx
        return None


def keep_examples(command: click.Command) -> None:
    """Lets the help of a command, and of those below it, keep the lines of indented examples."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    command.help = "\n\n".join(f"\b\n{each}" if each[:1] == " " else each for each in paragraphs)
    if isinstance(command, click.Group):
        for each in command.commands.values():
            keep_examples(each)


def config_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds ``--config FILE``, which arrives as ``config: Path | None``."""
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        envvar="DISCO_CONFIG",
        show_envvar=True,
        metavar="FILE",
        help="Read settings from this file, TOML with the tables [controller] and [worker]. "
        "Options come first, then variables, then the file.",
    )(command)


def setting_options(kind: type[Settings]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Adds an option for each setting of a daemon, under the setting's name, and ``--config``."""

    def add(command: Callable[_P, _R]) -> Callable[_P, _R]:
        for row in reversed(kind.retired()):
            command = click.option(row.option, row.name, metavar="VALUE", hidden=True)(command)
        command = config_option(command)
        for row in reversed(kind.table().values()):
            if row.option:
                command = setting_option(row)(command)
        return command

    return add


def setting_option(row: Setting) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Makes the option of a setting; if it is left out the value is None, or no values."""
    more: dict[str, Any] = {"multiple": row.repeats, "cls": ShownVariable}
    more |= {"envvar": row.variable, "show_envvar": True}
    if isinstance(row.read, OneOf):
        more["type"] = click.Choice(row.read.choices, case_sensitive=False)
    elif row.read is read_switch:
        del more["multiple"]
        more |= {"is_flag": True, "default": None}
    elif row.read is read_path:
        more["type"] = click.Path(dir_okay=row.metavar == "DIR", path_type=Path)
    text = f"{row.text}  [default: {row.default}]" if row.default else row.text
    return click.option(row.option, row.name, metavar=row.metavar or None, help=text, **more)


def dial_options(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds the controller's address and credentials, which arrive as ``controller: Controller``."""

    @click.option(
        "--address",
        cls=ShownVariable,
        envvar="DISCO_ADDRESS",
        show_envvar=True,
        metavar="HOST:PORT",
        default=None,
        help=f"Ask this controller.  [default: the context's, else {DEFAULT_ADDRESS}]",
    )
    @click.option(
        "--context",
        cls=ShownVariable,
        envvar="DISCO_CONTEXT",
        show_envvar=True,
        metavar="NAME",
        default=None,
        help="Ask the controller of this context.  [default: that of `disco context use`]",
    )
    @credential_options
    @functools.wraps(command)
    def dialling(*args: Any, address: str | None, context: str | None, **options: Any) -> Any:
        from disco_client.transport.contexts import find_controller

        given = {name: options.pop(name) for name in _CREDENTIALS}
        if address is not None:
            Address.parse(address)  # also an empty one, which elsewhere is none
        found = find_controller(address, context=context, **given)
        return command(*args, controller=Controller(*found), **options)  # type: ignore[arg-type]

    return cast("Callable[_P, _R]", dialling)


def credential_options(command: Callable[_P, _R], *, environ: bool = True) -> Callable[_P, _R]:
    """Adds the files of one's credentials, which arrive as ``tls_ca``, ... ``token_file``.

    `environ` says whether variables of the environment are read where one is left out.
    """
    texts = (
        "Verify the controller's certificate by this one of an authority.",
        "Show this certificate, where the controller wants one.",
        "Use this key of the certificate.",
        "Show the token in this file.",
    )
    more: dict[str, Any] = {"type": click.Path(dir_okay=False, path_type=Path), "metavar": "FILE"}
    for name, text in reversed(tuple(zip(_CREDENTIALS, texts, strict=True))):
        if environ:
            variable = f"DISCO_{name.upper()}"
            more |= {"cls": ShownVariable, "envvar": variable, "show_envvar": True}
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, help=text, **more)(command)
    return command


def json_option(text: str = "Print one JSON object instead of tables.") -> Callable[..., Any]:
    """Adds ``--json``, which arrives as ``as_json: bool``; the text is its help."""
    return click.option("--json", "as_json", is_flag=True, help=text)


def session_argument(*, required: bool = True, **options: Any) -> Callable[..., Any]:
    """Adds SESSION, a name or an id, which arrives as ``session``; shells complete the names."""
    return click.argument("session", required=required, shell_complete=_complete_session, **options)


def node_argument(**options: Any) -> Callable[..., Any]:
    """Adds NODE, a name or its beginning, which arrives as ``node``; shells complete the names."""
    return click.argument("node", shell_complete=_complete_node, **options)


def _complete_session(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names of sessions, if the controller answers at once."""
    sessions, _nodes = _listed(context)
    return [name for name in sessions if name.startswith(incomplete)]


def _complete_node(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """The names of nodes, if the controller answers at once."""
    _sessions, nodes = _listed(context)
    return [name for name in nodes if name.startswith(incomplete)]


def _listed(context: click.Context) -> tuple[list[str], list[str]]:
    """The names of the controller's sessions and nodes, if it answers at once."""
    quieten_grpc()
    from disco_client.transport.admin import list_cluster
    from disco_client.transport.channel import ReloadingChannel
    from disco_client.transport.contexts import find_controller

    given: dict[str, Any] = context.params
    try:
        address, credentials = find_controller(
            given.get("address"),
            context=given.get("context"),
            tls_ca=given.get("tls_ca"),
            tls_cert=given.get("tls_cert"),
            tls_key=given.get("tls_key"),
            token_file=given.get("token_file"),
        )
        with contextlib.closing(ReloadingChannel(address, credentials)) as line:
            found = list_cluster(line, _COMPLETE_S)
    except DiscoError:
        return [], []
    return [each.name for each in found.sessions], [each.name for each in found.nodes]


@dataclass(frozen=True, slots=True)
class Controller:
    """A controller's address, and the credentials to connect with.

    Attributes:
        address: ``HOST:PORT`` or ``unix:/path``.
        credentials: The credentials.
    """

    address: str
    credentials: Credentials

    @contextlib.contextmanager
    def dialled(self) -> Generator[ReloadingChannel]:
        """A channel to it, once it answers.

        gRPC's own log lines are suppressed, unless GRPC_VERBOSITY asks for them.

        Raises:
            AccessDenied: One side refuses the other.
            ConnectionFailed: No controller answers, or not within some seconds.
            DescriptorRefused: This process may open too few descriptors.
        """
        # `disco doctor` must also run if gRPC is broken, and --help need not load it.
        quieten_grpc()
        from disco_client.transport.channel import ReloadingChannel
        from disco_client.transport.reaching import await_controller

        check_descriptors(OF_A_CONNECTION, "the connection to the controller")
        line = ReloadingChannel(self.address, self.credentials)
        try:
            try:
                await_controller(line, _REACH_S)
            except AccessDenied:
                raise
            except ConnectionFailed:
                msg = (
                    f"no controller answers at {self.address}; start one: disco local, or name "
                    "another with --address or DISCO_ADDRESS"
                )
                raise ConnectionFailed(msg) from None
            yield line
        finally:
            line.close()

    def open_session(self, **options: Any) -> Session:
        """Opens a session there, as ``disco_client.connect`` does with these options.

        Raises:
            AccessDenied: One side refuses the other.
            ConnectionFailed: No controller answers, or not within some seconds.
            SessionError: The session could not be opened.
        """
        with self.dialled():
            pass  # connect() would wait longer, for a controller that may still be starting
        from disco_client import connect

        shown = self.credentials
        files = {"tls_ca": shown.ca, "tls_cert": shown.cert, "tls_key": shown.key}
        given = {**files, "token": shown.token or None, "token_file": shown.token_file}
        return connect(self.address, **given, **options)


def quieten_grpc() -> None:
    """Keeps gRPC's own lines, which have another format, out of the log.

    This program reports the same errors itself. To see the lines, set GRPC_VERBOSITY.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def avoid_grpc_forks() -> None:
    """Tells gRPC that this process starts others by exec alone; to be called before it is loaded.

    Otherwise it ends its threads and restarts them around a fork, and if the system cannot
    start more threads, the daemon hangs for good.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def say(text: str, *, err: bool = False) -> None:
    """Prints text that others may have written: escaped on a terminal, else as it is."""
    stream = sys.stderr if err else sys.stdout
    click.echo(for_terminal(text, stream), err=err, color=True)  # the text's colours are kept


def fail(error: DiscoError) -> NoReturn:
    """Ends the command with the error's first line on stderr and the exit code of its kind.

    With ``--verbose`` before the command all of it is shown, with its traceback.
    """
    lines = str(error).splitlines() or [type(error).__name__]
    context = click.get_current_context(silent=True)
    name = context.find_root().info_name if context is not None else None
    if wants_all():
        say("".join(traceback.format_exception(error)).rstrip(), err=True)
    say(f"{name or 'disco'}: {lines[0]}", err=True)
    raise SystemExit(exit_code_of(error))


def exit_code_of(error: DiscoError) -> int:
    """The exit code of a command that ends with an error."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), EXIT_FAILED)


def wants_all() -> bool:
    """Whether errors are to be shown with their tracebacks."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.find_root().params.get("verbose"))


def report_errors(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a command end by `fail` where it raises a `DiscoError`.

    It must be the innermost decorator, below the options. Other exceptions pass:
    they are faults of this program, and their traceback is wanted.
    """

    @functools.wraps(command)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except DiscoError as error:
            fail(error)

    return guarded
