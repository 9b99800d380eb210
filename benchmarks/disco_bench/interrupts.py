"""How soon a session goes on that is interrupted, beside Ctrl-C in a program of its own."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from typing import TYPE_CHECKING

import disco_client
from disco_bench.sampling import alternate
from disco_bench.table import Spec

if TYPE_CHECKING:
    from disco_bench.bench import Bench

__all__ = ["INTERRUPTS", "measure_interrupts"]

_CTRL_C = "Ctrl-C in one process"
_WAITING = 2000
_RUNNING_S = 0.05
"""How long it has run when it is interrupted."""

INTERRUPTS = (
    Spec(
        "interrupts.running",
        "a function in Python is interrupted, until the next result",
        "s",
        _CTRL_C,
    ),
    Spec(
        "interrupts.waiting",
        f"the same while {_WAITING:,} commands wait behind it",
        "s",
        _CTRL_C,
    ),
)


def measure_interrupts(bench: Bench) -> None:
    """Interrupts a function that never ends, with and without commands behind it."""
    rounds = bench.pick(20, 2)
    with bench.session() as session:
        endless = session.get_global_func("bench.endless")
        noop = session.get_global_func("bench.noop")

        def interrupted(waiting: int) -> float:
            endless()
            for _ in range(waiting):
                noop(1, 2, 3)
            time.sleep(_RUNNING_S)
            started = time.perf_counter()
            late = session.interrupt()
            with contextlib.suppress(disco_client.Interrupted):
                session.sync_all()
            assert not late
            noop(1, 2, 3).get()
            return time.perf_counter() - started

        for name, waiting in (("running", 0), ("waiting", bench.pick(_WAITING, 50))):
            pair = alternate(lambda count=waiting: interrupted(count), _ctrl_c, rounds)
            bench.record(f"interrupts.{name}", pair.measured())


def _ctrl_c() -> float:
    """How long this thread, the main one, counts on after Ctrl-C, in seconds."""
    main, sent = threading.get_ident(), 0.0

    def press() -> None:
        nonlocal sent
        time.sleep(_RUNNING_S)
        sent = time.perf_counter()
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=press).start()
    number = 0
    try:
        while True:
            number += 1
    except KeyboardInterrupt:
        return time.perf_counter() - sent
