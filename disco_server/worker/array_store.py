"""Arrays on their way to the ranks of one session, also those that were cut.

The client keeps an array until it is told that all of it is here, and sends it again
from its beginning where it is not: the same bytes to the same place, of which the rank
may have read some already. So an upload that breaks off is kept, with its memory, for
as long as its client may come back; one that comes once more after it was whole is
dropped.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from disco_client.pb import controller_pb2
from disco_server.ipc.growing import FilledArray, GrowingArray, Offers

if TYPE_CHECKING:
    from disco_client.arrays.shared_memory import SharedPool

__all__ = ["BrokenOff", "LentArrays", "TellRank", "Uploads", "end_task"]


# Ending a task for good: one that stands in the way of its successor.


_AGAIN_S = 0.5


async def end_task(task: asyncio.Task[Any]) -> None:
    """Cancels a task and waits for its end.

    gRPC keeps a cancellation to itself now and then, so it is repeated.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait((task,), timeout=_AGAIN_S)


_REMEMBERED = 4096
"""How many uploads that are over are remembered; far more than are under way at a time."""

_MARGIN_S = 1.0
"""Added to the lease: who comes back at its very end needs a moment to send again."""

_Key: TypeAlias = tuple[int, int]


class BrokenOff(ConnectionError):
    """The sender is gone before all of an array was here; it may send it again."""


class TellRank(Protocol):
    """Tells a rank about an array: how much is there, or why it will not come."""

    def __call__(
        self,
        transfer: controller_pb2.Transfer,
        there: int = 0,
        fd: int | None = None,
        error: str = "",
    ) -> None:
        """Tells it; the descriptor, where the memory is new to the rank, is closed there."""
        ...


@dataclass(slots=True)
class _Upload:
    """One that is not whole yet.

    Attributes:
        array: Its memory, which belongs to this record.
        nbytes: Its size.
        sender: Who fills it; None while nobody does.
        timer: Gives it up, while nobody fills it.
    """

    array: FilledArray
    nbytes: int
    sender: asyncio.Task[Any] | None = None
    timer: asyncio.TimerHandle | None = None


class Uploads:
    """The uploads of one session to one node; used from the event loop only.

    Args:
        memory: Where memory for arrays comes from.
        tell: Tells ranks about them.
        lease: Seconds that one which broke off is waited for; 0 for not at all.
    """

    def __init__(self, memory: SharedPool, tell: TellRank, lease: float) -> None:
        self._memory = memory
        self._tell = tell
        self._lease = lease
        self._under_way: dict[_Key, _Upload] = {}
        self._over: OrderedDict[_Key, None] = OrderedDict()

    async def begin(self, transfer: controller_pb2.Transfer) -> FilledArray | None:
        """Makes room for an array that the running task fills from its beginning.

        Who filled it before is ended: a connection may be broken for the client, and
        not yet for this end.

        Returns:
            None where all of it has come already, or it was given up.

        Raises:
            OSError: There is no room, or it is of another size than it was before.
        """
        key = _key(transfer)
        await self._end_sender(key)
        if key in self._over:
            return None
        upload = self._under_way.get(key)
        if upload is None:
            fd = self._memory.take(transfer.nbytes)
            array = FilledArray(fd, transfer.nbytes, partial(self._tell, transfer))
            upload = self._under_way[key] = _Upload(array, transfer.nbytes)
        if upload.nbytes != transfer.nbytes:
            msg = f"expected an array of {upload.nbytes} bytes as before, got {transfer.nbytes}"
            raise OSError(msg)
        self._stop_timer(upload)
        upload.sender = asyncio.current_task()
        return upload.array

    async def _end_sender(self, key: _Key) -> None:
        while (upload := self._under_way.get(key)) and (sender := upload.sender) is not None:
            await end_task(sender)
            if upload.sender is sender:  # it was ended before it could say so
                upload.sender = None

    def complete(self, transfer: controller_pb2.Transfer) -> None:
        """Notes that all of an array is here."""
        self._close(_key(transfer))

    def break_off(self, transfer: controller_pb2.Transfer) -> None:
        """Notes that a sender is gone; the array may be sent again for a while."""
        upload = self._under_way.get(_key(transfer))
        if upload is None:
            return
        upload.sender = None
        if self._lease <= 0:
            self.fail(transfer, "the upload was broken off")
            return
        why = f"the upload was broken off, and not sent again within {self._lease:g} s"
        loop = asyncio.get_running_loop()
        upload.timer = loop.call_later(self._lease + _MARGIN_S, self.fail, transfer, why)

    def fail(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells the rank that an array, or the rest of it, will not come."""
        self._close(_key(transfer))
        self._tell(transfer, error=why)

    async def give_up(self, transfer: controller_pb2.Transfer) -> None:
        """Acts on a client that will not send an array, or not the rest, and says why."""
        key = _key(transfer)
        await self._end_sender(key)
        if key not in self._over:
            self.fail(transfer, transfer.error)

    async def abandon(self, why: str) -> None:
        """Gives up all that are not whole: who sent them will not come back."""
        for worker, ticket in list(self._under_way):
            await self.give_up(controller_pb2.Transfer(worker=worker, ticket=ticket, error=why))

    def abandon_unseen(self, worker: int, newest: int, why: str) -> None:
        """Tells a rank that what it does not have will not come, up to a ticket."""
        transfer = controller_pb2.Transfer(worker=worker, ticket=newest, and_before=True)
        self._tell(transfer, error=why)

    def close(self) -> None:
        """Lets go of everything; nobody fills anything any more."""
        for key in list(self._under_way):
            self._close(key)

    def _close(self, key: _Key) -> None:
        """Lets go of an upload, and remembers that it is over."""
        self._over[key] = None
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        upload = self._under_way.pop(key, None)
        if upload is not None:
            self._stop_timer(upload)
            os.close(upload.array.fd)

    def _stop_timer(self, upload: _Upload) -> None:
        if upload.timer is not None:
            upload.timer.cancel()
            upload.timer = None


def _key(transfer: controller_pb2.Transfer) -> _Key:
    return transfer.worker, transfer.ticket


# Arrays that ranks offer, from when a client asks for one until it has it.
#
# A download that breaks off leaves the array where it is, and the client asks again. It
# says when it has it; where that is lost with its connection, the array is let go when
# nobody can come back for it any more.


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
