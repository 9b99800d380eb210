"""What a daemon asks its ranks themselves, which answer between two batches of commands."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame

if TYPE_CHECKING:
    from disco_server.worker.rank_handle import RankHandle

__all__ = ["ANSWER_S", "MOST_ANSWER_BYTES", "RankQuestions"]

ANSWER_S = 1.0
"""How long an answer is waited for; a rank that does not wait for commands gives none."""

MOST_ANSWER_BYTES = 8 << 20
"""A larger answer is dropped; the steps of the longest program take less than half of it."""


@dataclass(frozen=True, slots=True)
class _RankQuestion:
    number: int
    answer: asyncio.Future[bytes]


class RankQuestions:
    """Questions to the ranks of one session on one node; used from the event loop.

    A rank has one question at a time. Until it has answered it is asked nothing else, so
    that nothing piles up before one that is busy for long.
    """

    def __init__(self) -> None:
        self._asked: dict[int, _RankQuestion] = {}
        self._numbers = itertools.count(1)

    async def ask(
        self,
        session: int,
        worker: int,
        handle: RankHandle,
        question: controller_pb2.HoldingsRequest,
    ) -> controller_pb2.Holdings | None:
        """Asks a rank what it holds; None where it does not answer in time.

        Args:
            session: The session's id.
            worker: The rank.
            handle: Its process.
            question: What is asked.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_S
        while (before := self._asked.get(worker)) is not None:
            await _first(before.answer, handle, deadline - loop.time())
            if handle.exited.done() or loop.time() >= deadline:
                return None
        asked = self._asked[worker] = _RankQuestion(next(self._numbers), loop.create_future())
        raw = envelope(
            EnvelopeKind.ASK_HOLDINGS,
            question.SerializeToString(),
            session=session,
            first_seq=asked.number,
        )
        handle.sender.send(frame(raw))
        answer = asked.answer
        await _first(answer, handle, deadline - loop.time())
        try:
            return controller_pb2.Holdings.FromString(answer.result()) if answer.done() else None
        except DecodeError:  # the rank's own code answered
            return None

    def answered(self, worker: int, received: EncodedEnvelope) -> None:
        """Takes an answer, which may come too late for who asked."""
        asked = self._asked.get(worker)
        if asked is not None and asked.number == received.first_seq:
            del self._asked[worker]
            whole = len(received.payload) <= MOST_ANSWER_BYTES
            asked.answer.set_result(received.payload if whole else b"")


async def _first(answer: asyncio.Future[bytes], handle: RankHandle, seconds: float) -> None:
    """Waits for an answer, but not longer than the rank lives, or than so many seconds."""
    either = answer, handle.exited
    await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
