"""What the owner of a session, its controller and its client, may have missed of one node.

A connection may break at any time. What was told is kept here until the owner has it, and sent
again when it is back; of what comes twice from there, the second is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_server.worker.kept_replies import KeptReplies

__all__ = ["OwnerLink"]


class OwnerLink:
    """One session's connection to its owner, over one stream or several.

    Args:
        session: The session's id.
        node: This node's name.
        ranks: The ranks here that have processes, at any moment.
        post: Sends an encoded envelope of a ``session`` to the controller; with
            ``droppable`` only if that is not too slow. Returns whether it did.

    Attributes:
        received: The newest command received; batches are taken in order and once.
        replies: The replies that the client may not have.
    """

    def __init__(
        self, session: int, node: str, ranks: Collection[int], post: Callable[..., bool]
    ) -> None:
        self._session, self._node, self._ranks = session, node, ranks
        self._send = post
        self.received = 0
        self.replies = KeptReplies()
        self._gap_told = False
        self._exits: list[bytes] = []

    def post(self, raw: bytes, *, droppable: bool = False) -> bool:
        """Sends an encoded envelope; returns whether it did."""
        return self._send(raw, session=self._session, droppable=droppable)

    def tell(self, kind: EnvelopeKind, payload: bytes = b"") -> None:
        """Sends what is not sent again."""
        self.post(envelope(kind, payload, session=self._session))

    def tell_opening(self, worker: int, times: int) -> None:
        """Tells that a rank opens its communicator, and for how many times it has."""
        kind, session = EnvelopeKind.OPEN_CCL, self._session
        self.post(envelope(kind, session=session, worker=worker, first_seq=times))

    def tell_exit(self, exited: bytes) -> None:
        """Tells that a rank has ended."""
        self._exits.append(exited)
        self.tell(EnvelopeKind.RANK_EXITED, exited)

    def reply(self, worker: int, number: int, raw: bytes) -> None:
        """Passes a rank's reply on."""
        self.replies.add(worker, number, raw)
        self.post(raw)

    def is_next(self, batch: EncodedEnvelope) -> bool:
        """Whether a batch is the one that follows; ranks execute each once and in order."""
        if batch.last_seq <= self.received:
            return False  # sent again by a client that did not know of its arrival
        if batch.first_seq != self.received + 1:
            if not self._gap_told:
                self._gap_told = True
                self._tell_have()
            return False
        self.received = batch.last_seq
        self._gap_told = False
        return True

    def resend(self, openings: Mapping[int, int], *, exits: bool = False) -> None:
        """Sends what the client may have missed, and with ``exits`` what the controller may have.

        Args:
            openings: How many times each rank has opened its communicator.
            exits: Whether to tell again which ranks have ended.
        """
        for exited in self._exits if exits else ():
            self.tell(EnvelopeKind.RANK_EXITED, exited)
        self._tell_have()
        for raw in self.replies.waiting():
            self.post(raw)
        for worker, times in openings.items():
            self.tell_opening(worker, times)

    def resend_dropped(self, asked: controller_pb2.Received) -> None:
        """Sends what the controller has dropped, because the client did not read it."""
        known = dict(zip(asked.workers, asked.replies, strict=False))
        self._tell_have(asked.question)
        for raw in self.replies.waiting(known):
            self.post(raw)
        self._tell_have(asked.question, all_sent=True)

    def _tell_have(self, question: int = 0, *, all_sent: bool = False) -> None:
        workers = list(self._ranks)
        have = controller_pb2.Have(
            node=self._node,
            last_seq=self.received,
            replies=self.replies.sent(workers),
            workers=workers,
            question=question,
            all_sent=all_sent,
        )
        self.tell(EnvelopeKind.HAVE, have.SerializeToString())
