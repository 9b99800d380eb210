"""Uneven parts between GPUs, and teams of GPUs, with the stand-in as the library."""

from __future__ import annotations

import device_ranks
import numpy as np
import pytest

from disco_server.collectives.types import CommunicatorLost, MismatchError, ReduceOp

SUM = ReduceOp.SUM

LINES = {
    "axis 0": [[0, 2], [1, 3]],
    "three and one": [[2, 0, 3], [1]],
    "one outside": [[3, 1, 0]],
}
every_line = pytest.mark.parametrize("lines", LINES.values(), ids=LINES)


def few(dtype, op):
    """What a GPU knows of one dtype of each kind."""
    kinds = ("bool", "int32", "float16", "bfloat16", "float32", "complex64")
    return dtype.name in kinds and device_ranks.known_on_device(dtype, op)


@every_line
def test_teams_of_the_standin(device_ranks, lines):
    """Everything is moved and combined as on the host, in parts of all kinds."""
    ranks = device_ranks(4, groups=1)
    assert ranks.run("team_reductions", lines=lines, knows=few) == [[]] * 4
    assert ranks.run("team_moves", lines=lines) == [[]] * 4
    assert ranks.run("team_shapes", lines=lines) == [[]] * 4


def test_received_bytes_on_the_standin(device_ranks):
    """They are what the definitions say, as on the host."""
    for seen in device_ranks(4, groups=1).run("team_bytes", lines=[[3, 0, 1], [2]]):
        for name, of_team, of_all, want in seen:
            assert of_team == of_all == want, name


@pytest.mark.parametrize("version", [23203, 21703], ids=["splits", "unique ids"])
def test_teams_of_the_standin_with_any_version(device_ranks, monkeypatch, version):
    """By splitting where that is possible, else with unique ids that go over the host."""
    monkeypatch.setenv("STANDIN_NCCL_VERSION", str(version))
    ranks = device_ranks(4, groups=1)
    assert ranks.run("in_turns") == [[]] * 4


def test_teams_that_were_there_before_the_standin(device_ranks):
    """They take arrays on GPUs as soon as the library is started, and host arrays as ever."""
    ranks = device_ranks(4, groups=1, start=False)

    def add(rank, *, on_gpu):
        rank.flat.position += 1
        team = rank.flat.teams.make([[0, 3], [1]])
        if team is None:
            return None
        total = np.full(3, rank.rank + 1.0)
        total = rank.arrays.from_host(total) if on_gpu else total
        team.allreduce(total, total, SUM)
        return (rank.arrays.to_host(total) if on_gpu else total).tolist()

    sums = [[5.0] * 3, [2.0] * 3, None, [5.0] * 3]
    assert ranks.each(lambda rank: add(rank, on_gpu=False)) == sums
    refused = ranks.each(lambda rank: add(rank, on_gpu=True))
    assert [type(each) for each in refused] == [
        MismatchError,
        MismatchError,
        type(None),
        MismatchError,
    ]
    ranks.start()
    assert ranks.each(lambda rank: add(rank, on_gpu=True)) == sums
    assert ranks.each(lambda rank: add(rank, on_gpu=False)) == sums


def test_a_split_that_fails_loses_the_standin(device_ranks):
    """Nothing goes on with the library, and every rank is told which command it was."""
    ranks = device_ranks(2, groups=1)

    def make(rank):
        rank.flat.position += 1
        if rank.rank:
            world = rank.watches[0]._comms[0]
            world.abort()
        rank.flat.teams.make([[0, 1]])

    errors = ranks.each(make)
    assert [type(each) for each in errors] == [CommunicatorLost] * 2
    assert "worker 1: make_teams of command #0 failed in NCCL 2.32.3" in str(errors[1])


def test_teams_made_while_the_standin_works_wait_for_it(device_ranks):
    """A split while operations of all workers are under way may never end, says NCCL."""
    ranks = device_ranks(2, groups=1)

    def act(rank):
        whole = rank.arrays.from_host(np.full(1000, rank.rank + 1.0))
        rank.flat.world.allreduce(whole, whole, SUM)
        team = rank.flat.teams.make([[0, 1]])
        team.allreduce(whole, whole, SUM)
        return rank.arrays.to_host(whole)[[0, -1]].tolist()

    assert ranks.each(act) == [[6.0, 6.0]] * 2


def test_failures_end_collectives_of_teams_of_the_standin(device_ranks):
    """A member that fails before ends it for its peers; then the team works again."""
    ranks = device_ranks(4, groups=1)
    assert [answer[1:] for answer in ranks.run("failing_member", size=900)] == [
        [6300.0, [0.0, 1.0, 2.0, 3.0]]
    ] * 4
    for case in ("counts", "root", "dtype"):
        answers = ranks.run("odd_member", case=case)
        assert answers.pop(1) == []
        assert answers == [answers[0]] * 3
        assert answers[0][2:] == [True, [0.0, 2.0, 3.0]]
