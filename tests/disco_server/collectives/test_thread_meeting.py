"""Rounds of threads: who acts, who waits, and how a round ends that nobody completes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from disco_server.collectives.thread_meeting import ThreadMeeting
from disco_server.collectives.types import UnavailableError

N = 4
ROUNDS = 500


def test_the_last_one_acts_for_all():
    """Once a round, with what all have brought; everybody gets what that returned."""
    meeting = ThreadMeeting(N)
    acted: list[int] = []

    def act(brought: list[int]) -> int:
        acted.append(threading.get_ident())
        return sum(brought)

    def run(place: int) -> list[int]:
        return [meeting.meet(place, place + 10 * number, act) for number in range(ROUNDS)]

    with ThreadPoolExecutor(N) as threads:
        answers = list(threads.map(run, range(N)))

    assert answers == [[6 + 40 * number for number in range(ROUNDS)]] * N
    assert len(acted) == ROUNDS


def test_what_fails_fails_for_all_and_the_next_round_is_like_any():
    """Nobody is left to wait for a round that the last one could not finish."""
    meeting = ThreadMeeting(N)

    def fail(_brought: list[int]) -> None:
        raise MemoryError("no room")

    def run(place: int) -> int:
        with pytest.raises(MemoryError, match="no room"):
            meeting.meet(place, place, fail)
        return meeting.meet(place, place, sum)

    with ThreadPoolExecutor(N) as threads:
        assert list(threads.map(run, range(N))) == [6] * N


def test_what_was_brought_is_not_kept():
    """Arrays of a round that is over are their owners' alone."""
    meeting = ThreadMeeting(1)
    meeting.meet(0, "large", len)

    assert meeting._brought == [None]


def test_who_comes_without_waiting_may_look_whether_it_is_over():
    """Also the last one, which ends the round for those who sleep."""
    meeting = ThreadMeeting(2)
    meeting.come(0, 1, sum)
    assert not meeting.is_over(0)
    assert meeting.absent(0) == [1]

    assert meeting.meet(1, 2, sum) == 3
    assert meeting.is_over(0)
    assert meeting.result(0) == 3
    assert meeting.absent(0) == []

    with ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(meeting.meet, 0, 5, sum)
        meeting.come(1, 6, sum)
        assert asleep.result(20) == 11


def test_closing_wakes_everybody():
    """Those who sleep, those who look, and those who come later."""
    meeting = ThreadMeeting(3)
    with ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(meeting.meet, 0, None, len)
        meeting.come(1, None, len)
        meeting.close()
        meeting.close()
        for act in (
            lambda: asleep.result(20),
            lambda: meeting.is_over(1),
            lambda: meeting.result(1),
            lambda: meeting.come(2, None, len),
        ):
            with pytest.raises(UnavailableError, match="session ended"):
                act()
