"""What a client does not read is dropped beyond a limit, and asked for again: nothing is lost."""

from __future__ import annotations

from collections import deque

import pytest

from disco_client.pb import controller_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_server.controller.client_outbox import ClientOutbox
from disco_server.core.nodes import NodeShare
from disco_server.core.session_state import SessionTable
from disco_server.worker.kept_replies import KeptReplies

SIZE = 70_000
MOST = 10 * SIZE


class Node:
    """What a worker daemon keeps of its ranks, and its stream to the controller."""

    def __init__(self, name, workers):
        self.name = name
        self.workers = workers
        self.kept = KeptReplies()
        self.stream = deque()
        self.questions = 0

    def answer(self, worker, number):
        raw = envelope(EnvelopeKind.REPLY, bytes(SIZE), worker=worker, first_seq=number)
        self.kept.add(worker, number, raw)
        self.stream.append(raw)

    def asked(self, raw):
        self.questions += 1
        received = controller_pb2.Received.FromString(EncodedEnvelope.FromString(raw).payload)
        assert list(received.workers) == self.workers
        self.say_have(question=received.question)
        known = dict(zip(received.workers, received.replies, strict=True))
        self.stream.extend(self.kept.waiting(known))
        self.say_have(question=received.question, all_sent=True)

    def say_have(self, **fields):
        have = controller_pb2.Have(node=self.name, **fields)
        self.stream.append(envelope(EnvelopeKind.HAVE, have.SerializeToString()))


class Cluster:
    """Some nodes, of two ranks each, and the client of a session on all of them."""

    def __init__(self, count):
        self.nodes = {f"n{i}": Node(f"n{i}", [2 * i, 2 * i + 1]) for i in range(count)}
        shares = tuple(
            NodeShare(node.name, tuple(node.workers), (0, 1), ("cpu", "cpu"))
            for node in self.nodes.values()
        )
        self.session = SessionTable(
            session=7,
            name="s",
            owner="me",
            num_workers=2 * count,
            num_groups=1,
            ccl="",
            transfer_key=b"",
            created=0.0,
            deadline=0.0,
            shares=shares,
        )
        self.most = 0
        self.connect()

    def connect(self):
        self.outbox = ClientOutbox(
            self.session, lambda node, raw: self.nodes[node].asked(raw), MOST
        )

    def deliver(self, *names):
        """Lets the controller take what came from nodes, until nothing more comes."""
        chosen = [self.nodes[name] for name in names or self.nodes]
        while any(node.stream for node in chosen):
            for node in chosen:
                while node.stream:
                    self._take(node, node.stream.popleft())

    def _take(self, node, raw):
        received = EncodedEnvelope.FromString(raw)
        if received.kind == EnvelopeKind.REPLY:
            self.outbox.reply(node.name, received.worker_plus_one - 1, received.first_seq, raw)
        else:
            self.outbox.have(node.name, raw, received.payload)
        self.most = max(self.most, self.outbox.nbytes)

    def read(self):
        """What the client reads in the end: the replies' numbers by worker, and nodes' HAVE."""
        numbers, have = {}, []
        while taken := self.outbox.take():
            for raw in taken:
                received = EncodedEnvelope.FromString(raw)
                if received.kind == EnvelopeKind.REPLY:
                    numbers.setdefault(received.worker_plus_one - 1, []).append(received.first_seq)
                else:
                    have.append(controller_pb2.Have.FromString(received.payload).node)
            self.deliver()
        return numbers, have


@pytest.fixture
def cluster():
    return Cluster(3)


def answer_all(cluster, count, begin=1):
    for number in range(begin, begin + count):
        for node in cluster.nodes.values():
            for worker in node.workers:
                node.answer(worker, number)


def test_replies_of_all_nodes_together_wait_up_to_the_limit(cluster):
    """And a client that reads late gets each of them once and in order, whatever was dropped."""
    answer_all(cluster, 40)
    cluster.deliver()
    assert cluster.most <= MOST
    numbers, have = cluster.read()
    assert numbers == {worker: list(range(1, 41)) for worker in range(6)}
    assert have == []
    assert cluster.most <= MOST


def test_replies_that_come_meanwhile_wait_for_those_before(cluster):
    """Also those that were under way when the node was asked."""
    answer_all(cluster, 10)
    cluster.deliver()
    for _ in range(5):
        cluster.outbox.take()
    answer_all(cluster, 10, begin=11)
    numbers, _ = cluster.read()
    for worker in range(6):
        assert numbers[worker] == list(range(21 - len(numbers[worker]), 21))


def test_nodes_are_asked_one_after_the_other(cluster):
    """So what they send fits in; a node is asked again only for what was dropped of it."""
    answer_all(cluster, 40)
    cluster.deliver()
    assert sum(node.questions for node in cluster.nodes.values()) == 0
    while cluster.outbox.nbytes > MOST // 2:
        cluster.outbox.take()
    assert sum(node.questions for node in cluster.nodes.values()) == 1


def test_a_node_that_lost_its_connection_is_asked_again(cluster):
    """Its answer was lost with that, and the client has read everything else already."""
    answer_all(cluster, 20)
    cluster.deliver()
    while cluster.outbox.take():
        pass
    (asked,) = [node for node in cluster.nodes.values() if node.questions]
    asked.stream.clear()
    cluster.outbox.returned(asked.name)
    assert asked.questions == 2
    cluster.deliver()
    numbers, _ = cluster.read()
    assert {worker: each[-1] for worker, each in numbers.items()} == dict.fromkeys(range(6), 20)


def test_what_a_node_has_is_told_later_where_there_was_no_room(cluster):
    """A client that comes back waits for that of all nodes before it sends commands."""
    answer_all(cluster, 40)
    cluster.deliver()
    cluster.connect()
    for node in cluster.nodes.values():
        node.say_have()
        node.stream.extend(node.kept.waiting())
    cluster.deliver()
    numbers, have = cluster.read()
    assert sorted(set(have)) == ["n0", "n1", "n2"]
    assert numbers == {worker: list(range(1, 41)) for worker in range(6)}


def test_an_answer_to_a_former_connection_means_nothing(cluster):
    """What it sends again may begin behind what this client has."""
    answer_all(cluster, 40)
    cluster.deliver()
    while cluster.outbox.nbytes > MOST // 2:
        cluster.outbox.take()
    former = {name: list(node.stream) for name, node in cluster.nodes.items()}
    assert any(former.values())
    for node in cluster.nodes.values():
        node.stream.clear()
    cluster.connect()
    for node in cluster.nodes.values():
        node.stream.extend(node.kept.waiting())
        node.stream.extend(former[node.name])
    cluster.deliver()
    numbers, _ = cluster.read()
    for worker in range(6):
        news = [
            n for at, n in enumerate(numbers[worker]) if n > max(numbers[worker][:at], default=0)
        ]
        assert news == list(range(1, 41))


def test_a_reply_that_is_larger_than_the_limit_comes_alone(cluster):
    """Each reply can be read, whatever its size."""
    node = cluster.nodes["n0"]
    for number in (1, 2):
        raw = envelope(EnvelopeKind.REPLY, bytes(3 * MOST), worker=0, first_seq=number)
        node.kept.add(0, number, raw)
        node.stream.append(raw)
    cluster.deliver()
    assert cluster.read()[0] == {0: [1, 2]}
