"""Answers to MPI's ranks without any I/O; what real ranks make of them is in test_pmi."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_server.core.pmi import (
    ClosePmi,
    MeetNodes,
    NotePmi,
    PmiExchange,
    SendPmi,
    map_processes,
)


class Conversation:
    """An exchange of two ranks, which have peers on another node by default."""

    def __init__(self, nodes=((0, 1), (2, 3))):
        self.exchange = PmiExchange(ranks=(0, 1), nodes=nodes, kvsname="disco-test")

    def hear(self, rank, text):
        return self.exchange.receive(rank, f"{text}\n".encode())


def out(status):
    """What lets both ranks out of a barrier."""
    return [SendPmi(rank, f"cmd=barrier_out rc={status}\n".encode()) for rank in (0, 1)]


@pytest.fixture
def talk():
    return Conversation()


def test_a_barrier_frees_all_its_ranks_at_once(talk):
    """The last one to come brings what to exchange, and what comes of that lets everybody go."""
    talk.hear(0, "cmd=put kvsname=disco-test key=a value=one two")
    assert talk.hear(0, "cmd=barrier_in") == []
    assert talk.hear(1, "cmd=barrier_in") == [MeetNodes("pmi-0", {"a": b"one two"})]
    assert talk.exchange.waiting == {0, 1}
    assert talk.exchange.met({"a": b"one two", "b": b"far"}) == out(0)
    answer = b"cmd=get_result rc=0 msg=success value=far\n"
    assert talk.hear(1, "cmd=get key=b") == [SendPmi(1, answer)]


def test_ranks_that_are_all_here_wait_for_no_other_node():
    """What one has put another one gets after the barrier; also after the next one."""
    alone = Conversation(nodes=[[0, 1]])
    for key in ("a", "b"):
        alone.hear(0, f"cmd=put kvsname=disco-test key={key} value={key}{key}")
        assert alone.hear(1, "cmd=barrier_in") == []
        assert alone.hear(0, "cmd=barrier_in") == out(0)
        answer = f"cmd=get_result rc=0 msg=success value={key}{key}\n".encode()
        assert alone.hear(1, f"cmd=get key={key}") == [SendPmi(1, answer)]


def test_nodes_that_do_not_meet_free_the_ranks(talk):
    """With a failure, of which nobody here is to blame."""
    talk.hear(0, "cmd=barrier_in")
    talk.hear(1, "cmd=barrier_in")
    why = "the nodes did not meet in pmi-0: gone"
    assert talk.exchange.not_met("pmi-0", "gone") == [*out(-1), NotePmi(-1, why)]


def test_lines_come_in_any_pieces(talk):
    """What is no whole line yet waits for its end, and several lines are answered in turn."""
    sent = b"cmd=get_appnum\ncmd=get_universe_size\ncmd=finalize\n"
    one_by_one = [
        effect for at in range(len(sent)) for effect in talk.exchange.receive(0, sent[at : at + 1])
    ]
    at_once = talk.exchange.receive(1, sent)
    assert [e.data for e in at_once[:3]] == [e.data for e in one_by_one[:3]]
    assert (one_by_one[3:], at_once[3:]) == ([ClosePmi(0)], [ClosePmi(1)])


def test_what_follows_a_barrier_waits_for_it(talk):
    """A rank that does not wait for its answer gets it first; one that says much is refused."""
    talk.hear(0, "cmd=barrier_in")
    assert len(talk.hear(1, "cmd=barrier_in\ncmd=get_appnum")) == 1
    assert talk.exchange.met({}) == [*out(0), SendPmi(1, b"cmd=appnum rc=0 appnum=0\n")]
    talk.hear(0, "cmd=barrier_in")
    talk.hear(1, "cmd=barrier_in")
    *_, note, close = talk.hear(1, "cmd=get_appnum\n" * 1000)
    assert "goes on before it may leave a barrier" in note.why
    assert close == ClosePmi(1)


def test_a_request_of_several_lines_gets_one_answer(talk):
    """Spawning is not offered, and its lines are not taken for requests."""
    for line in ("mcmd=spawn", "nprocs=1", "cmd=get_appnum"):
        assert talk.hear(0, line) == []
    answer = b"cmd=spawn_result rc=-1 msg=unknown_command\n"
    assert talk.hear(0, "endcmd") == [SendPmi(0, answer)]


def test_a_rank_that_is_done_may_leave(talk):
    """After finalize or abort the end of the line is no news; before, it is."""
    assert talk.hear(0, "cmd=finalize") == [SendPmi(0, b"cmd=finalize_ack rc=0\n"), ClosePmi(0)]
    assert talk.exchange.receive(0, b"") == []
    why = "rank 1 ended before it finalized MPI"
    assert talk.exchange.receive(1, b"") == [NotePmi(1, why), ClosePmi(1)]


@pytest.mark.parametrize("lines", [("barrier_in", "finalize"), ("finalize", "barrier_in")])
def test_nobody_waits_for_a_rank_that_has_finalized(talk, lines):
    """Whichever comes first; a library has all ranks meet before."""
    said = [each for rank, line in enumerate(lines) for each in talk.hear(rank, f"cmd={line}")]
    waiting = lines.index("barrier_in")
    assert SendPmi(waiting, b"cmd=barrier_out rc=-1\n") in said
    (note,) = (each for each in said if isinstance(each, NotePmi))
    assert "finalized MPI" in note.why


def test_whoever_comes_to_a_broken_barrier_is_sent_on(talk):
    """A rank that is gone cannot come, so nobody waits for it."""
    talk.exchange.receive(1, b"")
    assert talk.hear(0, "cmd=barrier_in") == out(-1)[:1]


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
