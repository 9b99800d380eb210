"""Ends a process with its parent, on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping

__all__ = ["PARENT_VARIABLE", "die_with", "die_with_parent_in"]


PARENT_VARIABLE = "DISCO_PARENT_PID"
"""Names, in a child's environment, the process whose end is its own."""


_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: signal.Signals) -> None:
    """Asks the kernel for a signal when the parent dies, however that happens.

    Only Linux offers this; elsewhere a closed pipe has to serve.

    Args:
        parent: The pid of the process that started this one.
        number: The signal to get.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before the call above
            os.kill(os.getpid(), number)


def die_with_parent_in(
    environ: MutableMapping[str, str], number: signal.Signals = signal.SIGTERM
) -> None:
    """Does so if the environment asks for it; removes the variable."""
    parent = environ.pop(PARENT_VARIABLE, None)
    if parent is not None and parent.isdigit():
        die_with(int(parent), number)
