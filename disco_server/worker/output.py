"""Passes what the ranks of one session print to the controller and to the log.

A session has a budget of output; what it prints beyond that is counted and dropped, and
readers learn how many lines are missing. Output never waits for a reader.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.printed import LineCounter
from disco_server.core.token_bucket import TokenBucket
from disco_server.observe.logs import BoundLogger, takes_more
from disco_server.observe.printed_lines import decode_lines

__all__ = ["SessionOutput"]


_BUDGET = (4 << 20, 256 << 10, 32 << 10)
"""How many bytes a session may print on a node: at once, and each second beyond that; where
they are spent, the next ones come in pieces of the last of these."""

_OF_A_LINE = 64
"""What a line costs of the budget beyond its text, about as much as in memory."""

_LOGGED = (300, 100, 50)
"""The same for the daemon's own log, in lines."""

_LOGGED_CHARS = 500
"""And how much of a line."""

_SAY_S = 1.0


class SessionOutput:
    """Used from the event loop only.

    Args:
        session: The session's id.
        node: This node's name.
        log_of: Returns the logger for a rank.
        post: Sends an envelope of the session if there is room; returns whether there was.
    """

    def __init__(
        self,
        session: int,
        node: str,
        log_of: Callable[[int], BoundLogger],
        post: Callable[[bytes], bool],
    ) -> None:
        self._session = session
        self._node = node
        self._log_of = log_of
        self._post = post
        self._loop = asyncio.get_running_loop()
        now = self._loop.time()
        self._budget = TokenBucket(*_BUDGET, now)
        self._printed: Counter[int] = Counter()
        self._told: Counter[int] = Counter()
        self._log_budget = TokenBucket(*_LOGGED, now)
        self._logged = LineCounter()
        self._saying: asyncio.TimerHandle | None = None

    def add(self, worker: int, is_error: bool, block: bytes) -> None:
        """Takes lines that a rank has printed.

        Args:
            worker: The rank.
            is_error: Whether to standard error.
            block: The lines, without the end of the last one.
        """
        first = self._printed[worker]
        count = block.count(b"\n") + 1
        self._printed[worker] += count
        lines = self._affordable(block, count)
        if lines:
            self._send(worker, first, lines, is_error=is_error)
            self._log(worker, first, lines)
        if self._is_behind(worker) and self._saying is None:
            self._saying = self._loop.call_later(_SAY_S, self._say_later)

    def _affordable(self, block: bytes, count: int) -> list[str]:
        """Splits as many lines as the budget allows."""
        left = self._budget.left(self._loop.time())
        cost = len(block) + _OF_A_LINE * count
        if cost <= left:
            self._budget.take(cost)
            return decode_lines(block)
        self._budget.take(left)
        many = int(left * count / cost)
        return decode_lines(b"\n".join(block.split(b"\n", many)[:many])) if many else []

    def _send(self, worker: int, first: int, lines: list[str], *, is_error: bool = False) -> None:
        message = controller_pb2.LogLines(
            worker=worker, node=self._node, stderr=is_error, lines=lines, first=first
        )
        if self._post(
            envelope(EnvelopeKind.LOG, message.SerializeToString(), session=self._session)
        ):
            self._told[worker] = first + len(lines)

    def _log(self, worker: int, first: int, lines: list[str]) -> None:
        """Writes as many lines to the daemon's log as fit there."""
        room = int(self._log_budget.left(self._loop.time()))
        log = self._log_of(worker)
        # Without lines, only the number of missing ones is logged, which is short.
        for piece in [[line] for line in lines[:room]] if lines else [[]]:
            if not takes_more():
                return
            for line in self._logged.receive(worker, first, piece):
                text = line if len(line) <= _LOGGED_CHARS else f"{line[:_LOGGED_CHARS]}..."
                log.info("[worker %d %s] %s", worker, self._node, text)
            self._log_budget.take(len(piece))
            first += 1

    def _is_behind(self, worker: int) -> bool:
        return min(self._told[worker], self._logged.seen(worker)) < self._printed[worker]

    def _say_later(self) -> None:
        self._saying = None
        self.say()
        if any(map(self._is_behind, self._printed)):
            self._saying = self._loop.call_later(_SAY_S, self._say_later)

    def say(self) -> None:
        """Reports how many lines each rank has printed, if the last ones were dropped."""
        for worker, printed in self._printed.items():
            if self._told[worker] < printed:
                self._send(worker, printed, [])
            if self._logged.seen(worker) < printed:
                self._log(worker, printed, [])

    def close(self) -> None:
        """Reports dropped lines for the last time; nothing follows. Idempotent."""
        self.say()
        if self._saying is not None:
            self._saying.cancel()
            self._saying = None
