"""Answers to MPI's ranks without any I/O; what real ranks make of them is in test_pmi."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.pmi import PmiExchange, map_processes


class Conversation:
    """An exchange of two ranks, and everything it said."""

    def __init__(self):
        self.said = []
        self.aborts = []
        self.exchange = PmiExchange(
            ranks=(0, 1),
            nodes=[[0, 1]],
            kvsname="disco-test",
            send=lambda rank, data: self.said.append((rank, data.decode().strip())),
            on_abort=lambda rank, why: self.aborts.append((rank, why)),
        )

    def hear(self, rank, text):
        barrier = next(self.exchange.receive(rank, f"{text}\n".encode()), None)
        said, self.said = self.said, []
        return barrier, said


@pytest.fixture
def talk():
    return Conversation()


def test_a_barrier_frees_all_its_ranks_at_once(talk):
    """The last one to come brings what to exchange, and what comes of that lets everybody go."""
    talk.hear(0, "cmd=put kvsname=disco-test key=a value=one two")
    assert talk.hear(0, "cmd=barrier_in") == (None, [])
    barrier, said = talk.hear(1, "cmd=barrier_in")
    assert barrier == ("pmi-0", {"a": b"one two"})
    assert said == []
    talk.exchange.met({**barrier.puts, "b": b"far"})
    assert sorted(talk.said) == [(rank, "cmd=barrier_out rc=0") for rank in (0, 1)]
    talk.said.clear()
    assert talk.hear(1, "cmd=get key=b")[1] == [(1, "cmd=get_result rc=0 msg=success value=far")]


def test_lines_come_in_any_pieces(talk):
    """What is no whole line yet waits for its end, and several lines are answered in turn."""
    sent = b"cmd=get_appnum\ncmd=get_universe_size\ncmd=finalize\n"
    for at in range(len(sent)):
        assert list(talk.exchange.receive(0, sent[at : at + 1])) == []
    one_by_one, talk.said = talk.said, []
    assert list(talk.exchange.receive(1, sent)) == []
    assert [text for _, text in talk.said] == [text for _, text in one_by_one]
    assert len(one_by_one) == 3


def test_a_request_of_several_lines_gets_one_answer(talk):
    """Spawning is not offered, and its lines are not taken for requests."""
    for line in ("mcmd=spawn", "nprocs=1", "cmd=get_appnum"):
        assert talk.hear(0, line) == (None, [])
    assert talk.hear(0, "endcmd")[1] == [(0, "cmd=spawn_result rc=-1 msg=unknown_command")]


def test_a_rank_that_is_done_may_leave(talk):
    """After finalize or abort the end of the line is no news; before, it is."""
    talk.hear(0, "cmd=finalize")
    assert talk.exchange.is_done(0)
    talk.exchange.left(0)
    assert talk.aborts == []
    talk.exchange.left(1)
    assert talk.aborts == [(1, "rank 1 ended before it finalized MPI")]


def test_whoever_comes_to_a_broken_barrier_is_sent_on(talk):
    """A rank that is gone cannot come, so nobody waits for it."""
    talk.exchange.left(1)
    assert talk.hear(0, "cmd=barrier_in") == (None, [(0, "cmd=barrier_out rc=-1")])


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ([[0]], "(vector,(0,1,1))"),
        ([[0, 1], [2, 3]], "(vector,(0,2,2))"),
        ([[0], [1, 2, 3]], "(vector,(0,1,1),(1,1,3))"),
        ([[0], [1], [2]], "(vector,(0,3,1))"),
        ([[0, 2], [1, 3]], "(vector,(0,2,1),(0,2,1))"),
        ([[2, 3], [0, 1]], "(vector,(1,1,2),(0,1,2))"),
    ],
)
def test_layouts_are_described(nodes, text):
    """Runs of consecutive ranks become triples, even and uneven nodes alike."""
    assert map_processes(nodes) == text


def test_layouts_have_limits():
    """A layout too ragged for one value is refused with a way out."""
    nodes = [list(range(node, 400, 2)) for node in range(2)]
    with pytest.raises(ConfigError, match="consecutive"):
        map_processes(nodes)
