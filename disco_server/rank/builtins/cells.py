"""The functions behind ``%%disco``, which executes a cell of a notebook on every worker."""

from __future__ import annotations

from typing import Any, Final
from weakref import WeakKeyDictionary

from disco_server.modules import loading
from disco_server.rank.builtins.files import content_of
from disco_server.rank.counted_output import await_reader, counted_output, lines_printed
from disco_server.rank.errors import ArgumentRefused, hidden_in_tracebacks
from disco_server.rank.functions import register_func
from disco_server.rank.worker import Worker, current_worker

__all__: list[str] = []


_spaces: Final[WeakKeyDictionary[Worker, dict[str, Any]]] = WeakKeyDictionary()
"""The globals that cells leave on a worker."""


@register_func("runtime.disco._execute_cell")
@hidden_in_tracebacks
def execute_cell(path: str, digest: str, name: str) -> Any:
    """Executes a file of the client in the namespace that the worker has for such cells.

    Args:
        path: The file at the client.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the cell, for tracebacks.

    Returns:
        The value of its last expression, or None.

    Raises:
        LoadNotAllowed: The node does not let sessions load it.
        FileRefused: It has disappeared since the check.
        Exception: What the cell raises.
    """
    if not isinstance(name, str):
        msg = f"expected the name of a cell, got {name!r}"
        raise ArgumentRefused(msg)
    worker = current_worker()
    statements, value = loading.compile_cell(content_of(worker, path, digest), digest, name)
    # Classes look their module up, and every process has this one.
    names = _spaces.setdefault(worker, {"__name__": "__main__"})
    with counted_output(worker):
        exec(statements, names)  # noqa: S102  (allowed by the node)
        return None if value is None else eval(value, names)  # noqa: S307  (the same)


@register_func("runtime.disco._printed_by_cell")
def printed_by_cell() -> int:
    """How many lines the last cell or script has printed that may arrive later than its result."""
    return lines_printed(current_worker())


@register_func("runtime.disco._await_reader")
def await_output_reader(seconds: float) -> bool:
    """Waits until the node has read what this worker has printed, so that it precedes the reply."""
    return await_reader(current_worker(), seconds)


@register_func("runtime.disco._is_none")
def is_none(value: Any) -> bool:
    """Whether a value, which may be too large to be fetched, is None."""
    return value is None
