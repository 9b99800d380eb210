"""A daemon's questions to its ranks: one at a time, for a while, and no longer than they live."""

from __future__ import annotations

import asyncio

import pytest

from disco_client.pb import controller_pb2 as pb
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_server.worker import rank_questions
from disco_server.worker.rank_questions import MOST_ANSWER_BYTES, RankQuestions

ASKED = pb.HoldingsRequest(program=3)


class Rank:
    """The side of a rank to which questions are sent."""

    def __init__(self):
        self.exited = asyncio.get_running_loop().create_future()
        self.received = []
        self.sender = self

    def send(self, framed):
        self.received.append(EncodedEnvelope.FromString(framed[4:]))


def answer(questions, number, payload):
    said = EncodedEnvelope(kind=EnvelopeKind.HOLDINGS, first_seq=number, payload=payload)
    questions.answered(0, said)


async def asked(questions, rank):
    """A question under way."""
    task = asyncio.ensure_future(questions.ask(9, 0, rank, ASKED))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


@pytest.mark.anyio
async def test_a_rank_is_asked_one_thing_after_the_other():
    """Two viewers at a time get their answers both."""
    questions, rank = RankQuestions(), Rank()
    first, second = await asked(questions, rank), await asked(questions, rank)
    assert [each.first_seq for each in rank.received] == [1]
    assert rank.received[0].kind == EnvelopeKind.ASK_HOLDINGS
    assert pb.HoldingsRequest.FromString(rank.received[0].payload) == ASKED
    answer(questions, 7, b"")  # not to what was asked
    answer(questions, 1, pb.Holdings(num_programs=5).SerializeToString())
    assert (await first).num_programs == 5
    await asyncio.sleep(0.01)
    answer(questions, 2, pb.Holdings(num_programs=6).SerializeToString())
    assert (await second).num_programs == 6


@pytest.mark.anyio
async def test_a_rank_that_does_not_answer_is_asked_nothing_else(monkeypatch):
    """Until it has answered, too late for who asked."""
    monkeypatch.setattr(rank_questions, "ANSWER_S", 0.05)
    questions, rank = RankQuestions(), Rank()
    assert await questions.ask(9, 0, rank, ASKED) is None
    assert await questions.ask(9, 0, rank, ASKED) is None
    assert len(rank.received) == 1
    answer(questions, 1, b"")
    third = await asked(questions, rank)
    answer(questions, 2, b"")
    assert await third == pb.Holdings()


@pytest.mark.anyio
async def test_a_rank_that_ends_is_not_waited_for():
    """Nor asked any more."""
    questions, rank = RankQuestions(), Rank()
    first, second = await asked(questions, rank), await asked(questions, rank)
    rank.exited.set_result(1)
    assert (await first, await second) == (None, None)
    assert await questions.ask(9, 1, rank, ASKED) is None


@pytest.mark.anyio
async def test_an_answer_that_is_too_large_is_dropped():
    """As a rank's own code may send one."""
    questions, rank = RankQuestions(), Rank()
    first = await asked(questions, rank)
    answer(questions, 1, bytes(MOST_ANSWER_BYTES + 1))
    assert await first == pb.Holdings()


@pytest.mark.anyio
async def test_an_answer_that_cannot_be_read_is_none():
    """Likewise."""
    questions, rank = RankQuestions(), Rank()
    first = await asked(questions, rank)
    answer(questions, 1, b"\xff\xff")
    assert await first is None
