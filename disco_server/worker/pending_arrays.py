"""The host arrays of one session in transfer between its client and the ranks here.

The client keeps an array that it uploads until the daemon confirms that all of it is here,
and otherwise sends it again from its beginning: the same bytes to the same memory, of
which the rank may have read some already. A download that breaks off leaves the array
where it is, and the client asks again; it confirms when it has it. So a transfer that
breaks off is kept, with its memory, for as long as its client may come back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import grpc

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_server.ipc.arrays import IncomingArray, OutgoingArray
from disco_server.ipc.rank_arrays import RankArrays, SendArray
from disco_server.worker.tasks import end_task

if TYPE_CHECKING:
    from disco_server.ipc.framing import FrameReader

__all__ = ["PendingArrays"]


_REMEMBERED = 4096
"""How many uploads that are over are remembered; far more than are under way at a time."""

_MARGIN_S = 1.0
"""Added to the lease: a client that comes back at its very end needs a moment to send again."""

_BROKEN_OFF = "the upload was broken off"

_Array = TypeVar("_Array", IncomingArray, OutgoingArray)

_Key: TypeAlias = tuple[int, int]
"""Worker and ticket."""


@dataclass(slots=True, eq=False)
class _Pending(Generic[_Array]):
    """One array.

    Attributes:
        array: Its memory, which belongs to this record.
        holder: The task that fills or reads it; None while none does.
        wanted: Whether the client may still ask for it.
        timer: Gives it up, while no task holds it.
    """

    array: _Array
    holder: asyncio.Task[Any] | None = None
    wanted: bool = True
    timer: asyncio.TimerHandle | None = None

    def hold(self) -> _Array:
        """Makes the running task its holder."""
        self.stop_timer()
        self.holder = asyncio.current_task()
        return self.array

    def leave(self, seconds: float, give_up: Callable[[], None]) -> None:
        """Lets another task hold it, and gives it up where none does in time."""
        self.holder = None
        self.timer = asyncio.get_running_loop().call_later(seconds, give_up)

    def stop_timer(self) -> None:
        """Stops the timer: it is kept for now."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class PendingArrays(RankArrays):
    """The uploads that are not whole yet, and the downloads that the client may not have yet.

    One task at a time fills or reads an array. Another one for the same array ends it:
    a connection may be broken for the client, and not yet for this end. To be used from
    the event loop only.

    Args:
        workers: The ranks here.
        send: Tells them about arrays.
        lease: Seconds in which a disconnected client may come back; 0 for not at all.
        max_bytes: How large an upload may be.
    """

    def __init__(
        self, workers: Collection[int], send: SendArray, lease: float, max_bytes: int
    ) -> None:
        super().__init__(send)
        self._workers = workers
        self._lease = lease
        self._max_bytes = max_bytes
        self._uploads: dict[_Key, _Pending[OutgoingArray]] = {}
        self._over: OrderedDict[_Key, None] = OrderedDict()
        self._downloads: dict[_Key, _Pending[IncomingArray]] = {}

    # Messages of ranks ----------------------------------------------------------------

    def receive(self, worker: int, received: EncodedEnvelope, reader: FrameReader) -> None:
        """Handles a rank's message about an array.

        Args:
            worker: The rank.
            received: The envelope.
            reader: Holds the descriptors that came.
        """
        told = controller_pb2.Transfer.FromString(received.payload)
        if received.kind != EnvelopeKind.ARRAY_BACK:
            self._note_offer(worker, received.kind, told, reader.fds.popleft)
        elif not told.error:
            self._memory.give(reader.fds.popleft())

    def rank_ended(self, worker: int) -> None:
        """Ends the waits for arrays that a rank was still copying when it ended."""
        self._offers.break_off(f"worker {worker} ended", worker)

    # Uploads --------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def upload(
        self, transfer: controller_pb2.Transfer, *, resumable: bool = True
    ) -> AsyncGenerator[OutgoingArray | None]:
        """Makes room for an array, which the block fills; the rank is notified if that fails.

        The block gets None if all of the array has come already or it was given up, and then
        drops what it receives.

        Args:
            transfer: Which array.
            resumable: Whether the client may send the array again if it breaks off. Its memory
                is then reused; otherwise never, as the client may still have it mapped.

        Raises:
            OSError: It is too large, there is no room, or it is of another size than it
                was before; or what the block raised.
        """
        try:
            array = await self._begin(transfer)
            yield array
        except (asyncio.CancelledError, ConnectionError, grpc.RpcError):
            self._break_off(transfer, self._lease if resumable else 0.0)
            raise
        except BaseException as error:
            known = isinstance(error, (OSError, MemoryError))
            self._fail(transfer, (str(error) or "no memory") if known else _BROKEN_OFF)
            raise
        if array is not None:
            self._end_upload(_key(transfer))

    async def _begin(self, transfer: controller_pb2.Transfer) -> OutgoingArray | None:
        key = _key(transfer)
        await _end_holder(self._uploads, key)
        if key in self._over:
            return None
        if transfer.nbytes > self._max_bytes:
            msg = (
                f"expected an array of at most {self._max_bytes} bytes, got one of "
                f"{transfer.nbytes}; start disco-worker with a larger --max-array-mib"
            )
            raise OSError(msg)
        upload = self._uploads.get(key)
        if upload is None:
            upload = self._uploads[key] = _Pending(self._outgoing(transfer))
        if upload.array.nbytes != transfer.nbytes:
            msg = (
                f"expected an array of {upload.array.nbytes} bytes as before, got {transfer.nbytes}"
            )
            raise OSError(msg)
        return upload.hold()

    def _break_off(self, transfer: controller_pb2.Transfer, lease: float) -> None:
        """Notes that a client is gone; it may send the array again within the lease."""
        upload = self._uploads.get(_key(transfer))
        if upload is None or upload.holder is not asyncio.current_task():
            return  # it was given up, or another task has it
        if lease <= 0:
            self._fail(transfer, _BROKEN_OFF)
            return
        why = f"{_BROKEN_OFF}, and not sent again within {lease:g} s"
        upload.leave(lease + _MARGIN_S, partial(self._fail, transfer, why))

    def _fail(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Notifies the rank that an array, or the rest of it, will not come."""
        self._end_upload(_key(transfer))
        self._tell(transfer, error=why)

    def _end_upload(self, key: _Key) -> None:
        """Releases an upload, and remembers that it is over."""
        self._over[key] = None
        while len(self._over) > _REMEMBERED:
            self._over.popitem(last=False)
        upload = self._uploads.pop(key, None)
        if upload is not None:
            upload.stop_timer()
            upload.array.fd.close()

    # Downloads ------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def download(
        self, transfer: controller_pb2.Transfer, *, resumable: bool = True
    ) -> AsyncGenerator[IncomingArray]:
        """Gives an array that a rank offers, and may still be filling, to the block.

        Args:
            transfer: Which array.
            resumable: Whether the client confirms the array, and may ask again until then.

        Raises:
            KeyError: The rank offers none under this ticket.
        """
        key = _key(transfer)
        await _end_holder(self._downloads, key)
        download = self._downloads.get(key)
        if download is None:
            download = self._downloads[key] = _Pending(self._offers.take(*key))
        try:
            yield download.hold()
        finally:
            # An array that the rank could not fill will never be complete.
            if resumable and download.wanted and not download.array.error and self._lease > 0:
                download.leave(self._lease, partial(self._let_go, key))
            else:
                self._let_go(key)

    def confirm(self, transfer: controller_pb2.Transfer) -> None:
        """Notes that the client has an array, or does not want it."""
        download = self._downloads.get(_key(transfer))
        if download is not None and download.holder is not None:
            download.wanted = False
        else:
            self._let_go(_key(transfer))

    def _let_go(self, key: _Key) -> None:
        """Gives the memory of an array back to the rank that offered it, if it did."""
        download = self._downloads.pop(key, None)
        if download is not None:
            download.stop_timer()
            array = download.array
        else:
            try:
                array = self._offers.take(*key)
            except KeyError:
                return
        self._give_back(key[0], array)

    # Abandoned arrays, and the end ------------------------------------------------------

    async def settle(
        self,
        given_up: Iterable[controller_pb2.Transfer],
        unwanted: Iterable[controller_pb2.Transfer],
    ) -> None:
        """Handles arrays that a client will not send, each with a reason, or will not fetch."""
        for transfer in unwanted:
            self.confirm(transfer)
        for transfer in given_up:
            if transfer.worker in self._workers:
                await self._give_up(transfer)

    async def _give_up(self, transfer: controller_pb2.Transfer) -> None:
        key = _key(transfer)
        await _end_holder(self._uploads, key)
        if key not in self._over:
            self._fail(transfer, transfer.error)

    async def abandon(self, newest: int) -> None:
        """Gives up the transfers of a program that will not come back.

        Args:
            newest: The last ticket of the commands that are here: arrays that these wait for
                and that have not come will not come.
        """
        why = "the program that sent it is gone"
        uploads, downloads = list(self._uploads), list(self._downloads)
        for key in self._offers.untaken:
            self._let_go(key)
        for key in downloads:
            await _end_holder(self._downloads, key)
            self._let_go(key)
        for worker, ticket in uploads:
            await self._give_up(controller_pb2.Transfer(worker=worker, ticket=ticket, error=why))
        for worker in self._workers:
            none = controller_pb2.Transfer(worker=worker, ticket=newest, and_before=True)
            self._tell(none, error=why)

    def close(self) -> None:
        """Releases everything; no task fills or reads anything any more."""
        for key in list(self._uploads):
            self._end_upload(key)
        for key in list(self._downloads):
            self._let_go(key)
        self._offers.close()
        self._memory.close()


def _key(transfer: controller_pb2.Transfer) -> _Key:
    return transfer.worker, transfer.ticket


async def _end_holder(table: Mapping[_Key, _Pending[Any]], key: _Key) -> None:
    """Ends the task that fills or reads an array, so that another one may."""
    while (pending := table.get(key)) is not None and pending.holder is not None:
        await end_task(pending.holder)
