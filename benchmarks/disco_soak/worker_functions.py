"""What workers count for the soak: each of them imports this."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

import disco_server

if TYPE_CHECKING:
    from disco_server.rank.worker import Worker

__all__ = ["note", "noted"]

_LOOK_S = 0.001


class _Notes(NamedTuple):
    """What came of a sequence; replaced at once, as an interrupt comes between any two bytecodes.

    Attributes:
        last: Its last number.
        twice: How many numbers were repeated.
        gaps: The first and the last of each run of numbers that were left out.
    """

    last: int = 0
    twice: int = 0
    gaps: tuple[int, ...] = ()


_notes: WeakKeyDictionary[Worker, dict[str, _Notes]] = WeakKeyDictionary()


def _logs() -> dict[str, _Notes]:
    return _notes.setdefault(disco_server.current_worker(), {})


@disco_server.register_func("soak.note")
def note(number: int, log: str = "") -> int:
    """Notes a number of a sequence that goes 1, 2, 3 and so on, and returns it."""
    logs = _logs()
    last, twice, gaps = logs.get(log, _Notes())
    if number <= last:
        logs[log] = _Notes(last, twice + 1, gaps)
    elif number == last + 1:
        logs[log] = _Notes(number, twice, gaps)
    else:
        logs[log] = _Notes(number, twice, (*gaps, last + 1, number - 1))
    return number


@disco_server.register_func("soak.noted")
def noted(log: str = "") -> list[int]:
    """The last number of a sequence, how many were repeated, and the runs that were left out."""
    last, twice, gaps = _logs().get(log, _Notes())
    return [last, twice, *gaps]


@disco_server.register_func("soak.note_within")
def note_within(number: int, log: str, seconds: float) -> int:
    """Notes a number in the middle of so many seconds."""
    _spin(seconds / 2)
    note(number, log)
    _spin(seconds / 2)
    return number


@disco_server.register_func("soak.note_late")
def note_late(number: int, log: str, worker: int, seconds: float) -> int:
    """Notes a number, on one worker after so many seconds."""
    _spin(seconds if disco_server.current_worker().worker_id == worker else 0)
    return note(number, log)


@disco_server.register_func("soak.sum_late")
def sum_late(number: int, worker: int, seconds: float) -> Any:
    """Sums a number over all workers, of which one comes late."""
    me = disco_server.current_worker()
    _spin(seconds if me.worker_id == worker else 0)
    return me.allreduce(np.full(2, number))


def _spin(seconds: float) -> None:
    """Runs Python for so long; workers that are threads take turns."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(_LOOK_S)


@disco_server.register_func("soak.held")
def held() -> Any:
    """The registers in which something is."""
    slots = disco_server.current_worker().registers.slots
    return np.array([number for number, each in enumerate(slots) if each is not None], np.int64)


@disco_server.register_func("soak.fail_on")
def fail_on(worker: int) -> None:
    """Fails on one worker."""
    if disco_server.current_worker().worker_id == worker:
        msg = "told to fail"
        raise ValueError(msg)


@disco_server.register_func("soak.print")
def print_lines(count: int) -> None:
    """Prints short lines."""
    for number in range(count):
        print(number)
