"""Functions that take long, each in its own way, for tests that interrupt them.

Workers may be threads of one process, so what is kept is kept by worker.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path

import numpy as np

import disco_server
from disco_server.rank.functions import writes_into

_executed = Counter()


def _me():
    return disco_server.current_worker()


def tell_begin(path):
    """Makes a file, the path with the number of the worker."""
    if path is not None:
        Path(f"{path}.{_me().worker_id}").touch()


@disco_server.register_func("interrupt.spin")
def spin(seconds, *_others):
    """Runs Python for so long; returns the number of the worker."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)  # so that workers which are threads take turns
    return _me().worker_id


@disco_server.register_func("interrupt.spin_on")
def spin_on(chosen, seconds):
    """Runs Python for so long on one worker."""
    return spin(seconds if _me().worker_id == chosen else 0)


@disco_server.register_func("interrupt.slow_again")
def slow_again(path, seconds):
    """Takes no time on the first workers that call it, and so long on those that come later."""
    called = Path(f"{path}.{_me().worker_id}")
    spin(seconds if called.exists() else 0)
    called.touch()
    return _me().worker_id


@disco_server.register_func("interrupt.add")
def add(array, number, seconds):
    """Takes its time to add a number."""
    spin(seconds)
    return array + number


@disco_server.register_func("interrupt.scale_into")
@writes_into(1)
def scale_into(source, out, seconds):
    """Overwrites one array with twice another one, in two steps."""
    out[: len(out) // 2] = 2 * source[: len(out) // 2]
    spin(seconds)
    out[...] = 2 * source


@disco_server.register_func("interrupt.count")
def count(name):
    """Counts this call under a name."""
    _executed[_me().worker_id, name] += 1


@disco_server.register_func("interrupt.counted")
def counted(name):
    """How often :func:`count` was called here with a name."""
    return _executed[_me().worker_id, name]


@disco_server.register_func("interrupt.outside")
def outside(rounds):
    """Stays in a library for so many rounds of a hash, which no signal ends."""
    return hashlib.pbkdf2_hmac("sha256", b"password", b"salt", rounds).hex()


@disco_server.register_func("interrupt.catches")
def catches(seconds, path=None):
    """Catches whatever is raised, once, and returns its name; tells by a file that it has begun."""
    try:
        tell_begin(path)
        spin(seconds)
    except BaseException as error:  # noqa: BLE001  (that is what it is for)
        return type(error).__name__
    return "nothing"


@disco_server.register_func("interrupt.cleans_up")
def cleans_up(seconds, path=None):
    """Notes in a block that cleans up that it has ended; tells by a file that it has begun."""
    try:
        tell_begin(path)
        spin(seconds)
    finally:
        count("cleaned up")


@disco_server.register_func("interrupt.waits_for_nobody")
def waits_for_nobody():
    """Enters a barrier on worker 0 alone; the others go past it."""
    if _me().worker_id == 0:
        _me().world.barrier()


@disco_server.register_func("interrupt.ring")
def ring():
    """Sends around a ring in which nobody receives."""
    worker = _me()
    worker.world.send(np.ones(3), (worker.worker_id + 1) % worker.num_workers)


@disco_server.register_func("interrupt.meet_late")
def meet_late(chosen, seconds):
    """Sums ones of all workers, one of which comes late."""
    spin_on(chosen, seconds)
    return _me().allreduce(np.ones(2))


@disco_server.register_class("interrupt.Order")
class Order:
    """An object with a method of a name that references have too."""

    def cancel(self, why):
        """Says why."""
        return f"cancelled: {why}"
