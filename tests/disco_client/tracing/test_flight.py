"""Flight records of several ranks on one axis of time."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
from traces import check_chrome_trace, rows, spans

from disco_client.tracing.clocks import ClockSample
from disco_client.tracing.ring import Flag
from disco_client.tracing.trace import Flight
from disco_client.wire.codec import Action
from disco_client.wire.reports import FlightCopy, Inspection, RankReport
from disco_server.observe.flight import FlightRecorder

OFFSET = 5_000_000_000


def recorded(worker, node, offset=0):
    """A rank's report: one command with a collective, one that failed, one that runs."""
    recorder = FlightRecorder()
    call = recorder.label_of(Action.CALL_PACKED, "step")
    recorder.begin(1)
    recorder.kinds[1] = call
    recorder.enter(recorder.describe("barrier", "", 0, (0, 1), ()), 1, 1, 0)
    recorder.meet()
    recorder.leave()
    recorder.stamp(1)
    recorder.kinds[2] = call | Flag.FAILED
    recorder.stamp(2)
    recorder.kinds[3] = call
    raw, emptied = recorder.copy()
    return RankReport(
        worker,
        node,
        7,
        flight=FlightCopy(zlib.compress(raw), emptied, ClockSample(0, offset, 0)),
    )


def flight(*reports):
    return Flight.of(Inspection(1, "training", len(reports), reports))


def test_the_times_of_a_node_are_brought_to_one_clock():
    """Those that were not taken stay so."""
    (plain,), (moved,) = (flight(recorded(0, "a", offset)).ranks for offset in (0, OFFSET))
    assert moved.commands[0].start_ns - plain.commands[0].start_ns > OFFSET // 2
    assert moved.commands[-1].end_ns == plain.commands[-1].end_ns == 0
    assert moved.collectives[0].met_ns > OFFSET


def test_a_trace_has_a_process_for_each_rank():
    """Commands with what they do, collectives with the wait for others, apart."""
    trace = flight(recorded(0, "a"), recorded(1, "a"), recorded(2, "b")).chrome_trace()
    check_chrome_trace(trace)
    assert list(rows(trace)) == ["rank 0 on a", "rank 1 on a", "rank 2 on b"]
    first, failed, running = spans(trace, "command", 0)
    assert [each["name"] for each in (first, failed, running)] == ["step"] * 3
    assert failed["args"] == {"command": 2, "failed": True}
    assert running["args"] == {"command": 3, "running": True}
    (barrier,), (wait,) = (spans(trace, category, 0) for category in ("collective", "wait"))
    assert first["ts"] <= barrier["ts"] <= barrier["ts"] + barrier["dur"]
    assert barrier["ts"] + barrier["dur"] <= first["ts"] + first["dur"] + 1e-3
    assert wait["dur"] <= barrier["dur"] + 1e-3
    assert min(event["ts"] for event in spans(trace, "command")) == 0


def test_commands_that_were_timed_together_share_their_time():
    """In equal parts, one after the other, and they say so."""
    recorder = FlightRecorder()
    recorder.begin(1)
    for seq in (1, 2, 3, 4):
        recorder.kinds[seq] = recorder.label_of(Action.CALL_PACKED, "f")
    recorder.stamp(4)
    raw, emptied = recorder.copy()
    report = RankReport(0, "a", 7, flight=FlightCopy(zlib.compress(raw), emptied))
    found = spans(flight(report).chrome_trace(), "command")
    assert [span["args"]["timed_together"] for span in found] == [4] * 4
    for before, after in pairwise(found):
        # Times are written in nanoseconds, and a quarter of them may be none.
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"], abs=2e-3)


def test_a_rank_without_records_is_a_row_without_commands():
    """As one that never began."""
    (rank,) = flight(RankReport(0, "a", 7)).ranks
    assert rank.commands == rank.collectives == ()
    assert flight(RankReport(0, "a", 7)).chrome_trace()["traceEvents"]


def test_damaged_records_are_refused():
    """With the rank whose they are."""
    with pytest.raises(ValueError, match="rank 4"):
        flight(RankReport(4, "a", 7, flight=FlightCopy(b"not compressed")))
