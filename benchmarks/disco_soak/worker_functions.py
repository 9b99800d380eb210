"""What workers count for the soak: each of them imports this."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import disco_server

if TYPE_CHECKING:
    from disco_server.rank.worker import Worker

__all__ = ["note", "noted"]

_notes: WeakKeyDictionary[Worker, dict[str, list[int]]] = WeakKeyDictionary()


def _log(name: str) -> list[int]:
    logs = _notes.setdefault(disco_server.current_worker(), {})
    return logs.setdefault(name, [0, 0, 0])


@disco_server.register_func("soak.note")
def note(number: int, log: str = "") -> int:
    """Notes a number of a sequence that goes 1, 2, 3 and so on, and returns it."""
    notes = _log(log)
    last, lost, twice = notes
    if number <= last:
        twice += 1
    else:
        lost += number - last - 1
        last = number
    notes[:] = last, lost, twice
    return number


@disco_server.register_func("soak.noted")
def noted(log: str = "") -> list[int]:
    """The last number of a sequence, how many were left out, and how many were repeated."""
    return [*_log(log)]


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
