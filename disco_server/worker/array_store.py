"""The host arrays of the sessions on one node, for clients that know a session's secret."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import grpc

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.ipc.arrays import IncomingArray
from disco_server.worker.array_streams import ArrayRelay, receive_array, send_array

if TYPE_CHECKING:
    from disco_server.worker.pending_arrays import PendingArrays
    from disco_server.worker.session import WorkerSession

__all__ = ["ArrayStore", "NotAdmitted"]


class NotAdmitted(Exception):
    """A transfer that names no worker of a session here, or not its secret."""


class ArrayStore:
    """The arrays of all sessions on a node.

    Args:
        sessions: The sessions that run here at any moment.
        relay: Moves arrays over the connection to the controller.
        post: Sends an encoded envelope to the controller.
    """

    def __init__(
        self,
        sessions: Mapping[int, WorkerSession],
        relay: ArrayRelay,
        post: Callable[[bytes], object],
    ) -> None:
        self._sessions = sessions
        self._relay = relay
        self._post = post

    def admit(self, transfer: controller_pb2.Transfer) -> PendingArrays:
        """Returns the arrays of a transfer's session, which cancels the running task when it ends.

        Raises:
            NotAdmitted: The transfer names no worker of a session here, or not its secret.
        """
        session = self._sessions.get(transfer.session)
        if (
            session is None
            or session.driver.node.ending
            or transfer.worker not in session.driver.ranks
            or not hmac.compare_digest(session.start.transfer_key, transfer.transfer_key)
        ):
            msg = "no such worker, session or key on this node"
            raise NotAdmitted(msg)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  (this runs in one)
        session.tasks.add(task)
        task.add_done_callback(session.tasks.discard)
        return session.arrays

    async def fetch(self, session: WorkerSession, transfer: controller_pb2.Transfer) -> None:
        """Fetches an array that a client sends to the controller, and answers the client.

        If the array was here already, or was given up, there is only the answer. An answer
        that is lost with the connection is sent again when the client sends the array again.
        """
        error = ""
        try:
            async with session.arrays.upload(transfer) as array:
                if array is not None:
                    await receive_array(self._relay.fetch(transfer), array)
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("an upload was cut: %s", broke)
            return  # the client knows, or is gone
        except Exception as failed:  # noqa: BLE001  (the client waits for an answer)
            error = str(failed) or type(failed).__name__
            log = session.log_of(transfer.worker)
            log.warning("an upload of %d bytes failed: %s", transfer.nbytes, error)
        answer = controller_pb2.Transfer(
            ticket=transfer.ticket, worker=transfer.worker, nbytes=transfer.nbytes, error=error
        )
        self._post(
            envelope(EnvelopeKind.FETCH, answer.SerializeToString(), session=session.session)
        )

    async def push(self, session: WorkerSession, transfer: controller_pb2.Transfer) -> None:
        """Sends an array that a rank offers to the controller, for a client that asks for it."""
        if transfer.there:
            session.arrays.confirm(transfer)
            return
        try:
            async with session.arrays.download(transfer) as array:
                transfer.nbytes = array.nbytes
                await self._relay.push(transfer, send_array(array))
        except (grpc.RpcError, ConnectionError) as broke:
            session.log_of(transfer.worker).debug("a download was cut: %s", broke)
        except Exception as failed:  # noqa: BLE001  (the client waits for an answer)
            why = str(failed) or type(failed).__name__
            if isinstance(failed, KeyError):
                why = "the worker offers no such array"
            nothing = IncomingArray(None, 1, error=why)
            with contextlib.suppress(grpc.RpcError, ConnectionError):
                await self._relay.push(transfer, send_array(nothing))
