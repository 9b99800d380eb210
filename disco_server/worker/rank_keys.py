"""What the ranks of one session on a node ask of its rendezvous, which is at the controller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from disco_client.pb import node_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame

if TYPE_CHECKING:
    from disco_server.worker.counters import NodeCounters

__all__ = ["KEY_REQUESTS", "RankKeys"]

KEY_REQUESTS: Mapping[int, type[Any]] = {
    EnvelopeKind.PUT_KEY: node_pb2.PutRequest,
    EnvelopeKind.GET_KEY: node_pb2.GetRequest,
}
"""What ranks ask about keys, and the message in which they do."""

_LONGEST_S = 600.0
_ANSWER_S = 5.0
"""How much longer than a rank's limit the controller's own word on it is waited for."""


@dataclass(frozen=True, slots=True)
class _KeyQuestion:
    """What a rank has asked, with the envelope, which is sent again after a lost connection."""

    raw: bytes
    number: int
    given_up: asyncio.TimerHandle


class RankKeys:
    """The questions about keys and the fences of one session on one node; used from the loop.

    Args:
        session: The session's id.
        node_index: This node's place among the session's nodes.
        nodes: How many they are.
        post: Sends an encoded envelope of the session to the controller.
        send: Sends a frame to a rank.
        counters: Count the keys.
    """

    def __init__(
        self,
        session: int,
        node_index: int,
        nodes: int,
        post: Callable[[bytes], object],
        send: Callable[[int, bytes], None],
        counters: NodeCounters,
    ) -> None:
        self._session, self._place = session, (node_index, nodes)
        self._post, self._send = post, send
        self._counters = counters
        self._asked: dict[int, _KeyQuestion] = {}
        self._fences: dict[str, bytes] = {}

    def ask(self, worker: int, raw: bytes, received: EncodedEnvelope) -> None:
        """Passes a rank's question about a key on; the rank does nothing else meanwhile.

        Raises:
            ValueError: It has asked for another one, or in the name of another rank.
        """
        if worker in self._asked or received.worker_plus_one != worker + 1:
            msg = "a rank asks for one key at a time"
            raise ValueError(msg)
        seconds = KEY_REQUESTS[received.kind].FromString(received.payload).timeout_s
        seconds = min(max(0.0, seconds), _LONGEST_S)
        giving_up = asyncio.get_running_loop().call_later(
            seconds + _ANSWER_S, self._give_up, worker, seconds
        )
        self._asked[worker] = _KeyQuestion(raw, received.first_seq, giving_up)
        self._post(raw)

    def _give_up(self, worker: int, seconds: float) -> None:
        del self._asked[worker]
        none = node_pb2.KeyAnswer(error=f"the controller did not answer within {seconds:g} s")
        raw = envelope(EnvelopeKind.KEY, none.SerializeToString(), session=self._session)
        self._send(worker, frame(raw))

    def answered(self, raw: bytes, received: EncodedEnvelope) -> None:
        """Takes the controller's answer about a key; one to a question of before is none."""
        worker = received.worker_plus_one - 1
        question = self._asked.get(worker)
        if question is None or question.number != received.first_seq:
            return
        self._counters.keys += not node_pb2.KeyAnswer.FromString(received.payload).error
        question.given_up.cancel()
        del self._asked[worker]
        self._send(worker, frame(raw))

    def fence(self, name: str, items: Mapping[str, bytes]) -> None:
        """Asks to exchange keys with the session's other nodes; see :meth:`fenced`."""
        index, nodes = self._place
        request = node_pb2.FenceRequest(
            name=name, participant=index, participants=nodes, items=items
        )
        raw = envelope(EnvelopeKind.FENCE, request.SerializeToString(), session=self._session)
        self._fences[name] = raw
        self._post(raw)

    def fenced(self, received: EncodedEnvelope) -> node_pb2.FenceResult | None:
        """The controller's answer about a fence; None where that has been answered before."""
        result = node_pb2.FenceResult.FromString(received.payload)
        return result if self._fences.pop(result.name, None) is not None else None

    def resend(self) -> None:
        """Asks a controller that is connected again what has no answer."""
        for question in self._asked.values():
            self._post(question.raw)
        for raw in self._fences.values():
            self._post(raw)

    def close(self) -> None:
        """Waits for no answer any more."""
        for question in self._asked.values():
            question.given_up.cancel()
        self._asked.clear()
