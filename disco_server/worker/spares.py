"""Interpreters that wait to become ranks, so that a session starts at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping

from disco_server.limits import Account
from disco_server.worker.rank_handle import RankHandle

__all__ = ["Spares"]

_logger = logging.getLogger("disco.worker")
_REFILL_AFTER_S = 0.5
"""Spares are made when a new session has got going, not while it starts."""


class Spares:
    """A pool of started interpreters; its owner closes it.

    Args:
        count: How many to keep.
        environ: The environment of every rank process.
        account: As whom they run, if not as this process's user.
    """

    def __init__(
        self, count: int, environ: Mapping[str, str], account: Account | None = None
    ) -> None:
        self._count = count
        self._environ = environ
        self._account = account
        self._idle: deque[RankHandle] = deque()
        self._refilling: asyncio.Task[None] | None = None
        self._closed = False

    async def fill(self) -> None:
        """Starts interpreters until enough are idle."""
        while not self._closed and len(self._idle) < self._count:
            self._idle.append(await RankHandle.spawn(self._environ, self._account))

    async def take(self) -> RankHandle:
        """Returns an interpreter of its own: an idle one, or one started now."""
        while self._idle:
            handle = self._idle.popleft()
            if not handle.exited.done():
                return handle
            _logger.warning(
                "a spare interpreter ended by itself: %s",
                " | ".join(handle.last_lines) or "silently",
            )
            handle.close()
        return await RankHandle.spawn(self._environ, self._account)

    def refill_later(self) -> None:
        """Makes up for what was taken, in a moment."""
        if self._refilling is None or self._refilling.done():
            self._refilling = asyncio.ensure_future(self._refill())

    async def _refill(self) -> None:
        await asyncio.sleep(_REFILL_AFTER_S)
        await self.fill()

    async def close(self) -> None:
        """Ends every idle interpreter."""
        self._closed = True
        if self._refilling is not None:
            self._refilling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refilling
        for handle in self._idle:
            handle.kill()
        for handle in self._idle:
            await handle.exited
            handle.close()
        self._idle.clear()
