"""What a node counts of its ranks' collectives."""

from __future__ import annotations

import pytest

from disco_client.tracing.ring import COLLECTIVES
from disco_server.observe.flight import FlightRecorder
from disco_server.observe.rank_memory import RankMemory
from disco_server.worker.counters import CollectiveCounters, size_of


@pytest.fixture
def rank():
    """A rank's memory, and a recorder that writes into it."""
    memory = RankMemory()
    yield memory, FlightRecorder(memory.fd)
    memory.close()


def counts(counters):
    """How many of each kind were timed."""
    return {key: buckets.count for key, buckets in counters.seconds.items()}


def enter(recorder, form, number):
    recorder.enter(form, number, 1, 0)


def test_each_collective_is_counted_once_and_when_it_is_over(rank):
    """However often somebody looks."""
    memory, recorder = rank
    small = recorder.describe("allreduce(sum)", "float32", 4, (0, 1), (100,))
    large = recorder.describe("broadcast", "float32", 4, (0, 1), (1 << 20,))
    counters = CollectiveCounters()
    counters.look([memory])
    for number in range(1, 4):
        enter(recorder, small, number)
        recorder.leave()
    enter(recorder, large, 4)
    for _ in range(2):
        counters.look([memory])
        assert counts(counters) == {("allreduce", "4KiB"): 3}
    recorder.meet()
    recorder.leave()
    counters.look([memory])
    counters.look([memory])
    assert counts(counters) == {("allreduce", "4KiB"): 3, ("broadcast", "16MiB"): 1}
    assert counters.missed == 0


def test_what_was_overwritten_is_counted_as_missed(rank):
    """So that a rate is never silently too low."""
    memory, recorder = rank
    form = recorder.describe("barrier", "", 0, (0, 1), ())
    counters = CollectiveCounters()
    for number in range(COLLECTIVES + 100):
        enter(recorder, form, number)
        recorder.leave()
    counters.look([memory])
    assert counts(counters)["barrier", "0"] + counters.missed == COLLECTIVES + 100
    assert counters.missed > 0


def test_a_rank_that_is_gone_is_forgotten_and_its_counts_stay(rank):
    """A counter never falls."""
    memory, recorder = rank
    form = recorder.describe("barrier", "", 0, (0, 1), ())
    enter(recorder, form, 1)
    recorder.leave()
    counters = CollectiveCounters()
    counters.look([memory])
    counters.look([])
    assert counts(counters) == {("barrier", "0"): 1}


@pytest.mark.parametrize(
    ("nbytes", "name"), [(0, "0"), (1, "4KiB"), (4096, "4KiB"), (4097, "64KiB"), (1 << 40, "more")]
)
def test_sizes_fall_into_few_classes(nbytes, name):
    """Each with its upper bound for a name."""
    assert size_of(nbytes) == name
