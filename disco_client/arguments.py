"""Checks of arguments that every way to open a session makes first."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Generator, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol, SupportsIndex, cast

from disco_client.errors import ConfigError, DtypeError
from disco_client.text import hidden_in, many
from disco_client.wire.limits import MAX_WORKERS

__all__ = [
    "CCL_NAMES",
    "RECOVER_LIMIT_BYTES",
    "WorkerGrid",
    "check_chosen",
    "check_name",
    "check_recover",
    "check_session",
    "check_timeout",
    "check_worker",
    "dims_of",
    "importing",
]

CCL_NAMES = ("nccl", "rccl", "mpi", "local")
"""The collective libraries that a session can request."""

RECOVER_LIMIT_BYTES = 1 << 30
"""How many bytes of commands and arrays a session keeps by default, for replay on other workers."""


_imports = threading.local()


@contextlib.contextmanager
def importing(file: str) -> Generator[None]:
    """Refuses to open sessions in this thread, because a worker imports a program in it.

    Args:
        file: The program's.
    """
    _imports.file = file
    try:
        yield
    finally:
        _imports.file = ""


def check_session(
    num_workers: object,
    num_groups: object,
    ccl: str | None,
    timeout: float,
    most: int = MAX_WORKERS,
) -> None:
    """Refuses parameters that no session can have.

    Args:
        num_workers: How many workers are asked for.
        num_groups: How many groups they form.
        ccl: The collective library.
        timeout: For how many seconds to wait for it.
        most: How many workers there may be.

    Raises:
        ConfigError: An argument is of the wrong type, out of range, or does not
            fit another one; or a worker imports the program that opens the session.
    """
    imported = getattr(_imports, "file", "")
    if imported:
        msg = (
            f"{imported!r} opens a session while a worker imports it (session.load_source); put"
            " what the program itself does below 'if __name__ == \"__main__\":'"
        )
        raise ConfigError(msg)
    workers = _integer("num_workers", num_workers)
    groups = _integer("num_groups", num_groups)
    if not 1 <= workers <= most:
        msg = f"expected num_workers from 1 to {most}, got {workers}"
        raise ConfigError(msg)
    if groups < 1 or workers % groups:
        msg = f"expected num_groups to divide the {many(workers, 'worker')} evenly, got {groups}"
        raise ConfigError(msg)
    if ccl is not None and ccl not in CCL_NAMES:
        msg = f"expected ccl to be one of {', '.join(CCL_NAMES)}, got {ccl!r}"
        raise ConfigError(msg)
    check_timeout(timeout)


def workers_asked(num_workers: object) -> tuple[int, int]:
    """How many workers are asked for at least and at most: a number, or a pair of them.

    Raises:
        ConfigError: It is neither, or the second one is smaller.
    """
    if not isinstance(num_workers, tuple):
        least = _integer("num_workers", num_workers)
        return least, least
    given = cast("tuple[object, ...]", num_workers)
    if len(given) == 2:  # noqa: PLR2004  (a pair)
        least, most = (_integer("num_workers", each) for each in given)
        if least <= most:
            return least, most
    msg = f"expected num_workers as a number or as (at least, at most), got {num_workers!r}"
    raise ConfigError(msg)


def check_timeout(timeout: float) -> None:
    """Refuses a time in which no session can be reached.

    Raises:
        ConfigError: It is not above 0 seconds.
    """
    if not timeout > 0:
        msg = f"expected a timeout above 0 seconds, got {timeout!r}"
        raise ConfigError(msg)


def check_name(name: str, what: str = "a session name") -> None:
    """Refuses a name with invisible characters.

    Raises:
        ConfigError: It has a character that is invisible or moves others.
    """
    problem = hidden_in(name, what)
    if problem is not None:
        raise ConfigError(problem)


def check_recover(recover: object, limit: object) -> None:
    """Refuses unknown ways to recover and invalid limits.

    Raises:
        ConfigError: It is neither None nor "replay" nor a function, or the limit is no number
            of bytes.
    """
    if iscoroutinefunction(recover):
        msg = (
            f"expected recover to be a function that has made the state when it returns, got"
            f" {recover!r}, which is to be awaited"
        )
        raise ConfigError(msg)
    if recover is not None and recover != "replay" and not callable(recover):
        msg = f"expected recover to be None, 'replay' or a function, got {recover!r}"
        raise ConfigError(msg)
    if _integer("recover_limit_bytes", limit) < 1:
        msg = f"expected recover_limit_bytes above 0, got {limit!r}"
        raise ConfigError(msg)


def check_worker(worker: object, num_workers: int) -> int:
    """Refuses anything but a worker of the session.

    Raises:
        TypeError: It is no integer.
        ConfigError: There is no such worker.
    """
    if type(worker) is int and 0 <= worker < num_workers:  # found out faster than what follows
        return worker
    if not isinstance(worker, SupportsIndex) or isinstance(worker, bool):
        msg = f"expected an integer worker_id, got {worker!r} of type {type(worker).__name__}"
        raise TypeError(msg)
    number = operator.index(worker)
    if not 0 <= number < num_workers:
        msg = f"expected a worker_id from 0 to {num_workers - 1}, got {number}"
        raise ConfigError(msg)
    return number


class WorkerGrid(Protocol):
    """A mesh of workers.

    Attributes:
        device_ids: Its workers.
    """

    @property
    def device_ids(self) -> Sequence[int]:
        """Its workers."""
        ...


def check_chosen(
    workers: Iterable[int] | WorkerGrid | None, worker: int | None, num_workers: int
) -> tuple[int, ...]:
    """Refuses anything but one or more workers of the session, each given once.

    Args:
        workers: Their numbers, or a mesh of them.
        worker: The number of one, instead.
        num_workers: How many the session has.

    Returns:
        Their numbers in ascending order.

    Raises:
        TypeError: Neither or both are given, or something is no integer.
        ConfigError: There is no such worker, one is given twice, or there are none.
    """
    if (workers is None) == (worker is None):
        msg = "expected workers=[0, 2], a mesh, or worker=2, and one of these alone"
        raise TypeError(msg)
    given = (worker,) if workers is None else getattr(workers, "device_ids", workers)
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        msg = f"expected workers as a list of numbers or a mesh, got {workers!r}; or worker=2"
        raise TypeError(msg)
    found = [check_worker(each, num_workers) for each in cast("Iterable[object]", given)]
    if not found or len(set(found)) != len(found):
        msg = f"expected one or more workers, each of them once, got {found}"
        raise ConfigError(msg)
    return tuple(sorted(found))


def dims_of(shape: object) -> Iterable[Any]:
    """The extents in a shape.

    Raises:
        DtypeError: It is no shape.
    """
    if isinstance(shape, Iterable) and not isinstance(shape, (str, bytes)):
        return shape  # pyright: ignore[reportUnknownVariableType]
    msg = f"expected a shape such as (2, 3), got {shape!r}"
    raise DtypeError(msg)


def _integer(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"expected an integer {what}, got {value!r} of type {type(value).__name__}"
        raise ConfigError(msg)
    return value
