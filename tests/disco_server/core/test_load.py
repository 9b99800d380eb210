"""What is kept of the machines of nodes: an hour, in memory that does not grow."""

from __future__ import annotations

import math

import pytest

from disco_server.core.load import KEPT_S, SAMPLE_S, GpuLoad, Load, LoadHistory

SAMPLES = round(KEPT_S / SAMPLE_S)


def filled(count):
    """A history of as many samples, each with its number as the rate."""
    history = LoadHistory()
    for number in range(count):
        history.add(number * SAMPLE_S, Load(number % 2, 0.25, number, 2 * number))
    return history


def test_an_hour_is_kept_in_memory_that_was_there_before():
    """However long a node is there; the oldest samples go first."""
    history = filled(3 * SAMPLES)
    assert history.nbytes == LoadHistory().nbytes < 10_000
    series = history.series(3 * SAMPLES * SAMPLE_S, SAMPLES)
    assert len(series["received_per_s"]) == SAMPLES
    assert series["received_per_s"][0] == 2 * SAMPLES
    assert series["sent_per_s"][-1] == 2 * (3 * SAMPLES - 1)


def test_parts_are_averages_and_gaps_are_shown_as_such():
    """Where no sample came there is nothing, as before a node's first one."""
    history = filled(12)
    series = history.series(12 * SAMPLE_S, 60)
    assert series["cpu"][:-2] == [None] * 58
    assert series["cpu"][-2:] == [pytest.approx(0.5)] * 2
    assert series["received_per_s"][-1] == pytest.approx(8.5)
    assert series["memory"][-1] == pytest.approx(0.25)
    assert history.series(12 * SAMPLE_S + 2 * KEPT_S, 60)["cpu"] == [None] * 60


def test_gpus_are_shown_where_there_are_some():
    """The average of a node's; the newest sample has each."""
    history = LoadHistory()
    history.add(0.0, Load(0.5, 0.5))
    assert set(history.series(1.0, 2)) == {"cpu", "memory", "received_per_s", "sent_per_s"}
    history.add(1.0, Load(0.5, 0.5, gpus=(GpuLoad(1.0, 0.5, 8), GpuLoad(0.5, 0.25, 8))))
    series = history.series(1.0, 2)
    assert history.newest is not None
    assert [gpu.busy for gpu in history.newest.gpus] == [1.0, 0.5]
    assert series["gpu"][-1] == pytest.approx(0.75)
    assert series["gpu_memory"][-1] == pytest.approx(0.375, abs=1e-3)


@pytest.mark.parametrize("odd", [math.nan, math.inf, -1.0, 1e300])
def test_what_no_machine_can_do_is_brought_into_its_limits(odd):
    """A daemon may send anything; what is shown must be numbers."""
    history = LoadHistory()
    history.add(0.0, Load(odd, odd, odd, odd, gpus=(GpuLoad(odd, odd),) * 1000))
    newest = history.newest
    assert newest is not None
    assert len(newest.gpus) == 64
    for share in (newest.cpu, newest.memory, newest.gpu, newest.gpu_memory):
        assert 0.0 <= share <= 1.0
    for rate in (newest.received_per_s, newest.sent_per_s):
        assert math.isfinite(rate)
        assert rate >= 0.0
    assert all(value is not None for values in history.series(0.0, 1).values() for value in values)
