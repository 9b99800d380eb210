"""What a rank is told of its operations, with the stand-in's failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.nccl_watch import TimeLimits, _Flight
from disco_server.collectives.types import CommunicatorLost, ReduceOp

SUM = ReduceOp.SUM


def allreduce(rank, seq=1):
    rank.flat.position = seq
    array = rank.arrays.from_host(np.ones(10, np.float32))
    rank.flat.world.allreduce(array, array, SUM)
    return array


def settle(rank):
    """What a sync does."""
    rank.arrays.synchronize()
    rank.watches[0].settled()


@pytest.mark.parametrize(
    ("environ", "limits"),
    [
        ({}, TimeLimits(30.0, 0.0)),
        ({"DISCO_SLOW_S": "", "DISCO_NCCL_TIMEOUT_S": ""}, TimeLimits()),
        ({"DISCO_SLOW_S": "2.5", "DISCO_NCCL_TIMEOUT_S": "600"}, TimeLimits(2.5, 600.0)),
        ({"DISCO_SLOW_S": "0", "DISCO_NCCL_TIMEOUT_S": "1e3"}, TimeLimits(0.0, 1000.0)),
    ],
)
def test_limits_are_read_from_the_environment(environ, limits):
    """Whatever is not there, or empty, stays as it is."""
    assert TimeLimits.read(environ) == limits


@pytest.mark.parametrize("name", ["DISCO_SLOW_S", "DISCO_NCCL_TIMEOUT_S"])
@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf", "1e999", "5s"])
def test_what_is_no_number_of_seconds_is_refused(name, text):
    """With the variable's name and what it holds."""
    with pytest.raises(ConfigError, match=f"{name}: expected a number of seconds, got '{text}'"):
        TimeLimits.read({name: text})


def test_an_operation_of_the_standin_that_comes_to_its_end_is_not_mentioned(device_ranks):
    """The watch sleeps while nothing is under way, and wakes for the next."""
    ranks = device_ranks(2, groups=1)

    def act(rank):
        for _ in range(3):
            allreduce(rank)
            settle(rank)
        return rank.failed, rank.slow

    assert ranks.each(act) == [([], [])] * 2


def test_an_error_that_comes_by_itself_ends_the_waits_of_the_standin(device_ranks, monkeypatch):
    """Every rank is told rank, collective, command, version and the library's words, once."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "async:1:2")
    ranks = device_ranks(2, groups=1)

    def act(rank, seq):
        allreduce(rank, seq)
        settle(rank)

    assert ranks.each(lambda rank: act(rank, 5)) == [None, None]
    errors = ranks.each(lambda rank: act(rank, 6))

    for number, (rank, error) in enumerate(zip(ranks.ranks, errors, strict=True)):
        assert isinstance(error, CommunicatorLost)
        assert rank.failed == [str(error)]
        assert str(error).startswith(
            f"worker {number}: allreduce(sum) of command #6 failed in NCCL 2.32.3:"
            " NCCL_ERROR_REMOTE_ERROR: remote process exited or there was a network error"
        )


def test_what_is_done_meanwhile_is_not_blamed_on_the_standin(device_ranks, monkeypatch):
    """An error may be of an operation that began after the watch had looked for what is done."""
    (rank,) = device_ranks(1, groups=1).ranks
    watch = rank.watches[0]

    class Event:
        def __init__(self, *looks):
            self._looks = iter(looks)

        @property
        def done(self):
            return next(self._looks)

    watch.close()  # the test looks itself
    watch._flights.append(_Flight("broadcast", 5, Event(False, True), 0.0))
    watch._flights.append(_Flight("allgather", 6, Event(False), 0.0))
    monkeypatch.setattr(watch, "_ask", lambda: "a cable was pulled")

    assert not watch._look()
    words = "worker 0: allgather of command #6 failed in NCCL 2.32.3: a cable was pulled"
    assert rank.failed == [words]


def test_what_a_wait_has_seen_to_its_end_is_not_blamed_on_the_standin(device_ranks):
    """A device that fails after a sync fails for what was asked of it since."""
    (rank,) = device_ranks(1, groups=1).ranks
    watch = rank.watches[0]

    class Event:
        @property
        def done(self):
            raise RuntimeError("an illegal address")

    watch.close()  # the test looks itself
    watch._flights.append(_Flight("broadcast", 5, Event(), 0.0))
    watch.settled()
    assert watch._look()
    watch._flights.append(_Flight("allgather", 6, Event(), 0.0))
    assert not watch._look()
    (words,) = rank.failed
    assert words.startswith("worker 0: allgather of command #6 failed")


def test_an_operation_of_the_standin_that_hangs_is_given_up(device_ranks, monkeypatch):
    """After the time that a person gave; without one it would be waited for."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "hang:0:1")
    ranks = device_ranks(2, groups=1, start=False)
    ranks.start(limits=TimeLimits(stuck=0.5))

    def hang(rank):
        allreduce(rank, 3)
        settle(rank)

    errors = [str(error) for error in ranks.each(hang)]

    assert errors == [rank.failed[0] for rank in ranks.ranks]
    assert any(
        "allreduce(sum) of command #3 failed in NCCL 2.32.3: it was not done after" in error
        and error.endswith(" s (DISCO_NCCL_TIMEOUT_S)")
        for error in errors
    ), errors


def test_what_takes_long_on_the_standin_is_said_once(device_ranks, eventually, monkeypatch):
    """With the operation and its command; nothing is ended for it."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "hang:0:2")
    ranks = device_ranks(2, groups=1, start=False)
    ranks.start(limits=TimeLimits(slow=0.3))

    def act(rank):
        allreduce(rank, 8)
        settle(rank)
        allreduce(rank, 9)

    assert ranks.each(act) == [None, None]
    for number, rank in enumerate(ranks.ranks):
        eventually(lambda rank=rank: rank.slow)
        assert rank.slow[0].startswith(
            f"worker {number}: allreduce(sum) of command #9 has been under way on the GPU for"
        )
        assert rank.slow[0].endswith(" s; all ranks have entered it")
    threading.Event().wait(0.6)  # two more looks
    assert [len(rank.slow) for rank in ranks.ranks] == [1, 1]
    assert [rank.failed for rank in ranks.ranks] == [[], []]


def test_what_the_standin_refuses_at_once_is_told_too(device_ranks):
    """A rank that cannot begin leaves its peers in what has begun, so nobody may go on."""
    ranks = device_ranks(2, groups=1)

    def act(rank):
        if rank.rank == 1:
            rank.watches[0]._comms[0].abort()
        allreduce(rank, 4)
        settle(rank)

    first, second = ranks.each(act)

    assert str(second).startswith("worker 1: allreduce(sum) of command #4 failed in NCCL 2.32.3: ")
    assert "NCCL_ERROR_INVALID_ARGUMENT" in str(second)
    assert ranks.ranks[1].failed == [str(second)]
    assert "NCCL_ERROR_REMOTE_ERROR" in str(first)


@pytest.mark.parametrize("fault", [MemoryError("no room for a copy"), KeyError(9)])
def test_whatever_goes_wrong_once_the_ranks_of_the_standin_agreed_is_told(
    device_ranks, monkeypatch, fault
):
    """Not only the library's own errors: peers wait in any case."""
    ranks = device_ranks(2, groups=1)
    arrays = ranks.ranks[1].arrays

    def fail():
        raise fault

    def act(rank):
        if rank.rank == 1:
            monkeypatch.setattr(arrays, "enter_comm", fail)
        allreduce(rank, 4)
        settle(rank)

    first, second = ranks.each(act)

    words = f"failed in NCCL 2.32.3: {type(fault).__name__}: {fault}"
    assert str(second) == f"worker 1: allreduce(sum) of command #4 {words}"
    assert ranks.ranks[1].failed == [str(second)]
    assert "NCCL_ERROR_REMOTE_ERROR" in str(first)


def test_a_wait_of_the_standin_before_a_split_is_told_and_does_not_stop_the_watch(
    device_ranks, monkeypatch
):
    """What never ends there is given up, and every rank hears why it has no team."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "hang:1:1")
    ranks = device_ranks(2, groups=1, start=False)
    ranks.start(limits=TimeLimits(0, 0.5))

    def act(rank):
        allreduce(rank, 4)
        rank.flat.teams.make([[0, 1]])

    errors = ranks.each(act)

    assert [type(error) for error in errors] == [CommunicatorLost] * 2
    assert all("of command #4 failed in NCCL 2.32.3: " in str(error) for error in errors)
    assert any("it was not done after" in str(error) for error in errors)


def test_a_lost_communicator_of_the_standin_stays_lost(device_ranks, monkeypatch):
    """Every later operation and every later wait says what was first."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "async:0:1")
    ranks = device_ranks(1, groups=1)

    def act(rank):
        seen = []
        for seq in (1, 2, 3):
            try:
                allreduce(rank, seq)
                settle(rank)
            except CommunicatorLost as error:
                seen.append(str(error))
        return seen

    (seen,) = ranks.each(act)

    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert ranks.ranks[0].failed == seen[:1]


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (KeyError(7), None),
        (KeyError(8), "its error number 8"),
        (ValueError("odd"), "ValueError: odd"),
    ],
)
def test_an_error_of_the_standin_without_a_name_is_told(
    device_ranks, monkeypatch, eventually, raised, words
):
    """Except for the number that only means: not yet."""
    monkeypatch.setenv("STANDIN_NCCL_FAIL", "hang:0:1")
    ranks = device_ranks(1, groups=1, start=False)
    ranks.start(limits=TimeLimits(slow=0.6))
    (rank,) = ranks.ranks

    class Comm:
        """A communicator whose errors nobody has heard of."""

        def check_async_error(self):
            raise raised

        def abort(self):
            pass

    rank.watches[0]._comms.insert(0, Comm())
    ranks.each(allreduce)
    eventually(lambda: rank.failed or rank.slow, what="what the watch says")

    assert [text.partition("NCCL 2.32.3: ")[2] for text in rank.failed] == (
        [words] if words else []
    )


def test_a_closed_watch_lets_its_thread_go(device_ranks, eventually):
    """With and without something under way."""

    def watching():
        return [each for each in threading.enumerate() if each.name.startswith("nccl-watch-")]

    before = set(watching())  # of other tests, whose threads may end meanwhile
    ranks = device_ranks(2, groups=1)
    mine = set(watching()) - before
    assert len(mine) == 2
    for rank in ranks.ranks:
        rank.watches[0].close()

    eventually(lambda: not mine & set(watching()))
