"""What a rank refuses by itself, and how any exception becomes a failure to report."""

from __future__ import annotations

import traceback
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar

from disco_client.errors import ConfigError, EncodingError, RemoteFailure, describe_exit
from disco_client.wire.codec import FailureKind, type_name
from disco_client.wire.reports import what_is_done
from disco_client.wire.values import Opaque
from disco_server.collectives.types import (
    AbortedError,
    CollectiveError,
    LeftOutError,
    MismatchError,
)
from disco_server.devices.base import DeviceUnavailable
from disco_server.modules.base import FileRefused, LoadNotAllowed
from disco_server.observe.memory_limit import rank_limit
from disco_server.observe.rank_memory import read_record
from disco_server.rank.coroutines import OWN_CODE
from disco_server.rank.signals import CALL_ENDS
from disco_server.rank.time_limits import TimeLimitPassed
from disco_server.storage.files import FileError, FileNotAllowed

if TYPE_CHECKING:
    from types import CodeType, TracebackType

    from disco_server.observe.flight import FlightRecorder

__all__ = [
    "ArgumentRefused",
    "ContentLost",
    "FunctionMissing",
    "ModuleNotAllowed",
    "brief",
    "describe_end",
    "describe_failure",
    "hidden_in_tracebacks",
    "opaque_of",
    "repr_of",
    "sendable",
]


_F = TypeVar("_F", bound=FunctionType)

MAX_MESSAGE = 4096
MAX_TRACEBACK = 16 * 1024
_MAX_REPR = 200
_BRIEF = 500
_MAX_STACKS = 256


class ArgumentRefused(ValueError):
    """An argument's type, shape, dtype or rank does not fit."""


class FunctionMissing(LookupError):
    """There is no function or module of that name here.

    Args:
        message: What is said of it.
        name: The name, where a function or a class would be registered by it.
    """

    def __init__(self, message: str, name: str = "") -> None:
        super().__init__(message)
        self.name = name


class ModuleNotAllowed(PermissionError):
    """The allow-list does not cover it."""


class ContentLost(Exception):
    """A command reads a register whose content was on workers before these."""


_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (FunctionMissing, FailureKind.NOT_FOUND),
    (ModuleNotAllowed, FailureKind.NOT_ALLOWED),
    (FileNotAllowed, FailureKind.NOT_ALLOWED),
    (LoadNotAllowed, FailureKind.NOT_ALLOWED),
    (FileRefused, FailureKind.FILE),
    (ArgumentRefused, FailureKind.BAD_ARGUMENT),
    (EncodingError, FailureKind.BAD_ARGUMENT),
    (ConfigError, FailureKind.BAD_ARGUMENT),
    (DeviceUnavailable, FailureKind.BAD_ARGUMENT),
    (MismatchError, FailureKind.MISMATCH),
    (LeftOutError, FailureKind.LEFT_OUT),
    (AbortedError, FailureKind.ABORTED),
    (CollectiveError, FailureKind.CCL),
    (FileError, FailureKind.FILE),
    (ContentLost, FailureKind.STALE),
    (TimeLimitPassed, FailureKind.TIME_LIMIT),
)


def describe_failure(
    error: BaseException, *, worker: int, node: str, seq: int, function: str
) -> tuple[RemoteFailure, FailureKind]:
    """Makes a report of an exception, cut to a size that can be sent.

    What a rank refused by itself is reported by its message; of everything else the
    type and the traceback are included, without the frames of the executor.
    """
    kind = next((k for kind, k in _KINDS if isinstance(error, kind)), FailureKind.EXCEPTION)
    own = kind is not FailureKind.EXCEPTION
    where = not own or kind is FailureKind.TIME_LIMIT
    failure = RemoteFailure(
        worker=worker,
        seq=seq,
        message=_cut(_text_of(error), MAX_MESSAGE),
        node=node,
        function=function,
        exception="" if own else _qualified(type(error)),
        traceback=_cut(_traceback_of(error), MAX_TRACEBACK) if where else "",
        missing=_missing_of(error),
    )
    return failure, kind


def _missing_of(error: BaseException) -> str:
    if isinstance(error, FunctionMissing):
        return error.name
    return error.missing if isinstance(error, FileRefused) else ""


def describe_end(error: BaseException, flight: FlightRecorder) -> tuple[int, str]:
    """Describes how a rank ends after an exception that is no failure of a command.

    Args:
        error: What was raised: SystemExit, KeyboardInterrupt, or the like.
        flight: Where the rank recorded what it ran.

    Returns:
        The exit status, and the description of the end in errors.
    """
    kind, text = _qualified(type(error)), _cut(_text_of(error), _MAX_REPR)
    what = f"{kind}: {text}" if text else kind
    found = read_record(*flight.copy()).current
    where = ""
    if found is not None:
        where = f" in {what_is_done(found.action, found.name)} (command #{found.seq})"
    if not isinstance(error, SystemExit):
        return 1, f"raised {what}{where}"
    code = error.code if isinstance(error.code, int) else int(error.code is not None)
    code &= 0xFF  # as parents see it
    return code, f"{describe_exit(code)}: {what} was raised{where}"


def _qualified(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _traceback_of(error: BaseException) -> str:
    try:
        return _format(error, error.__traceback__)
    except CALL_ENDS:
        raise
    except BaseException as another:  # noqa: BLE001  (an exception's own code may raise)
        return f"its traceback raised {type(another).__name__}"


_hidden = {*OWN_CODE}
"""Code that calls the program's own."""


def hidden_in_tracebacks(func: _F) -> _F:
    """Leaves a function of ours, which calls the program's, out of tracebacks; a decorator."""
    _hidden.add(func.__code__)
    return func


def _format(error: BaseException, trace: TracebackType | None) -> str:
    # The first frame is the executor's own, and so may those below it be.
    below = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    while below is not None and below.tb_next and below.tb_frame.f_code in _hidden:
        below = below.tb_next
    chained = error.__cause__ is not None or error.__context__ is not None
    if below is None or chained or issubclass(type(error), BaseExceptionGroup):
        return "".join(traceback.format_exception(type(error), error, below))
    return _stack(below) + "".join(traceback.format_exception_only(error))


_stacks: dict[tuple[int, ...], tuple[list[CodeType], str]] = {}
"""What :func:`_stack` said, by the codes' ids, which hold while these are kept, and places."""


def _stack(trace: TracebackType) -> str:
    """The lines of a traceback before its exception.

    Finding them in the source is most of the work of a report, and the bad requests of a service
    come from the same few places.
    """
    codes: list[CodeType] = []
    places: list[int] = []
    link: TracebackType | None = trace
    while link is not None:
        codes.append(link.tb_frame.f_code)
        places.append(link.tb_lasti)
        link = link.tb_next
    key = (*map(id, codes), *places)
    known = _stacks.get(key)
    if known is not None:
        return known[1]
    text = "".join(("Traceback (most recent call last):\n", *traceback.format_tb(trace)))
    if len(_stacks) >= _MAX_STACKS:  # ranks that are threads share it, so it may empty meanwhile
        _stacks.clear()
    _stacks[key] = codes, text
    return text


def _text_of(error: BaseException) -> str:
    try:
        # An allocation that failed says how much was requested, and not why it failed.
        return str(error) + (rank_limit() if isinstance(error, MemoryError) else "")
    except CALL_ENDS:
        raise
    except BaseException as another:  # noqa: BLE001  (an exception's own code may raise)
        return f"its text raised {type(another).__name__}"


def repr_of(value: object) -> str:
    """The repr of an object that is not sent; a repr is code that may raise."""
    try:
        return sendable(repr(value)[:_MAX_REPR])
    except CALL_ENDS:
        raise
    except BaseException as error:  # noqa: BLE001  (whatever the object's author did)
        return f"its repr raised {type(error).__name__}"


def opaque_of(value: object, error: EncodingError) -> Opaque:
    """What is sent in place of an object that cannot travel.

    Args:
        value: The object.
        error: Why it cannot.

    Raises:
        EncodingError: A value inside it cannot, so that a description would be taken for the rest.
    """
    if error.path:
        raise error
    return Opaque(type_name(value), repr_of(value))


def sendable(text: str) -> str:
    """Escapes what UTF-8 cannot encode, as in the names of some files."""
    return text.encode("utf-8", "backslashreplace").decode()


def brief(text: str) -> str:
    """The beginning of an error's text, which fits into a message of every transport."""
    return sendable(text[:_BRIEF])


def _cut(text: str, limit: int) -> str:
    text = sendable(text)
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - limit} characters left out ...\n{text[-half:]}"
