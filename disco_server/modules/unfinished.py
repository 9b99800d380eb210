"""Results of which nothing has been computed yet: coroutines and generators.

A call of such a function makes an object that somebody has to await or to go through. Where a
command has called it, workers await a coroutine (`disco_server.rank.coroutines`), and keep a
generator for ``ref.stream()`` (`disco_server.rank.builtins.streams`). Where neither can be done,
such a call would succeed, and nothing would have happened. There it is refused.
"""

from __future__ import annotations

from contextlib import suppress
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final, cast

from disco_client.errors import ConfigError

__all__ = ["is_generator", "refuse_to_fetch", "refuse_unfinished"]


_RESULTS: Final[dict[type, str]] = {
    CoroutineType: "a coroutine, which nobody awaits here; await it in an async def function that"
    " the session calls",
    GeneratorType: "a generator, which nobody goes through; return a list of what it yields",
    AsyncGeneratorType: "an asynchronous generator, which nobody goes through; do that inside the"
    " function, and return a list of what it yields",
}


def refuse_unfinished(result: Any) -> None:
    """Refuses a result that has yet to be computed, and closes it.

    Raises:
        ConfigError: It is one; the message says what to do.
    """
    kind = cast("Any", type(result))
    if kind not in _RESULTS:
        return
    if kind is not AsyncGeneratorType:  # which ends without a warning
        with suppress(Exception):  # of its own code, if it was begun
            result.close()
    msg = f"the call returned {_RESULTS[kind]} ({result.__qualname__})"
    raise ConfigError(msg)


def is_generator(value: object) -> bool:
    """Whether it is what a generator function has returned, an asynchronous one too."""
    return type(value) is GeneratorType or type(value) is AsyncGeneratorType


def refuse_to_fetch(value: Any) -> None:
    """Refuses to send a generator to the program.

    Raises:
        ConfigError: It is one; the message says what to do.
    """
    if is_generator(value):
        what = "a generator" if type(value) is GeneratorType else "an asynchronous generator"
        msg = (
            f"expected a value that can be fetched, got {what} ({value.__qualname__});"
            " for item in ref.stream(): goes through what it yields"
        )
        raise ConfigError(msg)
