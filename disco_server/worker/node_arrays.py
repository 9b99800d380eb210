"""The arrays of the sessions on one node, between its ranks and those who ask for them."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from disco_client.pb import controller_pb2
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_server.channels.frames import FrameReader
from disco_server.channels.growing import GrowingArray
from disco_server.worker.array_desk import incoming, outgoing
from disco_server.worker.arrays import ArrayCarrier, receive_array, send_array
from disco_server.worker.lent_arrays import LentArrays
from disco_server.worker.node_session import NodeSession
from disco_server.worker.uploads import Uploads

__all__ = ["NodeArrays"]


class NodeArrays:
    """The :class:`~disco_server.worker.array_desk.ArrayDesk` of a node.

    Args:
        sessions: The sessions that run here at any moment.
        carrier: Moves arrays over the connection to the controller.
        max_bytes: How large an array may be that a client brings.
        post: Sends an encoded envelope to the controller.
    """

    def __init__(
        self,
        sessions: Mapping[int, NodeSession],
        carrier: ArrayCarrier,
        max_bytes: int,
        post: Callable[[bytes], object],
    ) -> None:
        self._sessions = sessions
        self._max_bytes = max_bytes
        self._carrier = carrier
        self._post = post

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

    def uploads(self, transfer: controller_pb2.Transfer) -> Uploads:
        """The arrays on their way to the ranks of the transfer's session; see `ArrayDesk`.

        Raises:
            KeyError: There is no such session.
        """
        return self._sessions[transfer.session].uploads

    def check_size(self, transfer: controller_pb2.Transfer) -> None:
        """Refuses an array that is larger than the node's settings allow; see `ArrayDesk`.

        Raises:
            OSError: It is.
        """
        if transfer.nbytes > self._max_bytes:
            msg = (
                f"expected an array of at most {self._max_bytes} bytes, got one of "
                f"{transfer.nbytes}; start disco-worker with a larger --max-array-mib"
            )
            raise OSError(msg)

    def lent(self, transfer: controller_pb2.Transfer) -> LentArrays:
        """The arrays that the ranks of the transfer's session offer; see `ArrayDesk`.

        Raises:
            KeyError: There is no such session.
        """
        return self._sessions[transfer.session].lent

    # By way of the controller --------------------------------------------------------

    async def fetch(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Fetches an array that a client has brought to the controller, and answers it.

        Where the array was here already, or the client gives it up, there is only the
        answer. An answer that is lost with the connection is given again when the
        client sends again.
        """
        error = ""
        try:
            if transfer.error:
                await session.uploads.give_up(transfer)
            else:
                async with incoming(self, transfer) as array:
                    if array is not None:
                        chunks = self._carrier.fetch(transfer)
                        await receive_array(chunks, transfer.nbytes, array.fd, array.grown)
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("an upload was cut: %s", broke)
            return  # the client knows, or is gone
        except OSError as failed:
            error = str(failed)
            log = session.log_of(transfer.worker)
            log.warning("an upload of %d bytes failed: %s", transfer.nbytes, error)
        answer = controller_pb2.Transfer(
            ticket=transfer.ticket, worker=transfer.worker, nbytes=transfer.nbytes, error=error
        )
        self._post(envelope(Kind.FETCH, answer.SerializeToString(), session=session.session))

    async def push(self, session: NodeSession, transfer: controller_pb2.Transfer) -> None:
        """Sends an array that a rank offers to the controller, for a client that has not got it."""
        if transfer.there:
            session.lent.confirm(transfer.worker, transfer.ticket)
            return
        try:
            async with outgoing(self, transfer) as array:
                transfer.nbytes = array.nbytes
                await self._carrier.push(transfer, send_array(array))
        except KeyError:
            nothing = GrowingArray(-1, 1, error="the worker offers no such array")
            with contextlib.suppress(grpc.RpcError, ConnectionError):
                await self._carrier.push(transfer, send_array(nothing))
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("a download was cut: %s", broke)

    async def abandon(self, session: NodeSession) -> None:
        """Lets go of what a program was sending or fetching that will not come back.

        Another one begins behind the commands that are here: what those wait for and
        has not come will not come.
        """
        why = "the program that sent it is gone"
        newest = session.received << TICKETS_SHIFT
        await asyncio.gather(session.uploads.abandon(why), session.lent.abandon())
        for worker in session.ranks:
            session.uploads.abandon_unseen(worker, newest, why)
