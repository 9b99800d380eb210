"""Questions to nodes: whom, what comes of the answers, and what of their silence."""

from __future__ import annotations

import asyncio
import time

import pytest

from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.wire.codec import EnvelopeKind
from disco_server.controller.inspect import Inspections
from disco_server.core.session_state import SessionTable
from fakes import cluster_of_two

SESSION = 0xABC


class Room:
    """A cluster of two nodes with a session on both, and what is posted to them."""

    def __init__(self):
        asked = SessionTable(SESSION, "training", "me", 2, 1, "", b"k", 0.0, 1e9)
        self.cluster = cluster_of_two(asked, time.monotonic() - 9)
        self.inspections = Inspections(self.cluster, self.post)
        self.asked = []
        self.silent = set()

    def post(self, node, raw):
        received = envelope_pb2.Envelope.FromString(raw)
        assert received.kind == EnvelopeKind.INSPECT
        question = node_pb2.InspectNode.FromString(received.payload)
        self.asked.append((node, question.name))
        self.followed = [(m.worker, m.pid, m.seq, m.collectives) for m in question.since]
        if node in self.silent:
            return
        now = time.monotonic_ns()
        answer = node_pb2.NodeInspected(
            request=question.request, received_ns=now - 10**9, sent_ns=now - 10**9
        )
        if question.name:
            answer.known, answer.session, answer.session_name = True, SESSION, "training"
            answer.num_workers = 2
            answer.ranks.add(worker=0 if node == "a" else 1, node=node)
        other = "b" if node == "a" else "a"
        self.inspections.receive(other, answer.SerializeToString())  # not whom it was asked of
        self.inspections.receive(node, answer.SerializeToString())

    def inspect(self, name, **options):
        request = controller_pb2.InspectRequest(name=name, timeout_s=0.2, **options)
        return asyncio.run(self.inspections.inspect(request))


@pytest.mark.parametrize("name", ["training", f"{SESSION:016x}"])
def test_the_nodes_of_a_session_are_asked(name):
    """By its id, however it was named here; what they say is put together."""
    room = Room()
    found = room.inspect(name, stacks=True)
    assert sorted(room.asked) == [(node, f"{SESSION:016x}") for node in "ab"]
    assert (found.session, found.name, found.num_workers) == (SESSION, "training", 2)
    assert sorted(rank.worker for rank in found.ranks) == [0, 1]
    assert not found.silent


def test_a_node_that_does_not_answer_is_named():
    """With its ranks, and since when nothing was heard of it."""
    room = Room()
    room.silent.add("b")
    found = room.inspect("training")
    (silence,) = found.silent
    share = next(s for s in room.cluster.sessions[SESSION].shares if s.node == "b")
    assert (silence.node, tuple(silence.workers)) == ("b", share.workers)
    assert silence.seconds >= 9
    assert [rank.node for rank in found.ranks] == ["a"]


def test_times_come_with_the_difference_of_the_clocks():
    """Found by questions for nothing else."""
    room = Room()
    found = room.inspect("training", flights=True)
    assert room.asked.count(("a", "")) == 3
    for rank in found.ranks:
        assert abs(rank.clock_offset_ns - 10**9) < 10**8


def test_what_nobody_knows_is_a_lookup_error_that_says_what_there_is():
    """Every node is asked, because one may remember a session that has ended."""
    room = Room()
    room.silent |= {"a", "b"}
    with pytest.raises(LookupError, match=r"got 'nope'; there run: 'training'"):
        room.inspect("nope")
    assert {node for node, _ in room.asked} == {"a", "b"}


def test_whoever_follows_a_session_does_not_wait_for_clocks():
    """They are compared once at first; how far ranks were followed is passed on."""
    room = Room()

    async def follow():
        request = controller_pb2.InspectRequest(name="training", timeout_s=0.2, follow=True)
        request.since.add(worker=1, pid=7, seq=9, collectives=3)
        await room.inspections.inspect(request)
        del room.asked[:]
        return await room.inspections.inspect(request)

    found = asyncio.run(follow())
    assert sorted(room.asked) == [(node, f"{SESSION:016x}") for node in "ab"]
    assert room.followed == [(1, 7, 9, 3)]
    for rank in found.ranks:
        assert abs(rank.clock_offset_ns - 10**9) < 10**8
        assert rank.clock_at_ns
    assert found.sent_ns >= found.received_ns > 0
