"""What a rank is told of a lost communicator, and whose errors lose it."""

from __future__ import annotations

import threading

import pytest

from disco_server.collectives.loss import Guarded, Loss
from disco_server.collectives.types import CommunicatorLost
from disco_server.observe.flight import FlightRecorder
from disco_server.observe.rank_memory import RankMemory

WORDS = "worker 2: allgather of command #6 failed in MPICH 5.0.2: a cable was pulled"


def test_what_failed_first_is_told_once_and_stays():
    """Every later look says the same, whatever fails then."""
    told = []
    loss = Loss(2, told.append)
    loss.check()
    loss.lose("allgather of command #6", "MPICH 5.0.2", "a cable was pulled")
    loss.lose("broadcast of command #7", "MPICH 5.0.2", "another one")
    for _ in range(2):
        with pytest.raises(CommunicatorLost) as raised:
            loss.check()
        assert str(raised.value) == WORDS
    assert told == [WORDS]


def test_no_command_fails_before_the_loss_is_told():
    """Where telling it ends the process, the process's end is all that is reported."""
    begun, told, seen = threading.Event(), threading.Event(), []

    def tell(_text):
        begun.set()
        told.wait()

    def check():
        try:
            loss.check()
        except CommunicatorLost as error:
            seen.append((told.is_set(), str(error)))

    loss = Loss(2, tell)
    given = ("allgather of command #6", "MPICH 5.0.2", "a cable was pulled")
    threads = [threading.Thread(target=loss.lose, args=given)]
    threads[0].start()
    begun.wait()
    threads.append(threading.Thread(target=check))
    threads[1].start()
    threads[1].join(0.2)
    told.set()
    for thread in threads:
        thread.join()

    assert seen == [(True, WORDS)]


def test_only_errors_of_the_library_are_the_loss():
    """What else a guarded part raises is raised, and what it has and returns is as it was."""

    class Part:
        size = 4

        def move(self, fault):
            if fault:
                raise fault
            return self.size

    def lose(operation, error):
        raise CommunicatorLost(f"{operation}: {error}")

    part = Guarded(Part(), OSError, lose)
    assert (part.size, part.move(None)) == (4, 4)
    with pytest.raises(ValueError, match="mine"):
        part.move(ValueError("mine"))
    with pytest.raises(CommunicatorLost, match="move: a cable was pulled"):
        part.move(OSError("a cable was pulled"))


def test_when_a_communicator_was_lost_is_recorded_once():
    """By the first to notice; a rank that lost none has no such time."""
    silent, late, early = memories = [RankMemory() for _ in range(3)]
    for memory in (early, late):
        FlightRecorder(memory.fd).lose_communicator()
    assert 0 < early.lost_at() < late.lost_at()
    assert silent.lost_at() == 0
    for memory in memories:
        memory.close()
