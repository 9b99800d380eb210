"""The arrays of the sessions on one node, between its ranks and those who ask for them."""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Mapping
from typing import Any

import grpc

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_server.channels.frames import FrameReader, frame
from disco_server.channels.growing import GrowingArray
from disco_server.worker.array_desk import incoming
from disco_server.worker.arrays import ArrayCarrier, receive_array, send_array
from disco_server.worker.node_session import NodeSession

__all__ = ["NodeArrays"]


class NodeArrays:
    """The :class:`~disco_server.worker.array_desk.ArrayDesk` of a node.

    Args:
        sessions: The sessions that run here at any moment.
        carrier: Moves arrays over the connection to the controller.
        max_bytes: How large an array may be that a client brings.
    """

    def __init__(
        self, sessions: Mapping[int, NodeSession], carrier: ArrayCarrier, max_bytes: int
    ) -> None:
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._carrier = carrier

    # What ranks say ----------------------------------------------------------------

    def receive(
        self, session: NodeSession, worker: int, received: EncodedEnvelope, reader: FrameReader
    ) -> None:
        """Acts on what a rank says about an array.

        Args:
            session: Its session.
            worker: Which of the session's ranks it is.
            received: The envelope.
            reader: Holds the descriptors that came.
        """
        if received.kind == Kind.ARRAY_BACK:
            session.memory.give(reader.fds.popleft())
            return
        told = controller_pb2.Transfer.FromString(received.payload)
        if received.kind == Kind.ARRAY_OUT:
            array = GrowingArray(reader.fds.popleft(), told.nbytes, told.there, told.error)
            session.offers.add(worker, told.ticket, array)
        else:
            session.offers.grow(worker, told.ticket, told.there, told.error)

    # What doors want ---------------------------------------------------------------

    def knows(self, transfer: controller_pb2.Transfer) -> bool:
        """Whether a transfer names a worker of a session here, and its secret."""
        session = self._sessions.get(transfer.session)
        return (
            session is not None
            and not session.ending
            and transfer.worker in session.ranks
            and hmac.compare_digest(session.start.transfer_key, transfer.transfer_key)
        )

    def attend(self, transfer: controller_pb2.Transfer, task: asyncio.Task[Any]) -> None:
        """Cancels a task when the transfer's session ends, and waits for it.

        Raises:
            KeyError: There is no such session.
        """
        tasks = self._sessions[transfer.session].tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def memory(self, transfer: controller_pb2.Transfer) -> SharedPool:
        """Where memory for an array comes from: what a session used before, it uses again.

        Raises:
            KeyError: There is no such session.
            OSError: The array is larger than the node's settings allow.
        """
        if transfer.nbytes > self._max_bytes:
            msg = (
                f"expected an array of at most {self._max_bytes} bytes, got one of "
                f"{transfer.nbytes}; start disco-worker with a larger --max-array-mib"
            )
            raise OSError(msg)
        return self._sessions[transfer.session].memory

    def hand_in(self, transfer: controller_pb2.Transfer, there: int, fd: int | None = None) -> None:
        """Tells a rank how much of an array is in its memory; see `ArrayDesk`."""
        kind = Kind.ARRAY_MORE if fd is None else Kind.ARRAY_IN
        self._send(transfer, kind, _told(transfer, there), fd)

    def refuse(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells a rank, which waits for it, that an array or its rest will not come."""
        self._send(transfer, Kind.ARRAY_MORE, _told(transfer, error=why))

    def hand_out(self, transfer: controller_pb2.Transfer) -> GrowingArray:
        """Returns an array that a rank offers, and may still be filling.

        Raises:
            KeyError: There is none under this ticket.
        """
        return self._sessions[transfer.session].offers.take(transfer.worker, transfer.ticket)

    def give_back(self, transfer: controller_pb2.Transfer, array: GrowingArray) -> None:
        """Returns the memory of an array that was handed out; nobody may use it any more.

        A rank that still fills it takes it back afterwards.
        """
        fd, array.fd = array.fd, -1
        if fd >= 0:
            self._send(transfer, Kind.ARRAY_BACK, b"", fd)

    def _send(
        self, transfer: controller_pb2.Transfer, kind: Kind, payload: bytes, fd: int | None = None
    ) -> None:
        session = self._sessions.get(transfer.session)
        handle = session.ranks.get(transfer.worker) if session is not None else None
        if handle is not None:
            handle.send(frame(envelope(kind, payload, session=transfer.session)), fd)
        elif fd is not None:
            os.close(fd)

    # By way of the controller --------------------------------------------------------

    async def fetch(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Fetches an array that a client has brought to the controller."""
        try:
            with incoming(self, transfer) as array:
                chunks = self._carrier.fetch(transfer)
                await receive_array(chunks, transfer.nbytes, array.fd, array.grown)
        except grpc.RpcError as error:
            session.log.debug("an upload ended early: %s", error)
        except OSError as error:
            session.log.warning("an upload of %d bytes failed: %s", transfer.nbytes, error)

    async def push(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Sends an array that a rank offers to the controller, for a client."""
        try:
            array = self.hand_out(transfer)
        except KeyError:
            array = GrowingArray(-1, transfer.nbytes, error="the worker offers no such array")
        try:
            await self._carrier.push(transfer, send_array(array))
        except grpc.RpcError as error:
            session.log.debug("a download ended early: %s", error)
        finally:
            self.give_back(transfer, array)


def _told(transfer: controller_pb2.Transfer, there: int = 0, error: str = "") -> bytes:
    """What a rank is told about an array; the session's secret is not its business."""
    return controller_pb2.Transfer(
        session=transfer.session,
        ticket=transfer.ticket,
        worker=transfer.worker,
        nbytes=transfer.nbytes,
        there=there,
        error=error,
    ).SerializeToString()
