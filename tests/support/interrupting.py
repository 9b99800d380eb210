"""What tests of interrupts share."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from disco_client import Interrupted
from disco_client.core import core_of

if TYPE_CHECKING:
    from disco_client import Session

__all__ = [
    "GRACE_S",
    "await_start",
    "missing_everywhere",
    "pressed",
    "started",
    "waiting_collectives",
]

GRACE_S = 60.0
"""How long workers may take to react on a machine that does other things."""

_LIMIT_S = 30.0


def await_start(session: Session, name: str, count: int = 0) -> None:
    """Returns when workers execute the command that calls a function.

    They may not be in the function yet: an interrupt may still come before it. Functions that do
    something else when they are interrupted tell so by themselves, by files.

    Args:
        session: The session.
        name: The function, under the name by which it was looked up.
        count: How many workers; 0 for all.
    """
    look, deadline = core_of(session).transport.inspect, time.monotonic() + _LIMIT_S
    late = False
    while not late:
        late = time.monotonic() > deadline  # before the look: this process may stand still, too
        ranks = look(stacks=False, flights=False).ranks
        names = [rank.current.name for rank in ranks if rank.current is not None]
        if names.count(name) >= (count or session.num_workers):
            return
        time.sleep(0.01)  # between two looks, of which the deadline is above
    raise AssertionError(f"no worker has begun {name}")


def started(session, tools, name, *args, count=0):
    """Calls a function, and returns when all workers are in it, or so many."""
    ref = tools.call(name, *args)
    await_start(session, name, count)
    return ref


def missing_everywhere(ref, tools):
    """Whether a result is missing on every worker, because of an interrupt."""
    for worker in tools.workers:
        with pytest.raises(Interrupted):
            ref.debug_get_from_remote(worker)
    return True


def waiting_collectives(session):
    """Functions, with arguments, in which workers wait for others in a collective for ever."""
    late, nobody = ("interrupt.meet_late", (1, 600.0)), ("interrupt.waits_for_nobody", ())
    if session.num_workers == 2:  # two that send to each other are told so
        return late, nobody
    return late, nobody, ("interrupt.ring", ())


def pressed(wait):
    """Does a call that waits, and presses Ctrl-C meanwhile; the notes of what that raised.

    Args:
        wait: Does not return before.
    """
    waiting, over = False, threading.Event()

    def press():
        # Again and again, as Python drops what comes in a finalizer.
        while not over.wait(0.05):
            os.kill(os.getpid(), signal.SIGINT)

    def handle(_number, _frame):
        if waiting:
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, handle)
    pressing = threading.Thread(target=press)
    pressing.start()
    try:
        while True:
            try:
                try:
                    waiting = True
                    wait()
                finally:
                    waiting = False
            except KeyboardInterrupt as error:
                notes = "\n".join(getattr(error, "__notes__", ()))
                if notes:  # else it came before the wait began
                    return notes
    finally:
        over.set()
        pressing.join()
        signal.signal(signal.SIGINT, former)
