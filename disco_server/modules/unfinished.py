"""Functions that return before any of their code has run: coroutines and generators.

A call of one makes an object that somebody has to await or to go through. Workers await coroutines
(`disco_server.rank.coroutines`), where a command has called the function. No worker goes through a
generator, so such a call would succeed, and nothing would have happened. They are refused as early
as that can be seen: where they are registered or looked up, else where a call has returned one.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from functools import partial
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, cast

from disco_client.errors import ConfigError

__all__ = ["UNFINISHED", "refuse_unfinished", "refuse_unrunnable"]


UNFINISHED: Final[frozenset[type]] = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))
"""The types of what such a function returns; none of them can be derived from."""

_KINDS: Final = (
    (inspect.isasyncgenfunction, "an asynchronous generator (async def with yield)"),
    (inspect.isgeneratorfunction, "a generator (def with yield)"),
)
_RESULTS: Final[dict[type, str]] = {
    CoroutineType: "a coroutine, which nobody awaits here; await it in an async def function that"
    " the session calls",
    GeneratorType: "a generator, which nobody goes through; return a list of what it yields",
    AsyncGeneratorType: "an asynchronous generator, which nobody goes through; do that inside the"
    " function, and return a list of what it yields",
}


def refuse_unrunnable(func: object, name: str) -> None:
    """Refuses a function that would return before any of its code has run.

    Args:
        func: A function, or anything else that can be called.
        name: Its name in the message.

    Raises:
        ConfigError: It is one; the message says what to do.
    """
    called = _called_by(func)
    what = next((text for holds, text in _KINDS if holds(called)), "")
    if what:
        msg = (
            f"{name!r} is {what}: a call on a worker would return before any of it has run;"
            " register a plain function that goes through it and returns what it yields, as with"
            " list(...)"
        )
        raise ConfigError(msg)


def _called_by(func: Any) -> Any:
    """The function that runs when something is called."""
    called = func
    while isinstance(called, partial):
        called = cast("Any", called).func
    while isinstance(called, (staticmethod, classmethod)):
        called = cast("Any", called).__func__
    if inspect.isroutine(called) or isinstance(called, type):
        return called
    kind = cast("Any", type(called))
    return inspect.getattr_static(kind, "__call__", called)


def refuse_unfinished(result: Any) -> None:
    """Refuses a result that has yet to be computed, and closes it.

    Raises:
        ConfigError: It is one; the message says what to do.
    """
    kind = cast("Any", type(result))
    if kind not in UNFINISHED:
        return
    if kind is not AsyncGeneratorType:  # which ends without a warning
        with suppress(Exception):  # of its own code, if it was begun
            result.close()
    msg = f"the call returned {_RESULTS[kind]} ({result.__qualname__})"
    raise ConfigError(msg)
