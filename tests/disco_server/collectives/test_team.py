"""Collectives of teams: four processes, and four threads; whole sessions on a stand-in GPU."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.types import MismatchError, ReduceOp

MESH_AXES = {"axis 0": [[0, 2], [1, 3]], "axis 1": [[0, 1], [2, 3]]}
LINES = MESH_AXES | {
    "three and one": [[2, 0, 3], [1]],
    "one outside": [[3, 1, 0]],
    "all": [[1, 3, 2, 0]],
}
every_line = pytest.mark.parametrize("lines", LINES.values(), ids=LINES)


@every_line
def test_reductions_of_every_dtype(any_ranks, lines):
    """Every dtype and operation gives what numpy gives, in equal, uneven and empty parts."""
    assert any_ranks.run("team_reductions", lines=lines) == [[]] * 4


@every_line
def test_moves_of_every_kind_of_dtype(any_ranks, lines):
    """Every part comes to its place, from and to every root, in place and apart."""
    assert any_ranks.run("team_moves", lines=lines) == [[]] * 4


@every_line
def test_shapes_do_not_matter(any_ranks, lines):
    """Strided and overlapping arrays work as they do among all workers."""
    assert any_ranks.run("team_shapes", lines=lines) == [[]] * 4


@every_line
def test_received_bytes_are_those_of_the_definitions(any_ranks, lines):
    """Each operation adds what it needs from others, refused ones nothing."""
    answers = any_ranks.run("team_bytes", lines=lines)
    inside = [rank for line in lines for rank in line]
    for rank, seen in enumerate(answers):
        if rank not in inside:
            assert len(seen) == 1
            continue
        assert {name for name, *_ in seen} >= {"allgather", "all_to_all", "gather", "barrier"}
        for name, of_team, of_all, want in seen:
            assert of_team == of_all == want, name


def test_the_same_lines_are_the_same_team(any_ranks):
    """Also when asked for among other lines; the order of the members is part of it."""
    for rank, answer in enumerate(any_ranks.run("made_again")):
        same, found_among_others, outside, turned_differs, members, place, out = answer
        assert same
        assert found_among_others == (rank % 2 == 1)
        assert outside == (rank % 2 == 0)
        assert turned_differs
        assert members == ([2, 0] if rank % 2 == 0 else [3, 1])
        assert members[place] == rank
        assert out == members


def test_wrong_and_different_lines_are_refused(any_ranks):
    """Wrong ones before anybody enters, different ones on all ranks in the same words."""
    answers = any_ranks.run("odd_lines")
    assert [answer[:-1] for answer in answers] == [answers[0][:-1]] * 4
    *alone, odd, words, _ = answers[0]
    assert [text.split(",")[0] for text in alone] == [
        "worker 1 is in two places of the teams [[0",
        "worker 4 of a team is not one of 4 workers",
        "a team needs a worker",
        "worker -1 of a team is not one of 4 workers",
        "expected lists of workers",
        "expected lists of workers",
    ]
    assert odd == [2]
    assert "worker 2 brought make_teams of [[0, 3]] (command" in words
    assert "workers 0, 1 and 3 brought make_teams of [[0, 3], [1, 2]] (command" in words
    assert [answer[-1] for answer in answers] == [[3]] * 4


@pytest.mark.parametrize("failing", [0, 3])
def test_a_rank_that_fails_before_ends_the_making_for_all(any_ranks, failing):
    """Those who wait learn who failed and have no channel; made again, the teams work."""
    answers = any_ranks.run("failing_maker", failing=failing)
    line = [failing, (failing + 3) % 4, (failing + 1) % 4]
    for rank, (outcome, channels, total) in enumerate(answers):
        assert outcome == ([] if rank == failing else [[failing], "make_teams"])
        assert channels == (rank in line)
        assert total == [sum(line) if rank in line else rank]


@pytest.mark.parametrize("broken", [0, 2])
def test_a_rank_that_cannot_build_its_end_leaves_nobody_with_a_channel(any_ranks, broken):
    """All raise the same reason, and the next attempt succeeds."""
    answers = any_ranks.run("broken_maker", broken=broken)
    assert [answer[:-1] for answer in answers] == [answers[0][:-1]] * 4
    odd, words, channels, _ = answers[0]
    assert odd == [broken]
    assert "its end could not be built: MemoryError: no room" in words
    assert channels == 0
    assert [answer[-1][0] for answer in answers] == [
        rank if rank == 2 - broken else 4 + broken for rank in range(4)
    ]


@pytest.mark.parametrize("size", [3, 100_000])
def test_a_member_that_fails_before_ends_the_collective_of_its_team(any_ranks, size):
    """Its peers learn who failed, another team runs, and then all work again."""
    answers = any_ranks.run("failing_member", size=size)
    assert [answer[0] for answer in answers] == [
        [[2], "allgather"],
        [7.0 * size],
        [],
        [7.0 * size],
    ]
    assert [answer[1:] for answer in answers] == [[7.0 * size, [0.0, 1.0, 2.0, 3.0]]] * 4


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("counts", "counts [1, 2, 2]"),
        ("table", "counts [[1, 0, 2], [0, 0, 0], [1, 1, 2]]"),
        ("root", "destination float64[9], root 1 (command"),
        ("no root", "the root 3 is not one of the 3 members"),
        ("too few", "there are 3 members, but 2 counts"),
        ("negative", "counts must be from 0 to"),
        ("no numbers", "the counts must be integers, one for each member"),
        ("no rows", "the counts must be rows of integers"),
        ("square", "the counts must be 3 rows of 3 numbers"),
        ("source", "the source float64[9] should have 2 elements"),
        ("destination", "the destination float64[5] should have 2 elements"),
        ("nothing", "the source must be an array, not None"),
        ("nowhere", "the destination must be an array, not None"),
        ("dtype", "worker 2 brought allreduce(sum) of int32[3]"),
        ("read-only", "is read-only"),
    ],
)
def test_an_odd_member_is_refused_on_every_member(any_ranks, case, words):
    """All members raise the same words and nothing was touched; the next call works."""
    answers = any_ranks.run("odd_member", case=case)
    assert answers.pop(1) == []
    assert answers == [answers[0]] * 3
    odd, said, untouched, after = answers[0]
    assert 2 in odd
    assert words in said
    assert untouched
    assert after == [0.0, 2.0, 3.0]


def test_members_send_to_each_other(any_ranks):
    """By their ranks in the team."""
    assert any_ranks.run("team_transfers") == [[1.0, 1.0], [3.0, 3.0], [], [0.0, 0.0]]


def test_only_other_members_can_be_sent_to(any_ranks):
    """Whoever is meant by mistake is told, and nobody waits."""
    first, lone, third, outside = any_ranks.run("wrong_peers")
    assert first[0] == "-1 is not the rank of one of 2 members"
    assert len(first) == len(lone) == len(third) == 3
    assert "worker 1 is not another one" in lone[2]
    assert outside == []


def test_teams_and_the_world_take_turns(any_ranks):
    """Data of one never meets that of another, whatever its size."""
    assert any_ranks.run("in_turns") == [[]] * 4


@pytest.mark.parametrize("seed", range(3))
def test_random_failures_never_hang_anyone(any_ranks, seed):
    """Teams are made and used while ranks fail; all members run the same, and all end."""
    answers = any_ranks.run("team_log", seed=seed, commands=120)
    made = [[line for line in answer if "made" in line] for answer in answers]
    assert made == [made[0]] * 4
    assert made[0]
    used = [[line for line in answer if "team" in line] for answer in answers]
    for rank, lines in enumerate(used):
        for line in lines:
            members = [int(each) for each in line.partition("(")[2].strip("),").split(",")]
            assert all(line in used[member] for member in members), f"{rank}: {line}"


def test_a_session_of_one_worker_has_teams_of_itself():
    """Every operation is a copy, and wrong calls are refused as ever."""
    groups = LocalGroups(0, LocalWorld(1))
    groups.position = 1
    assert groups.teams.make([]) is None
    team = groups.teams.make([[0]])
    src, dst = np.arange(4.0), np.zeros(4)
    team.allreduce(src, dst, ReduceOp.AVG)
    assert (src == dst).all()
    for act in (team.allgather, team.scatter, team.gather):
        dst[:] = 0
        act(src, dst, [4])
        assert (src == dst).all()
    dst[:] = 0
    team.all_to_all(src, dst, [[4]])
    team.reduce_scatter(dst, src[:], ReduceOp.PROD, [4])
    team.broadcast(src, dst)
    assert dst.tolist() == [0, 1, 2, 3]
    line = np.arange(6.0)
    team.allgather(line[:5], line[1:], [5])
    assert line.tolist() == [0, 0, 1, 2, 3, 4]
    team.barrier()
    with pytest.raises(MismatchError, match="float64\\[4\\] should have 3 elements"):
        team.allgather(src, dst, [3])
    assert team.received_bytes == groups.teams.received_bytes == 0
    assert repr(team) == "<ProcessGroup of workers 0, rank 0>"
    groups.close()
