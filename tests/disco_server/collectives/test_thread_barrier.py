"""Rounds of threads: who acts, who waits, and how a round ends that nobody completes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from disco_server.collectives.thread_barrier import ThreadBarrier
from disco_server.collectives.types import UnavailableError

N = 4
ROUNDS = 500


def test_the_last_one_acts_for_all():
    """Once a round, with what all have brought; everybody gets what that returned."""
    barrier = ThreadBarrier(N)
    acted: list[int] = []

    def act(brought: list[int]) -> int:
        acted.append(threading.get_ident())
        return sum(brought)

    def run(place: int) -> list[int]:
        return [barrier.meet(place, place + 10 * number, act) for number in range(ROUNDS)]

    with ThreadPoolExecutor(N) as threads:
        answers = list(threads.map(run, range(N)))

    assert answers == [[6 + 40 * number for number in range(ROUNDS)]] * N
    assert len(acted) == ROUNDS


def test_what_fails_fails_for_all_and_the_next_round_is_like_any():
    """Nobody is left to wait for a round that the last one could not finish."""
    barrier = ThreadBarrier(N)

    def fail(_brought: list[int]) -> None:
        raise MemoryError("no room")

    def run(place: int) -> int:
        with pytest.raises(MemoryError, match="no room"):
            barrier.meet(place, place, fail)
        return barrier.meet(place, place, sum)

    with ThreadPoolExecutor(N) as threads:
        assert list(threads.map(run, range(N))) == [6] * N


def test_what_was_brought_is_not_kept():
    """Arrays of a round that is over are their owners' alone."""
    barrier = ThreadBarrier(1)
    barrier.meet(0, "large", len)

    assert barrier._brought == [None]


def test_who_comes_without_waiting_may_look_whether_it_is_over():
    """Also the last one, which ends the round for those who sleep."""
    barrier = ThreadBarrier(2)
    barrier.come(0, 1, sum)
    assert not barrier.is_over(0)
    assert barrier.absent(0) == [1]

    assert barrier.meet(1, 2, sum) == 3
    assert barrier.is_over(0)
    assert barrier.result(0) == 3
    assert barrier.absent(0) == []

    with ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(barrier.meet, 0, 5, sum)
        barrier.come(1, 6, sum)
        assert asleep.result(20) == 11


def test_closing_wakes_everybody():
    """Those who sleep, those who look, and those who come later."""
    barrier = ThreadBarrier(3)
    with ThreadPoolExecutor(1) as threads:
        asleep = threads.submit(barrier.meet, 0, None, len)
        barrier.come(1, None, len)
        barrier.close()
        barrier.close()
        for act in (
            lambda: asleep.result(20),
            lambda: barrier.is_over(1),
            lambda: barrier.result(1),
            lambda: barrier.come(2, None, len),
        ):
            with pytest.raises(UnavailableError, match="session ended"):
                act()


def test_who_is_woken_before_the_end_sleeps_on_or_gives_way():
    """As it likes; the round ends for it all the same when the last one has come."""
    barrier, gives_way = ThreadBarrier(3), threading.Event()

    def patient() -> int:
        return barrier.meet(0, 1, sum)

    def impatient() -> bool:
        return barrier.come_and_wait(1, 2, sum, gives_way.is_set)

    with ThreadPoolExecutor(2) as threads:
        waiting, giving_way = threads.submit(patient), threads.submit(impatient)
        gives_way.set()
        while not giving_way.done():
            barrier.wake()
        assert not giving_way.result()
        assert not barrier.is_over(1)
        barrier.come(2, 3, sum)
        assert waiting.result() == 6
    assert barrier.is_over(1)
    assert barrier.result(1) == 6
