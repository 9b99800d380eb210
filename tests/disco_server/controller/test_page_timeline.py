"""What the dashboard's timeline says of a rank's last seconds."""

from __future__ import annotations

import zlib

import pytest

from disco_client.wire.reports import FlightCopy, Inspection, RankReport
from disco_server.controller.page_timeline import PARTS, Stretch, timeline
from disco_server.observe.flight import FlightRecorder

SECONDS = 10.0
SPANS = 500
END = 1_000_000_000_000
BEGIN = END - round(SECONDS * 1e9)
STRETCH = Stretch(END, SECONDS, SPANS)


@pytest.fixture
def clock(monkeypatch):
    """The recorder's time, in seconds of the timeline since its beginning."""
    now = [BEGIN]

    def go(seconds):
        now[0] = BEGIN + round(seconds * 1e9)

    monkeypatch.setattr("disco_server.observe.flight.monotonic_ns", lambda: now[0])
    monkeypatch.setattr("disco_server.observe.flight._now", lambda: now[0])
    return go


def told(*recorders, stretch=STRETCH):
    reports = []
    for worker, recorder in enumerate(recorders):
        raw, emptied = recorder.copy()
        copied = FlightCopy(zlib.compress(raw), emptied)
        reports.append(RankReport(worker, "here", 1, flight=copied))
    return timeline(Inspection(1, "s", len(reports), tuple(reports), ()), stretch)


def record(recorder, clock, seq, start, end, name=""):
    clock(start)
    recorder.begin(seq)
    recorder.kinds[seq % len(recorder.kinds)] = recorder.label_of(3, name or f"f{seq}")
    if end is not None:
        clock(end)
        recorder.stamp(seq)


def test_a_long_command_is_a_span_of_its_own(clock):
    """With its function, its number and its times in microseconds."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, 1.0, 1.5, "short")
    record(recorder, clock, 2, 2.0, 4.0, "long")
    found = told(recorder)
    assert [each["name"] for each in found["functions"]] == ["long", "short"]
    assert [each["seconds"] for each in found["functions"]] == [2.0, 0.5]
    (rank,) = found["ranks"]
    assert rank["spans"] == [[1_000_000, 500_000, 1, 1, 1], [2_000_000, 2_000_000, 0, 1, 2]]


def test_however_many_commands_there_are_the_answer_is_bounded(clock):
    """What is too short to be seen is put together, under what took most of it."""
    recorder = FlightRecorder()
    for seq in range(1, 9_001):
        start = seq / 1000
        record(recorder, clock, seq, start, start + 0.0009, "rare" if seq % 4 == 0 else "often")
    found = told(recorder, stretch=Stretch(END, SECONDS, 50))
    (rank,) = found["ranks"]
    assert 20 < len(rank["spans"]) <= 2 * 50
    assert {span[2] for span in rank["spans"]} == {0}
    assert sum(span[3] for span in rank["spans"]) == 9_000
    assert found["functions"][0]["name"] == "often"
    assert [each["count"] for each in found["functions"]] == [6_750, 2_250]


def test_names_are_bounded_too(clock):
    """A session may call thousands of functions; the last ones are counted as others."""
    recorder = FlightRecorder()
    for seq in range(1, 301):
        record(recorder, clock, seq, seq / 100, seq / 100 + 0.001)
    names = [each["name"] for each in told(recorder)["functions"]]
    assert len(names) == 101
    assert "others" in names


def test_one_that_still_runs_reaches_to_the_end(clock):
    """And one from before begins where the time begins."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, -3.0, 1.0)
    record(recorder, clock, 2, 9.0, None)
    (rank,) = told(recorder)["ranks"]
    assert [span[:2] for span in rank["spans"]] == [[0, 1_000_000], [9_000_000, 1_000_000]]


def collective(recorder, clock, seq, entered, met, left):
    record(recorder, clock, seq, entered, None, "allreduce")
    form = recorder.describe("allreduce(sum)", "float32", 4, (0, 1), (250_000,))
    recorder.enter(form, seq, seq, 0)
    if met is not None:
        clock(met)
        recorder.meet()
        clock(left)
        recorder.leave()
    clock(left)
    recorder.stamp(seq)


def test_waiting_for_others_and_bandwidth_are_told(clock):
    """A rank waits until all have come, and moves its bytes from then on."""
    recorder = FlightRecorder()
    collective(recorder, clock, 1, 2.0, 5.0, 6.0)
    found = told(recorder)
    assert found["ranks"][0]["waits"] == [[2_000_000, 3_000_000]]
    (operation,) = found["collectives"]
    assert operation == {
        "name": "allreduce(sum)",
        "count": 1,
        "bytes": 1_000_000,
        "seconds": 1.0,
        "wait_s": 3.0,
        "bytes_per_s": 1_000_000,
    }
    parts = found["bandwidth"]
    assert len(parts) == PARTS
    assert set(parts[100:120]) == {1_000_000}
    assert sum(parts) * SECONDS / PARTS == pytest.approx(1_000_000, rel=1e-3)


def test_where_no_rank_noted_when_all_had_come_it_is_when_the_last_came(clock):
    """Small collectives do not take the time to note it."""
    first, second = FlightRecorder(), FlightRecorder()
    collective(first, clock, 1, 1.0, None, 4.0)
    collective(second, clock, 1, 3.0, None, 4.0)
    found = told(first, second)
    assert [rank["waits"] for rank in found["ranks"]] == [[[1_000_000, 2_000_000]], []]
    assert found["collectives"][0]["seconds"] == 2.0


def test_what_was_before_is_left_out_and_damage_is_no_harm(clock):
    """A rank's own code may have written into its records."""
    recorder = FlightRecorder()
    record(recorder, clock, 1, -20, -10)
    assert told(recorder)["ranks"][0]["spans"] == []
    damaged = Inspection(1, "s", 1, (RankReport(0, "here", 1, flight=FlightCopy(b"no zlib")),), ())
    assert timeline(damaged, STRETCH)["ranks"] == []
