"""What waits for the client of one session: of the replies of its workers, a bounded part.

Each node keeps its replies until the client has them. So what a client does not read need not
be here as well: beyond a limit, replies of all nodes together are dropped, and when the client
has read most of what is here, the nodes that lack something are asked for it, one after the other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.core.session_state import SessionTable
from disco_server.ipc.outbox import Outbox

__all__ = ["UNREAD_BYTES", "ClientOutbox"]

UNREAD_BYTES: Final = 64 << 20
"""How much may wait for a client before replies are dropped."""

_LOW_BYTES: Final = UNREAD_BYTES // 2
"""How little must wait before a node is asked for what was dropped."""


class ClientOutbox(Outbox):
    """The writing side of the stream of one client.

    Of a node from which a reply was dropped, all that follow are dropped too, until it sends
    again what is missing: so replies of a worker come without gaps.

    Args:
        session: The client's session.
        ask: Sends an encoded envelope to a node.
        most: How many bytes may wait.
    """

    def __init__(
        self,
        session: SessionTable,
        ask: Callable[[str, bytes], object],
        most: int = UNREAD_BYTES,
    ) -> None:
        super().__init__()
        self._session = session
        self._ask = ask
        self._most = most
        self._low = min(most // 2, _LOW_BYTES)
        self._newest: dict[int, int] = {}
        # In the order in which they are asked; whether what a node has was dropped as well.
        self._lacking: dict[str, bool] = {}
        self._asked = ""
        self._question = 0

    def reply(self, node: str, worker: int, number: int, raw: bytes) -> bool:
        """Adds a reply; returns whether it was taken, or the node will be asked for it.

        Args:
            node: Where it comes from.
            worker: The rank.
            number: The reply's number on this rank.
            raw: The envelope.
        """
        if node in self._lacking or self._is_full(raw):
            self._lacking.setdefault(node, False)
            return False
        self._newest[worker] = number
        return self.post(raw)

    def have(self, node: str, raw: bytes, payload: bytes) -> None:
        """Takes what a node says that it has, to the client or in answer to this one's question.

        Args:
            node: The node.
            raw: The envelope.
            payload: What is in it.

        Raises:
            DecodeError: The node was asked, and this is no answer.
        """
        if node == self._asked:
            told = controller_pb2.Have.FromString(payload)
            if told.question == self._question:
                self._answered(node, raw, all_sent=told.all_sent)
                return
        if self._is_full(raw):
            self._lacking[node] = True
        else:
            self.post(raw)

    def returned(self, node: str) -> None:
        """Notes that a node has another connection, over which no answer of before comes."""
        if self._asked == node:
            self._asked = ""
            self._lacking.setdefault(node, False)
        self._ask_next()

    def take(self) -> list[bytes]:
        """Takes what leaves next; where little is left, a node is asked for what was dropped."""
        taken = super().take()
        if self._lacking:
            self._ask_next()
        return taken

    def _is_full(self, raw: bytes) -> bool:
        waiting = self.nbytes
        return waiting > 0 and waiting + len(raw) > self._most

    def _answered(self, node: str, raw: bytes, *, all_sent: bool) -> None:
        """What was dropped of a node follows, or all of it has come."""
        if all_sent:
            self._asked = ""
            self._ask_next()
        elif self._lacking.pop(node, False):
            self.post(raw)

    def _ask_next(self) -> None:
        if self._asked or not self._lacking or self.nbytes > self._low:
            return
        node = self._asked = next(iter(self._lacking))
        self._question = secrets.randbits(63) | 1
        workers = [w for share in self._session.shares if share.node == node for w in share.workers]
        received = controller_pb2.Received(
            replies=[self._newest.get(worker, 0) for worker in workers],
            workers=workers,
            question=self._question,
        )
        self._ask(
            node,
            envelope(
                EnvelopeKind.RESUME, received.SerializeToString(), session=self._session.session
            ),
        )
