"""The clock of every wait, limit and record: one that a program neither freezes nor moves.

Libraries for tests, such as freezegun, replace `time.monotonic` and every name that was
imported from there, in all modules of the process and for a part of its threads. A session
lives in that process, and its deadlines must not: a frozen clock would never end them, one
that jumps would end them all.
"""

from __future__ import annotations

import sys
import time
from functools import partial

__all__ = ["LONGEST_S", "monotonic", "monotonic_ns"]

LONGEST_S = 86_400.0
"""No wait is longer without another look at the clock: the system's calls refuse numbers of
seconds that a program may give as a timeout, poll those of 25 days and more."""

if sys.platform == "win32":
    monotonic, monotonic_ns = partial(time.monotonic), partial(time.monotonic_ns)
else:
    # That of `time.monotonic`; the first is macOS's.
    _CLOCK: int = getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC)
    monotonic = partial(time.clock_gettime, _CLOCK)
    monotonic_ns = partial(time.clock_gettime_ns, _CLOCK)
