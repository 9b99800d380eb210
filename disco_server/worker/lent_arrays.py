"""Arrays that ranks offer, from when a client asks for one until it has it.

A download that breaks off leaves the array where it is, and the client asks again. It
says when it has it; where that is lost with its connection, the array is let go when
nobody can come back for it any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from disco_server.channels.growing import GrowingArray, Offers
from disco_server.worker.tasks import end_task

__all__ = ["LentArrays"]

_Key: TypeAlias = tuple[int, int]


@dataclass(slots=True)
class _Lent:
    """One that was asked for.

    Attributes:
        array: The array; its memory belongs to this record.
        reader: Who sends it; None while nobody does.
        wanted: Whether the client may still ask for it.
        timer: Lets go of it, while nobody sends it.
    """

    array: GrowingArray
    reader: asyncio.Task[Any] | None = None
    wanted: bool = True
    timer: asyncio.TimerHandle | None = None


class LentArrays:
    """The downloads of one session from one node; used from the event loop only.

    Args:
        offers: What its ranks offer.
        give_back: Gets (worker, descriptor) of an array that nobody needs any more.
        lease: Seconds that a client which was cut off may ask again.
    """

    def __init__(self, offers: Offers, give_back: Callable[[int, int], None], lease: float) -> None:
        self._offers = offers
        self._give_back = give_back
        self._lease = lease
        self._lent: dict[_Key, _Lent] = {}

    async def lend(self, worker: int, ticket: int) -> GrowingArray:
        """Returns an array that a rank offers, and may still be filling, to the running task.

        Who read it before is ended: a connection may be broken for the client, and not
        yet for this end.

        Raises:
            KeyError: There is none under this ticket.
        """
        key = worker, ticket
        while (lent := self._lent.get(key)) is not None and (reader := lent.reader) is not None:
            await end_task(reader)
            if lent.reader is reader:  # it was ended before it could say so
                lent.reader = None
        if lent is None:
            lent = self._lent[key] = _Lent(self._offers.take(worker, ticket))
        _stop_timer(lent)
        lent.reader = asyncio.current_task()
        return lent.array

    def release(self, worker: int, ticket: int) -> None:
        """Notes that a task does not read an array any more; the client may ask again."""
        lent = self._lent.get((worker, ticket))
        if lent is None:
            return
        lent.reader = None
        # One that the rank could not fill does not get better.
        if not lent.wanted or lent.array.error or self._lease <= 0:
            self._let_go(worker, ticket)
            return
        loop = asyncio.get_running_loop()
        lent.timer = loop.call_later(self._lease, self._let_go, worker, ticket)

    def confirm(self, worker: int, ticket: int) -> None:
        """Notes that the client has an array, or does not want it."""
        lent = self._lent.get((worker, ticket))
        if lent is not None and lent.reader is not None:
            lent.wanted = False
        else:
            self._let_go(worker, ticket)

    async def abandon(self) -> None:
        """Lets go of all that was offered until now: nobody will ask for it."""
        for worker, ticket in self._offers.untaken:
            self._let_go(worker, ticket)
        for (worker, ticket), lent in list(self._lent.items()):
            if lent.reader is not None:
                await end_task(lent.reader)
            self._let_go(worker, ticket)

    def _let_go(self, worker: int, ticket: int) -> None:
        lent = self._lent.pop((worker, ticket), None)
        if lent is not None:
            _stop_timer(lent)
            array = lent.array
        else:
            try:
                array = self._offers.take(worker, ticket)
            except KeyError:
                return
        self._give_back(worker, array.fd)

    def close(self) -> None:
        """Lets go of everything; nobody reads anything any more."""
        for worker, ticket in list(self._lent):
            self._let_go(worker, ticket)


def _stop_timer(lent: _Lent) -> None:
    if lent.timer is not None:
        lent.timer.cancel()
        lent.timer = None
