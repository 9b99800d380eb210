"""How much there may be of what both ends count; nothing is loaded for it."""

from __future__ import annotations

from typing import Final

__all__ = [
    "LEAST_WINDOW",
    "MAX_NAME",
    "MAX_WORKERS",
    "MOST_WINDOW",
    "MOST_WORKERS",
    "WINDOW_BYTES",
    "WINDOW_COMMANDS",
    "commands_in",
]

MAX_NAME: Final = 128
"""How many characters the name of a node or session may have."""

MAX_WORKERS: Final = 4096
"""How many workers a session may have, unless its controller's settings say otherwise."""

MOST_WORKERS: Final = 1 << 16
"""As many as those settings can allow."""

WINDOW_COMMANDS: Final = 64 * 1024
"""How many commands of a session may be under way before its slowest worker has executed them,
unless the settings of its daemons say otherwise: the window, which bounds the memory of every
relay. A client waits at it; a controller ends sessions that are at one and a half of it."""

WINDOW_BYTES: Final = 32 << 20
"""The same for the bytes of these commands. No setting changes it, since one command may have
as many."""

LEAST_WINDOW: Final = 4096
MOST_WINDOW: Final = 1 << 20
"""What the settings can make of the number of commands: less than two batches would let a client
wait for workers that say only every 1,024 commands how far they are."""


def commands_in(first_seq: int, last_seq: int, nbytes: int) -> int:
    """How many commands a batch counts for in the window.

    A batch of a replay leaves numbers out, as many as it likes in a few bytes.

    Args:
        first_seq: The number of its first command.
        last_seq: The number of its last one.
        nbytes: How large it is, encoded.
    """
    return min(last_seq - first_seq + 1, nbytes)
