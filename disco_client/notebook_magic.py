"""The cell magic ``%%disco`` of IPython and Jupyter: a cell that every worker executes."""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self

from disco_client.awaited_lines import AwaitedLines
from disco_client.call_sites import pass_over
from disco_client.cells import file_of_text
from disco_client.core import core_of
from disco_client.errors import ConfigError, DiscoError, RemoteError
from disco_client.modules import bring
from disco_client.session import Session, open_sessions
from disco_client.sources import described

if TYPE_CHECKING:
    from types import FrameType

    from disco_client.core import DRef, SessionCore

__all__ = ["execute_cell", "register"]

_FIRST_LINE = "# %%disco\n"
"""Stands for the line of the magic, so that a line has the number that the notebook shows."""

_OUTPUT_S = 1.0
"""How long the output of a cell is awaited after its result."""


def register(shell: Any) -> None:
    """Registers the magic.

    Args:
        shell: The shell of IPython.
    """

    def disco(line: str, cell: str) -> DRef | None:
        """Executes the cell on every worker of a session, and shows what they print by rank.

            %%disco [SESSION]

        SESSION is a variable with a session; without it, it is the one that is open. Names that a
        cell defines stay on the workers for later cells. The result is a reference to the value of
        the last expression on each worker; there is none where that is None on all of them.
        """
        session = _session_of(line, shell.user_ns)
        return execute_cell(session, cell, _name_of_cell(shell))

    # Commands are issued in the cell, not where IPython calls the magic.
    pass_over(shell.run_cell_magic.__func__.__code__.co_filename)
    shell.register_magic_function(_silenced_by_semicolon(disco), "cell", "disco")


def execute_cell(session: Session, cell: str, name: str) -> DRef | None:
    """Executes a cell on every worker, in a namespace that each keeps for later cells.

    Args:
        session: The session.
        cell: The text below the line of the magic.
        name: What tracebacks call it.

    Returns:
        The value of its last expression; None where that is None on all workers.

    Raises:
        SyntaxError: It is no Python.
        NotAllowed: A worker's settings do not let sessions load what clients bring.
        RemoteError: What the cell raises on a worker.
        SessionError: The session is closed or lost.
    """
    text = _FIRST_LINE + cell
    # Here, so that no worker executes anything of it.
    compile(text, name, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    core = core_of(session)
    core.check_may_wait("open a session for %%disco by connect(), whose calls wait")
    file = file_of_text(text)
    digest = bring(core, file)
    with _Output(core) as output:
        result = core.call_builtin("runtime.disco._execute_cell", str(file), digest, name)
        output.expected = core.call_builtin("runtime.disco._printed_by_cell")
        is_none = core.call_builtin("runtime.disco._is_none", result).get_all()
    return None if all(is_none) else result


class _Output:
    """Waits at the end of a block for what the workers have printed in it.

    Lines come another way than answers, and a notebook shows them below the cell that runs.

    Args:
        core: The session's.

    Attributes:
        expected: How many lines each worker has printed.
    """

    def __init__(self, core: SessionCore) -> None:
        self.expected: DRef | None = None
        self._printed = AwaitedLines(core)

    def __enter__(self) -> Self:
        self._printed.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # What else ends the block, such as Ctrl-C, may leave workers at work.
        is_over = error is None or isinstance(error, RemoteError)
        if self._printed.shown and is_over and self.expected is not None:
            with contextlib.suppress(DiscoError):
                self._printed.wait(dict(enumerate(self.expected.get_all())), _OUTPUT_S)
        self._printed.__exit__(kind, error, trace)


def _name_of_cell(shell: Any) -> str:
    """What IPython calls the cell that it executes: ``Cell In[3]``."""
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  (public, in spite of its name)
    while frame is not None:
        if found := shell.compile.format_code_name(frame.f_code.co_filename):
            return " ".join(found)
        frame = frame.f_back
    return "cell of %%disco"


def _session_of(line: str, variables: Mapping[str, Any]) -> Session:
    """The session that the line of the magic names, or the one that is open.

    Raises:
        ConfigError: The variable has none; or without it, there is none, or several are open.
    """
    name, opened = line.strip(), open_sessions()
    if not name and len(opened) == 1:
        return opened[0]
    found = variables.get(name)
    if isinstance(found, Session):
        return found
    known = ", ".join(
        each
        for each, value in variables.items()
        if any(value is one for one in opened) and not each.startswith("_")
    )
    if name:
        is_now = f"which is {described(found)}" if name in variables else "which is not defined"
        some = f"; there is {known}" if known else ""
        msg = f"expected a variable with a session after %%disco, got {name!r}, {is_now}{some}"
    elif opened:
        some = f" ({known})" if known else ""
        msg = f"{len(opened)} sessions are open; write the variable of one after %%disco{some}"
    else:
        msg = "%%disco needs an open session, as of session = disco_client.ProcessSession(4)"
    raise ConfigError(msg)


def _silenced_by_semicolon(magic: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a semicolon at the end hide the result, in versions of IPython that can."""
    mark = getattr(import_module("IPython.core.magic"), "output_can_be_silenced", None)
    return magic if mark is None else mark(magic)
