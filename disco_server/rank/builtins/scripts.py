"""The function behind ``disco run --torch``, which runs a script of torchrun's on every rank."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final

from disco_client.main_program import exit_status, in_place_of_main, traceback_from
from disco_server.modules import loading
from disco_server.rank.builtins.files import content_of
from disco_server.rank.counted_output import counted_output
from disco_server.rank.errors import ArgumentRefused, sendable
from disco_server.rank.functions import register_func
from disco_server.rank.signals import CommandInterrupted, RankEnded
from disco_server.rank.torch_group import torch_environment
from disco_server.rank.worker import current_worker

__all__: list[str] = []

_MOST_TEXT: Final = 16 << 10
"""How many characters of a traceback are sent: its end, where the exception is."""

_INTERRUPTED: Final = 130
"""The exit code of a script that a KeyboardInterrupt ends, as shells see it."""


@register_func("runtime.disco._run_script")
def run_script(path: str, digest: str, name: str, arguments: Sequence[str]) -> list[Any]:
    """Runs a file of the client as this rank's main program; every rank has to call it.

    It finds what torchrun would have put into the environment, which is as before afterwards.

    Args:
        path: The file at the client.
        digest: The SHA-256 of its content, in hexadecimal.
        name: What the client calls the file: ``sys.argv[0]``, also for tracebacks.
        arguments: The rest of ``sys.argv``.

    Returns:
        The exit code; how many lines it has printed; the text that Python would have printed at
        its end, a traceback or what ``sys.exit()`` was given, or "".

    Raises:
        ArgumentRefused: The name or an argument is no text.
        LoadNotAllowed: The node does not let sessions load the file.
        FileRefused: The file has disappeared since the check.
        SyntaxError: The file is no Python.
        UnavailableError: The ranks are threads, torch is missing on one, or there is no address
            that all of them reach.
        AbortedError: Another rank cannot come.
    """
    worker = current_worker()
    argv = [name, *arguments]
    if not all(isinstance(each, str) for each in argv):
        msg = f"expected a script's name and arguments as text, got {argv!r}"
        raise ArgumentRefused(msg)
    file = content_of(worker, path, digest)
    code = loading.compile_script(file, digest, name)
    found = torch_environment(worker)
    with (
        counted_output(worker) as printed,
        _environment(found),
        in_place_of_main(str(file), argv) as names,
    ):
        status, text = _run(code, names, name)
    return [status, printed.lines, text]


def _run(code: Any, names: dict[str, Any], name: str) -> tuple[int, str]:
    """Executes a script to its end; its exit code, and what Python would print then."""
    try:
        exec(code, names)  # noqa: S102  (allowed by the node)
    except SystemExit as left:
        status, text = exit_status(left.code)
        return status, sendable(text[-_MOST_TEXT:])
    except (CommandInterrupted, RankEnded):
        raise
    except BaseException as error:  # noqa: BLE001  (a script may raise anything)
        text = traceback_from(error, name) or repr(error)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
        return status, sendable(text[-_MOST_TEXT:])
    return 0, ""


@contextlib.contextmanager
def _environment(wanted: Mapping[str, str]) -> Generator[None]:
    """Sets variables of the environment, which are as before afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
