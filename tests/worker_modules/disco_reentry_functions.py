"""Functions that keep, on each worker, the numbers of the calls that it has executed.

Workers may be threads of one process, so what is kept is kept by worker.
"""

from __future__ import annotations

from collections import defaultdict

import disco_server

_noted = defaultdict(list)


def _log(name):
    return _noted[disco_server.current_worker().worker_id, name]


@disco_server.register_func("reentry.note")
def note(log, number):
    """Appends a number to a log of this worker, and returns it."""
    _log(log).append(number)
    return number


@disco_server.register_func("reentry.noted")
def noted(log):
    """All numbers of a log, in the order in which they came."""
    return list(_log(log))


@disco_server.register_func("reentry.fail")
def fail():
    """Fails."""
    raise ValueError("told to fail")
