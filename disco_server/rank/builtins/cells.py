"""The functions behind ``%%disco``, which executes a cell of a notebook on every worker."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from disco_server.modules import loading
from disco_server.rank.builtins.files import content_of
from disco_server.rank.errors import ArgumentRefused, hidden_in_tracebacks
from disco_server.rank.functions import register_func
from disco_server.rank.worker import Worker, current_worker

__all__: list[str] = []


@dataclass(slots=True)
class _Space:
    """What cells leave on a worker.

    Attributes:
        names: Their globals.
        lines: How many lines the last one has printed.
    """

    # Classes look their module up, and every process has this one.
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    lines: int = 0


_spaces: WeakKeyDictionary[Worker, _Space] = WeakKeyDictionary()


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
    space = _spaces.setdefault(worker, _Space())
    with _counting(space, worker):
        exec(statements, space.names)  # noqa: S102  (allowed by the node)
        return None if value is None else eval(value, space.names)  # noqa: S307  (the same)


@register_func("runtime.disco._printed_by_cell")
def printed_by_cell() -> int:
    """How many lines the last cell has printed that may arrive later than its result."""
    space = _spaces.get(current_worker())
    return space.lines if space else 0


@register_func("runtime.disco._is_none")
def is_none(value: Any) -> bool:
    """Whether a value, which may be too large to be fetched, is None."""
    return value is None


@contextlib.contextmanager
def _counting(space: _Space, worker: Worker) -> Generator[None]:
    """Counts the lines that are printed meanwhile."""
    space.lines = 0
    if worker.loading.in_program:  # a thread hands its lines over before its result
        yield
        return
    out: Any = _CountedStream(sys.stdout, space)
    err: Any = _CountedStream(sys.stderr, space)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield


class _CountedStream:
    """A standard stream that counts lines."""

    def __init__(self, inner: Any, space: _Space) -> None:
        self._inner, self._space = inner, space

    def write(self, text: str) -> int:
        """Writes a text."""
        self._space.lines += text.count("\n")
        written: int = self._inner.write(text)
        return written

    def writelines(self, texts: Iterable[str]) -> None:
        """Writes several texts."""
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
