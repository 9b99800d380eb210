"""The client's end of a session that has no workers."""

from __future__ import annotations

from collections.abc import Callable

from disco_client.conversation import Conversation
from disco_client.errors import SessionError
from disco_client.output import drop_logs
from disco_client.transport.base import RankPlace, Welcome
from disco_client.waiting import LongWaits
from disco_client.wire.limits import WINDOW_COMMANDS

__all__ = ["converse"]


def converse(
    num_workers: int = 1,
    on_lost: Callable[[SessionError], object] = lambda _error: None,
    *,
    window: int = WINDOW_COMMANDS,
) -> Conversation:
    """A new one, of session 7."""
    ranks = tuple(RankPlace(worker, "n", 1, "cpu") for worker in range(num_workers))
    return Conversation(
        Welcome(7, "s", ranks, window=window),
        explain=lambda failure: failure,
        print_lines=drop_logs,
        on_lost=on_lost,
        long_waits=LongWaits(),
    )
