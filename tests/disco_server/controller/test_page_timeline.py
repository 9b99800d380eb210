"""What the dashboard's timeline says of a rank's last seconds."""

from __future__ import annotations

import zlib

import pytest

from disco_client.wire.reports import Inspection, RankReport
from disco_server.controller.dashboard import PARTS, SECONDS, timeline
from disco_server.observe.flight import FlightRecorder

PART_NS = round(SECONDS * 1e9) // PARTS


@pytest.fixture
def clock(monkeypatch):
    """The recorder's time, in parts of the timeline since its beginning."""
    now = [1_000 * PART_NS]

    def go(part):
        now[0] = 1_000 * PART_NS + round(part * PART_NS)

    monkeypatch.setattr("disco_server.observe.flight.time.monotonic_ns", lambda: now[0])
    monkeypatch.setattr("disco_server.observe.flight._now", lambda: now[0])
    return go


def drawn(recorder):
    raw, emptied = recorder.copy()
    report = RankReport(0, "here", 1, flight=zlib.compress(raw), emptied=emptied)
    found = Inspection(1, "s", 1, (report,), ())
    (rank,) = timeline(found, (1_000 + PARTS) * PART_NS)
    return rank


def record(recorder, clock, seq, start, end):
    clock(start)
    recorder.begin(seq)
    recorder.kinds[seq % len(recorder.kinds)] = recorder.label_of(3, f"f{seq}")
    if end is not None:
        clock(end)
        recorder.stamp(seq)


def test_a_command_fills_the_parts_in_which_it_ran(clock):
    """Parts in which it began or ended are filled as far as it ran in them."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, 10.5, 12.25)
    rank = drawn(recorder)
    assert rank["busy"][9:14] == [0, 0.5, 1, 0.25, 0]
    assert sum(rank["busy"]) == pytest.approx(1.75)
    (longest,) = rank["longest"]
    assert longest["seq"] == 1
    assert longest["seconds"] == pytest.approx(1.75 * PART_NS / 1e9)


def test_one_that_still_runs_reaches_to_the_end(clock):
    """And is said to run."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, PARTS - 2, None)
    rank = drawn(recorder)
    assert rank["busy"][-3:] == [0, 1, 1]
    assert rank["longest"][0]["running"]


def test_waiting_and_moving_are_told_apart(clock):
    """A collective is waiting until all have come, and moving from then on."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, 20, None)
    form = recorder.describe("allreduce(sum)", "float32", 4, (0, 1), (4,))
    recorder.enter(form, 1, 1, 0)
    clock(23)
    recorder.meet()
    clock(24)
    recorder.leave()
    recorder.stamp(1)
    rank = drawn(recorder)
    assert rank["wait"][19:25] == [0, 1, 1, 1, 0, 0]
    assert rank["collective"][19:25] == [0, 0, 0, 0, 1, 0]


def test_what_was_before_is_left_out_and_damage_is_no_harm(clock):
    """A rank's own code may have written into its records."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, -20, -10)
    rank = drawn(recorder)
    assert not any(rank["busy"])
    assert rank["longest"] == []
    damaged = Inspection(1, "s", 1, (RankReport(0, "here", 1, flight=b"no zlib"),), ())
    assert timeline(damaged) == []
