"""What Python prints of an error that ends a program: few frames of this library."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from disco_client.errors import DiscoError

__all__ = ["show_few_frames"]

_VARIABLE = "DISCO_TRACEBACK"
_HOME = Path(__file__).parents[1]
_OURS = tuple(f"{_HOME / package}{os.sep}" for package in ("disco_client", "disco_server"))


def show_few_frames() -> None:
    """Lets Python print the errors of this library without most of its frames.

    The error itself keeps all of them, and with ``DISCO_TRACEBACK=full`` they are printed. Calls
    cost what they did, as nothing is done before an error ends the program. Where something else
    prints such errors, that is left to it.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print


def _print(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if os.environ.get(_VARIABLE) == "full":
        sys.__excepthook__(kind, error, trace)
        return
    whole = [(each, each.__traceback__) for each in _chain(error) if isinstance(each, DiscoError)]
    try:
        for each, frames in whole:
            each.__traceback__ = _few(frames)
        sys.__excepthook__(kind, error, error.__traceback__)
    finally:
        for each, frames in whole:
            each.__traceback__ = frames


def _chain(error: BaseException) -> list[BaseException]:
    """An error with those that led to it, and those that it is a group of."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is known for known in found):
            found.append(each)
            waiting += (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
    return found


def _few(trace: TracebackType | None) -> TracebackType | None:
    """A traceback with at most two frames of this library: its first and last call by others."""
    frames = list(_walk(trace))
    ours = [each.tb_frame.f_code.co_filename.startswith(_OURS) for each in frames]
    entries = [at for at, inside in enumerate(ours) if inside and not (at and ours[at - 1])]
    few: TracebackType | None = None
    for at, each in reversed(list(enumerate(frames))):
        if not ours[at] or at in (entries[0], entries[-1]):
            few = TracebackType(few, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return few


def _walk(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
