"""Freezes and moves a program's clocks in the way of freezegun."""

from __future__ import annotations

import contextlib
import sys
import time

_NAMES = ("time", "monotonic", "perf_counter")
_REAL = ("threading", "queue", "multiprocessing")
"""freezegun leaves these modules alone, and what they call within a few frames."""

_FRAMES = 5


class Clock:
    """The time that a program sees.

    Attributes:
        now: Seconds since the epoch.
    """

    def __init__(self, now: float) -> None:
        self.now = now


def _called_by_real() -> bool:
    frame = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if str(frame.f_globals.get("__name__")).startswith(_REAL):
            return True
        frame = frame.f_back
    return False


def _fake(clock: Clock, real, unit: int):
    def read():
        if _called_by_real():
            return real()
        return clock.now if unit == 1 else int(clock.now * unit)

    return read


@contextlib.contextmanager
def frozen_time(now: float):
    """Replaces the functions of `time`, and names imported from there in all modules."""
    clock = Clock(now)
    fakes = {}
    for name in _NAMES:
        for suffix, unit in (("", 1), ("_ns", 10**9)):
            real = getattr(time, name + suffix)
            fakes[id(real)] = real, _fake(clock, real, unit)
    changed = []
    for module in tuple(sys.modules.values()):
        if module.__name__.startswith((*_REAL, __name__)):
            continue
        for name, value in tuple(vars(module).items()):
            if id(value) in fakes:
                changed.append((module, name, value))
                setattr(module, name, fakes[id(value)][1])
    try:
        yield clock
    finally:
        for module, name, value in changed:
            setattr(module, name, value)
