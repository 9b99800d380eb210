"""The lines of a program in which the steps of captured programs were captured."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from disco_client.call_sites import Site, locate
from disco_client.errors import RemoteFailure
from disco_client.locks import make_lock

__all__ = ["StepLines"]

_REMEMBERED_STEPS = 1 << 17


class StepLines:
    """The lines of the client's program in which the steps of programs were captured.

    They outlive a program for a while, because its failures may be reported later.
    """

    def __init__(self) -> None:
        self._lock = make_lock()
        self._known: dict[int, tuple[str, Sequence[Site]]] = {}
        self._ended: deque[int] = deque()
        self._fading: deque[int] = deque()
        self._fading_steps = 0

    def add(self, defined: int, name: str, sites: Sequence[Site]) -> None:
        """Remembers a program.

        Args:
            defined: The number of the command that defined it.
            name: Its name.
            sites: The positions that captured its steps, in order.
        """
        with self._lock:
            self._known[defined] = name, sites
            self._forget()

    def end(self, defined: int) -> None:
        """Notes that a program is gone; safe inside the garbage collector."""
        self._ended.append(defined)

    def _forget(self) -> None:
        while self._ended:
            defined = self._ended.popleft()
            self._fading.append(defined)
            self._fading_steps += len(self._known[defined][1]) + 1
        while self._fading_steps > _REMEMBERED_STEPS:
            self._fading_steps -= len(self._known.pop(self._fading.popleft())[1]) + 1

    def explain(self, failure: RemoteFailure) -> RemoteFailure:
        """Adds to a failure in a program which one it was, and the step's line."""
        # Without the lock: its holder may be waiting for the replies that this thread reads.
        known = self._known.get(failure.program)
        if known is None:
            return failure
        name, sites = known
        found = 0 < failure.step <= len(sites)
        line = locate(sites[failure.step - 1]) if found else None
        return replace(failure, program_name=name, captured_at=line)
