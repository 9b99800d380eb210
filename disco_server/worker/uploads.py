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
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool
from disco_server.channels.growing import FilledArray
from disco_server.worker.tasks import end_task

__all__ = ["BrokenOff", "TellRank", "Uploads"]

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
