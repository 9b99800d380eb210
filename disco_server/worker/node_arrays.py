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
from disco_server.worker.arrays import ArrayCarrier
from disco_server.worker.node_session import NodeSession
from disco_server.worker.rank_handle import RankHandle

__all__ = ["NodeArrays"]


class NodeArrays:
    """The :class:`~disco_server.worker.array_desk.ArrayDesk` of a node.

    Args:
        sessions: The sessions that run here at any moment.
        carrier: Moves arrays over the connection to the controller.
    """

    def __init__(self, sessions: Mapping[int, NodeSession], carrier: ArrayCarrier) -> None:
        self._sessions = sessions
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
        if received.kind == Kind.ARRAY_OUT:
            offered = controller_pb2.Transfer.FromString(received.payload)
            session.offers.add(worker, offered.ticket, reader.fds.popleft(), offered.nbytes)
        elif received.kind == Kind.ARRAY_BACK:
            session.memory.give(reader.fds.popleft())

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
        """
        return self._sessions[transfer.session].memory

    def give_back(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Returns the memory of an array that was handed out; closes the descriptor."""
        handle = self._rank(transfer)
        if handle is None:
            os.close(fd)
        else:
            handle.send(frame(envelope(Kind.ARRAY_BACK, session=transfer.session)), fd)

    def hand_in(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Gives an array to its rank; the descriptor is closed there."""
        handle = self._rank(transfer)
        if handle is None:
            os.close(fd)
            return
        handle.send(frame(_array_in(transfer)), fd)

    def refuse(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells a rank, which waits for it, that an array will not come."""
        handle = self._rank(transfer)
        if handle is not None:
            handle.send(frame(_array_in(transfer, why)))

    def hand_out(self, transfer: controller_pb2.Transfer) -> tuple[int, int]:
        """Returns the descriptor and the size of an array that a rank offers.

        Raises:
            KeyError: There is none under this ticket.
        """
        return self._sessions[transfer.session].offers.take(transfer.worker, transfer.ticket)

    # By way of the controller --------------------------------------------------------

    async def fetch(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Fetches an array that a client has brought to the controller."""
        try:
            fd = await self._carrier.fetch(transfer, session.memory)
        except grpc.RpcError as error:
            session.log.debug("an upload ended early: %s", error)
            self.refuse(transfer, "the upload was broken off")
        except OSError as error:
            session.log.warning("an upload of %d bytes failed: %s", transfer.nbytes, error)
            self.refuse(transfer, str(error))
        else:
            self.hand_in(transfer, fd)

    async def push(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Sends an array that a rank offers to the controller, for a client."""
        try:
            fd, nbytes = self.hand_out(transfer)
            try:
                await self._carrier.push(transfer, os.dup(fd), nbytes)
            finally:
                self.give_back(transfer, fd)
        except KeyError:
            session.log.warning("worker %d offers no array %d", transfer.worker, transfer.ticket)
        except grpc.RpcError as error:
            session.log.debug("a download ended early: %s", error)

    def _rank(self, transfer: controller_pb2.Transfer) -> RankHandle | None:
        session = self._sessions.get(transfer.session)
        return session.ranks.get(transfer.worker) if session is not None else None


def _array_in(transfer: controller_pb2.Transfer, error: str = "") -> bytes:
    """What a rank is told about an array; the session's secret is not its business."""
    told = controller_pb2.Transfer(
        session=transfer.session,
        ticket=transfer.ticket,
        worker=transfer.worker,
        nbytes=transfer.nbytes,
        error=error,
    )
    return envelope(Kind.ARRAY_IN, told.SerializeToString(), session=transfer.session)
