"""What a rank process gives up before it runs anything for a client.

The daemon says it in one variable of the rank's environment, which the rank forgets. It
limits itself, rather than being limited between fork and exec: nothing of a client has
come by then, and a daemon with threads of gRPC cannot run Python code between the two.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import tempfile
from collections.abc import MutableMapping

from disco_server.config import WorkerConfig

__all__ = ["VARIABLE", "confine", "confinement_of", "enter_folder"]

VARIABLE = "DISCO_CONFINEMENT"
_PR_SET_NO_NEW_PRIVS = 38
_PRIVATE = 0o077


def confinement_of(config: WorkerConfig) -> dict[str, str]:
    """The variable for the ranks of a daemon."""
    words = [f"memory={config.max_memory}"] if config.max_memory else []
    if config.core_dumps == "off":
        words.append("core=0")
    if config.user is not None:
        words.append("privileges=0")
    return {VARIABLE: ",".join(words)}


def confine(environ: MutableMapping[str, str]) -> None:
    """Limits this process as its environment says, for good, and forgets that.

    Memory is limited by RLIMIT_DATA: what a process allocates for itself counts, what it
    shares with others (arrays on their way, MPI's memory) and what libraries of GPUs only
    reserve does not. What goes beyond is refused to whoever asks, who hears of it as of
    any allocation that fails.
    """
    said = environ.pop(VARIABLE, "")
    wanted = dict(word.split("=", 1) for word in said.split(",") if word)
    if "core" in wanted:
        _limit(resource.RLIMIT_CORE, 0)
    if "privileges" in wanted:
        os.umask(_PRIVATE)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if "memory" in wanted:
        _limit(resource.RLIMIT_DATA, int(wanted["memory"]))


def _limit(which: int, amount: int) -> None:
    _, most = resource.getrlimit(which)
    if most != resource.RLIM_INFINITY:
        amount = min(amount, most)
    resource.setrlimit(which, (amount, amount))


def enter_folder(path: str) -> None:
    """Makes a folder the place of this process and of its temporary files; empty for none."""
    if not path:
        return
    os.chdir(path)
    os.environ["TMPDIR"] = path
    with contextlib.suppress(AttributeError):
        tempfile.tempdir = None  # what it was found to be before
